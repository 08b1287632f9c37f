"""An error about a field, in the words of the dialect that the caller speaks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from headway.errors import InvalidInput


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """`names`: of OpenAI's fields, as errors begin with them. The first that fits counts."""
    try:
        yield
    except InvalidInput as error:
        text = str(error)
        for name, own in names.items():
            if text.startswith(name) and text[len(name) : len(name) + 1] in (":", ".", "["):
                raise type(error)(own + text[len(name) :]) from error.__cause__
        raise
