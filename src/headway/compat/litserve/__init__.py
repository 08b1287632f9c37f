"""LitServe's `LitAPI` and `LitServer`, for files that were written for it:
`import headway.compat.litserve as ls`."""

from headway.compat.litserve.api import LitAPI
from headway.compat.litserve.options import INSTEAD
from headway.compat.litserve.program import telling_mistakes
from headway.compat.litserve.server import LitServer
from headway.errors import ConfigError

__all__ = ["LitAPI", "LitServer"]


def __getattr__(name: str) -> object:
    """Raises ConfigError for LitServe's other names, with what to use instead."""
    if name not in INSTEAD:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with telling_mistakes():
        raise ConfigError(f"headway.compat.litserve does not have it; {INSTEAD[name]}", field=name)
