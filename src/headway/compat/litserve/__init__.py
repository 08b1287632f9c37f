"""LitServe's `LitAPI` and `LitServer`, for files that were written for it:
`import headway.compat.litserve as ls`."""

from headway.compat.litserve.api import LitAPI
from headway.compat.litserve.server import LitServer

__all__ = ["LitAPI", "LitServer"]
