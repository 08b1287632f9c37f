"""Which version of Headway this is."""

import importlib.metadata


def _installed() -> str:
    try:
        return importlib.metadata.version("headway")
    except importlib.metadata.PackageNotFoundError:  # a source tree that was not installed
        return "unknown"


VERSION = _installed()
