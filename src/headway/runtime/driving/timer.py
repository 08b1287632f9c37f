"""One timer for a shell, set to the earliest requested moment, in the shell's present loop."""

import asyncio
import math
from collections.abc import Callable

from headway.runtime.driving.event_loop import EventLoop

_RESOLUTION_S = 1e-3


class Timer:
    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._event_loop: EventLoop | None = None  # the handle's
        self._at = math.inf
        self._due_at = -math.inf

    def is_later(self, at: float) -> bool:
        """Under the shell's lock: True if it is set for a later time; then `arm` it."""
        if at >= self._at:
            return False
        self._at = at
        return True

    def arm(self, event_loop: EventLoop, at: float) -> None:
        """Set the timer, in that loop. Does nothing if an earlier time was asked for meanwhile, or
        if the shell has moved to another loop."""
        if at != self._at or not event_loop.is_here:
            return
        self.disarm()
        self._event_loop = event_loop
        wait_s = max(0.0, at - event_loop.clock())
        self._handle = event_loop.loop.call_later(wait_s, self._rang, event_loop)

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def leave(self) -> None:
        """The shell moves to another loop. The old timer does nothing when it rings."""
        self._handle = self._event_loop = None
        self._at = math.inf

    def now(self, event_loop: EventLoop) -> float:
        """The time to decide at.

        uvloop counts in milliseconds and rings early: work that is due within
        one is due now. With the clock's time, the decider would answer "wait" again and again.
        """
        due_at, self._due_at = self._due_at, -math.inf
        return max(event_loop.clock(), due_at)

    def _rang(self, event_loop: EventLoop) -> None:
        if event_loop is self._event_loop:
            is_early = 0.0 < self._at - event_loop.clock() <= _RESOLUTION_S
            self._due_at = self._at if is_early else -math.inf
            self._at = math.inf
            self._ring()
