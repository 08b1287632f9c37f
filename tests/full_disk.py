"""A disk with no room left, as far as this process is concerned."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def room_for(limit_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond that: writing more is an OSError, or ends early."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
