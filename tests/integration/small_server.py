"""A server of a few models in this process, over our own HTTP and over ASGI."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx

from headway.config import ModelConfig, ServerConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.hosting.statistics import ModelStatistics
from headway.server.run import make_app
from headway.wire.asgi import AsgiApp
from headway.wire.http1.server import HttpServer

STACKS = ("http", "asgi")


@asynccontextmanager
async def hosted(
    models: Mapping[str, Any], watch: Callable[[Served], object] = lambda served: None
) -> AsyncIterator[Registry]:
    """These models (or those of `(model, settings)`), by their names. `watch` is told of each
    before it starts."""
    registry = Registry()
    async with AsyncExitStack() as opened:
        for name, given in models.items():
            model, settings = given if isinstance(given, tuple) else (given, {})
            settings = {"warm_up": False, **settings}
            served = Served(ModelConfig(name=name, target="tests:None", **settings), model=model)
            watch(served)
            await served.start()
            opened.push_async_callback(served.close, drain_s=1)
            registry.add(served)
        yield registry


def count(served: Served) -> None:
    """Its statistics, as a server keeps them."""
    served.statistics = statistics = ModelStatistics()
    served.batcher.observe(statistics.observe)


@asynccontextmanager
async def serving(stack: str = "http", **models: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server of these models (or of `(model, settings)`), by their names."""
    config = ServerConfig(port=0, grpc_port=-1, drain_s=1)
    async with AsyncExitStack() as opened:
        registry = await opened.enter_async_context(hosted(models))
        app = make_app(registry, config)
        if stack == "http":
            server = await opened.enter_async_context(HttpServer(app, config))
            client = httpx.AsyncClient(base_url=server.url, timeout=20)
        else:
            transport = httpx.ASGITransport(app=AsgiApp(app, max_body_bytes=2**20))  # type: ignore[arg-type]
            client = httpx.AsyncClient(transport=transport, base_url="http://asgi", timeout=20)
        yield await opened.enter_async_context(client)
