"""Words that Triton's clients look for in an error's message, put before our own."""

from collections.abc import Iterator
from contextlib import contextmanager

from headway.errors import HeadwayError

_UNKNOWN = "Request for unknown model: "
_NOT_LOADED = "failed to load"


def in_tritons_words(code: str, message: str) -> str:
    if code == "unknown_model" and not message.startswith(_NOT_LOADED):
        return _UNKNOWN + message
    return message


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Put Triton's words before the message of an error that keeps a model from being loaded."""
    try:
        yield
    except HeadwayError as error:
        if not str(error).startswith(_NOT_LOADED):
            error.args = (f"{_NOT_LOADED} {name!r}: {error}",)
        raise
