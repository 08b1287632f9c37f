"""How long a thread may keep Python's lock while the event loop waits for it.

A request takes the lock several times on its way: for its bytes, in its model's thread, for its
answer. Where another thread runs Python (a model that makes megabytes, a large body in the
background), each time takes as long as Python lets a thread keep the lock: 5 ms unless it is told.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

HAND_OVER_S = 1e-3


@contextmanager
def short_turns_of_the_lock() -> Iterator[None]:
    """In this process, until the end; unless it has shorter ones."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, HAND_OVER_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
