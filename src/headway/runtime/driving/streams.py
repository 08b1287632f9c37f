"""Streams: many chunks for one caller, who reads them in its own event loop.

The model's side puts them from any thread; the steps of a batch come through a `StepQueue`. The
readers' event loop is notified once, and wakes each reader once.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

from headway.errors import Shed
from headway.model import END
from headway.runtime.calling.faults import is_error, readable
from headway.runtime.driving.calls import Ran

MAX_BACKLOG = 4096  # chunks a stream's reader may leave unread before it is cut off …
MAX_BACKLOG_BYTES = 4 * 2**20  # … and the bytes that these may have
_OTHER_BYTES = 256  # counted for a chunk that is neither text, bytes nor array
AT_ONCE_BYTES = 2**18  # of chunks that are read in one turn of the readers' event loop
_SIZED = (str, bytes)


class StreamCall:
    """One value and the chunks of its answer, read by one caller in that caller's event loop."""

    __slots__ = (
        "_chunks",
        "_error",
        "_pushed_bytes",
        "_taken_bytes",
        "_waiter",
        "chain",
        "has_begun",
        "has_ended",
        "is_abandoned",
        "item_ids",
        "loop",
        "ran",
        "reader",
        "value",
    )

    def __init__(self, item_id: int, value: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.item_ids = (item_id,)
        self.value = value
        self.ran: tuple[Ran, ...] = ()
        self.is_abandoned = False  # the reader left
        self.loop = loop
        self.reader: Callable[[], None] | None = None  # called instead of waking a task
        self._chunks: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self.has_ended = False  # there will be no more chunks
        self.has_begun = False  # there was a chunk: it must not run again
        self._pushed_bytes = 0  # counted by the model's side only …
        self._taken_bytes = 0  # … and by the reader's

    @property
    def is_done(self) -> bool:
        return self.has_ended or self.is_abandoned

    # From any thread.

    def put(self, entry: Any) -> bool:
        """One entry of a step: a chunk, None for nothing, END, or this item's own error. True:
        there is something new for its reader."""
        if entry is None or self.has_ended or self.is_abandoned:
            return False
        if entry is END or is_error(entry):
            self._end(None if entry is END else readable(entry))
        else:
            self.put_chunk(entry, bytes_of(entry))
        return True

    def put_chunk(self, chunk: Any, size: int = _OTHER_BYTES) -> None:
        """`put` for a chunk of a stream that is not done."""
        if waiting := len(self._chunks):  # one may be larger
            unread_bytes = self._pushed_bytes - self._taken_bytes
            if waiting >= MAX_BACKLOG or unread_bytes + size > MAX_BACKLOG_BYTES:
                self._end(self._too_far_behind())
                return
        self.has_begun = True
        self._pushed_bytes += size
        self._chunks.append(chunk)

    def _too_far_behind(self) -> Shed:
        is_many = len(self._chunks) >= MAX_BACKLOG
        behind = f"{MAX_BACKLOG} chunks" if is_many else f"{MAX_BACKLOG_BYTES} bytes"
        return Shed(f"the reader fell {behind} behind its stream")

    def succeed(self, result: Any) -> None:
        self._settle(None)

    def fail(self, error: BaseException) -> None:
        self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        if not self.has_ended:
            self._end(error)
            _wake_in(self.loop, [self], wake_all)

    def detach(self) -> None:
        """Nothing to do: it always finds its reader's loop."""

    def _end(self, error: BaseException | None) -> None:
        self._error = error
        self.has_ended = True  # last: the reader looks at it first

    # In the reader's loop.

    def wake(self) -> None:
        if self.reader is not None:
            self.reader()
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def take(self, most_bytes: float = math.inf) -> list[Any]:
        """The waiting chunks, up to the first that exceeds `most_bytes`, which is included."""
        pushed_bytes = self._pushed_bytes  # first: a chunk is counted before it can be taken
        chunks, taken = self._chunks, []
        if pushed_bytes - self._taken_bytes <= most_bytes:
            while chunks:
                taken.append(chunks.popleft())
            self._taken_bytes = pushed_bytes
            return taken
        stops_at = self._taken_bytes + most_bytes
        while chunks and self._taken_bytes < stops_at:
            chunk = chunks.popleft()
            taken.append(chunk)
            self._taken_bytes += bytes_of(chunk)
        return taken

    def is_waiting(self) -> bool:
        """Has everything been read, and may more come?"""
        return not self._chunks and not self.has_ended

    def is_at_end(self) -> bool:
        """Has everything been read? Raises the stream's error."""
        if not self.has_ended or self._chunks:
            return False
        if self._error is not None:
            raise self._error
        return True

    async def wait_chunk(self) -> Any:
        """The next chunk; END after the last one. Raises the stream's error."""
        chunks = self._chunks
        while not chunks:
            if self.is_at_end():
                return END
            if chunks:  # they came with the end
                break
            self._waiter = self.loop.create_future()
            await self._waiter
        chunk = chunks.popleft()
        self._taken_bytes += bytes_of(chunk)
        return chunk


class OpenStream:
    """The reader's side of a stream: an async iterator, or, attached, chunks without a task."""

    __slots__ = ("_call", "_deadline", "_withdraw", "is_at_end", "is_waiting", "source", "take")

    def __init__(
        self,
        call: StreamCall,
        withdraw: Callable[[StreamCall], None],
        deadline: asyncio.TimerHandle | None = None,
    ) -> None:
        self._call = call
        self._withdraw = withdraw
        self._deadline = deadline
        self.source: Any = call  # what chunks are taken from, by whoever takes many
        self.take = call.take
        self.is_waiting = call.is_waiting
        self.is_at_end = call.is_at_end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        chunk = await self._call.wait_chunk()
        if chunk is END:
            raise StopAsyncIteration
        return chunk

    def attach(self, reader: Callable[[], None] | None) -> None:
        """Call this, in the loop, whenever there may be something to take, or the end."""
        self._call.reader = reader

    def close(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        call = self._call
        if not call.is_done:
            call.is_abandoned = True
            self._withdraw(call)


def bytes_of(chunk: Any) -> int:
    if issubclass(type(chunk), _SIZED):
        return len(chunk)
    try:
        size = getattr(chunk, "nbytes", _OTHER_BYTES)
    except BaseException:  # noqa: BLE001  user code, and only this chunk's
        return _OTHER_BYTES
    return size if type(size) is int else _OTHER_BYTES


class StepQueue:
    """The steps of one batch, on their way to its streams. Each of the readers' event loops is
    notified once, and then takes all steps that have come."""

    __slots__ = ("_readers", "_told", "calls")

    def __init__(self, calls: Sequence[StreamCall]) -> None:
        self.calls = calls
        self._readers: dict[asyncio.AbstractEventLoop, list[StreamCall]] = {}
        for call in calls:
            self._readers.setdefault(call.loop, []).append(call)
        # Loops that have been notified, and have not looked yet.
        self._told: set[asyncio.AbstractEventLoop] = set()

    def deliver(self, entries: Sequence[Any]) -> None:
        """Deliver an entry for each stream. From any thread."""
        is_new = False
        for call, entry in zip(self.calls, entries, strict=True):
            is_new |= call.put(entry)
        for loop, calls in self._readers.items() if is_new else ():
            if loop not in self._told:
                self._told.add(loop)
                _wake_in(loop, calls, self._wake)

    def _wake(self, calls: list[StreamCall]) -> None:
        self._told.discard(calls[0].loop)  # before it looks: what comes later is told again
        wake_all([call for call in calls if not call.is_waiting()])


def _wake_in(
    loop: asyncio.AbstractEventLoop,
    calls: list[StreamCall],
    wake: Callable[[list[StreamCall]], None],
) -> None:
    if asyncio._get_running_loop() is loop:
        wake(calls)
        return
    try:
        loop.call_soon_threadsafe(wake, calls)
    except RuntimeError:  # the readers' loop is closed: no reader is left
        for call in calls:
            call.is_abandoned = True


def wake_all(calls: list[StreamCall]) -> None:
    """Wake readers; where much is unread, only a few in each turn of the loop: each encodes and
    writes what it finds."""
    unread_bytes = 0
    for count, call in enumerate(calls, 1):
        unread_bytes += call._pushed_bytes - call._taken_bytes
        try:
            call.wake()
        except BaseException:  # its reader's; the others are woken all the same
            call.loop.call_soon(wake_all, calls[count:])
            raise
        if unread_bytes > AT_ONCE_BYTES and count < len(calls):
            call.loop.call_soon(wake_all, calls[count:])
            return
