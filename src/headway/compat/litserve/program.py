"""A mistake in a file that is run as a program, `python app.py`, is reported in one line, as
`headway serve` tells it. Anywhere else it is an exception."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from headway.errors import ConfigError

# Between the file's own line and here.
_BETWEEN = ("headway.compat.litserve", "contextlib", "importlib")


@contextmanager
def telling_mistakes() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        if not _is_called_by_program():
            raise
        sys.stderr.write(f"headway: {error}\n")
        sys.exit(2)


def _is_called_by_program() -> bool:
    """An interactive session is no file, and goes on after an exception."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__") != "__main__":
        return False
    return hasattr(sys.modules["__main__"], "__file__")
