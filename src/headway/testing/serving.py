"""A client for tests: serves the model by a real server in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headway.client import Client
from headway.wiring import running


@contextmanager
def client(models: Any, *, name: str | None = None, **settings: Any) -> Iterator[Client]:
    """`with headway.testing.client(Sentiment) as client:` calls it as clients will, over HTTP, with
    nothing mocked; `client.http` reaches every route. Takes what `headway.asgi` takes."""
    with running(models, name=name, **settings) as url, Client(url) as made:
        yield made
