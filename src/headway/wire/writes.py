"""Small writes of many streams, done together.

A write costs more than all else that a token needs. A step of a model has a token for each of its
streams: their events are made first, then they are written, one connection after the other. Where
many streams get tokens faster than anybody reads, several tokens go into one write.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable

from headway.wire.messages import Out

SMALL_BYTES = 4096  # a stream that holds more writes at once
_STREAM_S = 1e-4  # of pause for each stream that was written: ten times what a write takes
_SHORT_S = 1e-3  # a pause below is none: event loops count in milliseconds

# Here asyncio's `writelines` goes on however slowly a client reads (CVE-2024-12254).
_NEVER_PAUSES = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)


def write_parts(transport: asyncio.WriteTransport, parts: Iterable[bytes]) -> None:
    if _NEVER_PAUSES:
        transport.write(b"".join(parts))
    else:
        transport.writelines(parts)


class Writes:
    """Combines the writes of one port's streams.

    After each round of writes there is a pause; the more streams were written, the longer it is.
    Parts that come during the pause are held. The first part after it sends them all, at the end of
    the same turn of the event loop; if no part comes, they are sent after twice the pause.
    """

    __slots__ = ("_most_pause_s", "_timer", "clock", "is_due", "next_at", "waiting")

    def __init__(self, most_pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_pause_s = most_pause_s
        self.waiting: list[StreamSink] = []  # each from its first part on
        self._timer: asyncio.TimerHandle | None = None  # while there is a pause
        self.is_due = False  # at the end of this turn
        self.clock = clock
        self.next_at = 0.0  # a part that comes later is written at the end of its turn

    def come_due(self) -> None:
        """A part was held after the pause: write all held parts at the end of this turn."""
        self.is_due = True
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.is_due, self.next_at = False, 0.0
        waiting, self.waiting = self.waiting, []
        pause_s = min(len(waiting) * _STREAM_S, self._most_pause_s)
        if pause_s >= _SHORT_S:
            self.next_at = self.clock() + pause_s
            self._timer = asyncio.get_running_loop().call_later(2 * pause_s, self._flush)
        for sink in waiting:
            held, sink.held = sink.held, b""
            if held:  # it may have left meanwhile, with a large one
                sink.out.send(held)


class StreamSink:
    """Takes the parts of one stream. Small parts are held, and written with those of other
    streams."""

    __slots__ = ("_writes", "held", "out")

    def __init__(self, writes: Writes, out: Out) -> None:
        self._writes = writes
        self.out = out
        self.held = b""

    async def wait_writable(self) -> None:
        while (writable := self.out.writable) is not None:
            await writable

    def write(self, part: bytes) -> None:
        held, writes = self.held, self._writes
        if len(held) + len(part) > SMALL_BYTES:
            self.flush()
            self.out.send(part)
            return
        if held:
            self.held = held + part
        else:
            self.held = part
            writes.waiting.append(self)
        if not writes.is_due and writes.clock() >= writes.next_at:
            writes.come_due()

    def flush(self) -> None:
        if held := self.take():
            self.out.send(held)

    def take(self) -> bytes:
        """Take the held bytes, to be written with those that follow."""
        held, self.held = self.held, b""
        return held
