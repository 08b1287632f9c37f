"""What Triton's clients look for in the text of an error, put before our own words."""

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
    """Whatever keeps a model from being loaded says so first."""
    try:
        yield
    except HeadwayError as error:
        if not str(error).startswith(_NOT_LOADED):
            error.args = (f"{_NOT_LOADED} {name!r}: {error}",)
        raise
