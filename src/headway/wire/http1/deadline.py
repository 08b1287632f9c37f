"""A deadline that can be moved at no cost: its one timer checks it whenever it fires, so a request
sets no timer."""

import asyncio
import math
from collections.abc import Callable


class Deadline:
    __slots__ = ("_at", "_expire", "_loop", "_timer", "_timer_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def set(self, seconds: float) -> None:
        now = self._loop.time()
        self._at = now + seconds
        if self._at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer(now)

    def clear(self) -> None:
        self._at = math.inf

    def close(self) -> None:
        """Close it for good. The callback refers to us, so this also breaks the reference cycle."""
        if self._timer is not None:
            self._timer.cancel()
        self._expire = None  # type: ignore[assignment]

    def _set_timer(self, now: float) -> None:
        self._timer_at = self._at
        self._timer = self._loop.call_later(self._at - now, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        now = self._loop.time()
        if now >= self._at:
            self._expire()
        elif self._at < math.inf:
            self._set_timer(now)
