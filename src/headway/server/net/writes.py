"""Small writes of many streams, done together.

A write costs more than all else that a token needs. A step of a model has a token for each of its
streams: their events are made first, then they are written, one connection after the other. Where
many streams get tokens faster than anybody reads, several tokens go into one write.
"""

import asyncio
from typing import Protocol

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
    comes, that leaves after twice the pause.
    """

    __slots__ = ("_most_pause_s", "_next_at", "_pause_s", "_timer", "_waiting", "is_due")

    def __init__(self, most_pause_s: float) -> None:
        self._most_pause_s = most_pause_s
        self._waiting: list[Writer] = []
        self._pause_s = 0.0
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_due = False  # at the end of this turn

    def add(self, writer: Writer) -> None:
        """It holds its first part."""
        self._waiting.append(writer)

    def look(self) -> None:
        """One more part is held, and writing was not due. Is it now?"""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_at:
            self.is_due = True
            loop.call_soon(self._flush)
        elif self._timer is None:
            self._timer = loop.call_at(self._next_at + self._pause_s, self._flush)

    def _flush(self) -> None:
        self.is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        self._pause_s = min(len(waiting) * _STREAM_S, self._most_pause_s)
        if self._pause_s >= _SHORT_S:
            self._next_at = asyncio.get_running_loop().time() + self._pause_s
        for writer in waiting:
            writer.flush()
