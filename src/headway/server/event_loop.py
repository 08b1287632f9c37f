"""The event loop of a server's own process, and how long a thread may keep it waiting.

A request takes Python's lock several times on its way: for its bytes, in its model's thread, for
its answer. Where another thread runs Python (a model that makes megabytes, a large body in the
background), each time takes as long as Python lets a thread keep the lock: 5 ms by default.
"""

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
HAND_OVER_S = 1e-3


@contextmanager
def short_turns_of_the_lock() -> Iterator[None]:
    """Make threads hand over the interpreter's lock sooner, unless they already do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, HAND_OVER_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@short_turns_of_the_lock()
def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, on uvloop if that is installed, in a process that is the server's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
