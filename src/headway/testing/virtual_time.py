"""An event loop whose clock jumps to the next timer instead of sleeping.

Hours pass in milliseconds, times in tests are exact, and a deadlock is an error instead of a hang.
Everything runs in one thread: under this loop Headway runs `def` models inline too.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Every task waits for another one."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            raise Deadlock("deadlock: every task is waiting and no timer is set")
        self.now += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at time 0. `loop.time()` moves only when every task waits for a timer."""

    is_virtual = True

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # With the default, rounding at large times leaves a timer for ever "not yet due".
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def now() -> float:
    """The running loop's time."""
    return asyncio.get_running_loop().time()
