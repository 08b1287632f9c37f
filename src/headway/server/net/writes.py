"""Small writes of many streams, done together.

A write costs more than all else that a token needs. A step of a model has a token for each of its
streams: their events are made first, then they are written, one connection after the other. Where
many streams get tokens faster than anybody reads, several tokens go into one write.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from headway.runtime.driving.streams import Pause

SMALL_BYTES = 4096  # a connection that holds more writes at once
_STREAM_S = 1e-4  # of pause for each stream that was written: ten times what a write takes
_SHORT_S = 1e-3  # a pause below is none: event loops count in milliseconds


class Writer(Protocol):
    """A connection that holds parts of a stream."""

    def flush(self) -> None:
        """Write what is held, if anything is. Raises nothing."""
        ...


class Writes:
    """Of one port's connections.

    After a round of writes is a pause, the longer the more streams were written. What comes after
    the pause leaves in the turn it comes in, with what came during the pause; if nothing more
    comes, that leaves after twice the pause. Models in other threads do not wake us in the pause.
    """

    __slots__ = ("_most_pause_s", "_timer", "_waiting", "clock", "is_due", "next_at", "pause")

    def __init__(self, most_pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_pause_s = most_pause_s
        self._waiting: list[Writer] = []
        self._timer: asyncio.TimerHandle | None = None  # while there is a pause
        self.is_due = False  # at the end of this turn
        self.clock = clock
        self.next_at = 0.0  # a part that comes later is written at the end of its turn
        self.pause = Pause(clock)

    def add(self, writer: Writer) -> None:
        """It holds its first part."""
        self._waiting.append(writer)

    def come_due(self) -> None:
        """One more part is held, after the pause."""
        self.is_due = True
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.is_due, self.next_at = True, 0.0
        try:
            self.pause.end()  # what was held back leaves with the rest
        finally:
            self.is_due = False
        waiting, self._waiting = self._waiting, []
        pause_s = min(len(waiting) * _STREAM_S, self._most_pause_s)
        if pause_s >= _SHORT_S:
            self.next_at = self.clock() + pause_s
            self.pause.begin(self.next_at)
            self._timer = asyncio.get_running_loop().call_later(2 * pause_s, self._flush)
        for writer in waiting:
            writer.flush()
