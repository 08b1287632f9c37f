"""Streams: many chunks for one caller, handed over a step of the model at a time.

The model's side writes into each stream from whatever thread it is in; the reader's event loop is
told once for all streams of a step (`deliver_step`), and wakes each reader once.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeAlias

from headway.errors import ModelFailed, Shed
from headway.model import END
from headway.runtime.driving.calls import Ran
from headway.runtime.driving.digests import Trail

MAX_BACKLOG = 4096  # chunks a stream's reader may leave unread before it is cut off …
MAX_BACKLOG_BYTES = 4 * 2**20  # … and what they may take
_OTHER_BYTES = 256  # what a chunk counts for that is no text, no bytes and no array
_QUIET_CHUNKS = 64  # that may wait for the end of a pause …
_QUIET_BYTES = 4096  # … and what they may take
AT_ONCE_BYTES = 2**18  # of chunks that are read in one turn of the readers' event loop
_SIZED = (str, bytes)
# Called in the reader's loop with chunks. False: not now, they are to be put.
Direct: TypeAlias = Callable[[Sequence[Any]], bool]


class StreamCall:
    """One value and the chunks of its answer, read by one caller in that caller's event loop."""

    __slots__ = (
        "_chunks",
        "_error",
        "_is_told",
        "_pushed",
        "_pushed_bytes",
        "_retrace",
        "_taken_bytes",
        "_trail",
        "_waiter",
        "direct",
        "has_ended",
        "is_abandoned",
        "item_ids",
        "loop",
        "pause",
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
        self.reader: Callable[[], None] | None = None  # told in place of a waiting task
        self.direct: Direct | None = None  # takes a chunk past the queue
        self.pause: Pause | None = None  # in which the reader is told of nothing
        self._chunks: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self.has_ended = False  # there will be no more chunks
        self._is_told = False  # its loop has been asked to wake the reader, and has not yet
        self._pushed = 0
        self._pushed_bytes = 0  # counted by the model's side only …
        self._taken_bytes = 0  # … and by the reader's
        self._trail: Trail | None = None  # of what was pushed, where the model may start over
        self._retrace: Trail | None = None  # of what comes once more, until it is as far

    @property
    def is_done(self) -> bool:
        return self.has_ended or self.is_abandoned

    # From any thread.

    def start(self, *, may_rerun: bool) -> None:
        """The model begins, or starts over: what the reader has seen already is compared, and not
        given again."""
        if not self._pushed:
            self._trail = Trail() if may_rerun else None
        elif self._trail is None:
            self.fail(self._broken_off())
        else:
            self._retrace = Trail()

    def put(self, entry: Any) -> bool:
        """One entry of a step: a chunk, None for nothing, END, or this item's own error. True: its
        loop is to be told that there is something to read, and does not know yet."""
        if entry is None or self.has_ended or self.is_abandoned:
            return False
        if type(entry) is str and self._retrace is None:  # the commonest
            self._push(entry, len(entry))
        elif entry is END or isinstance(entry, Exception):
            self._end(self._retraced() if entry is END else entry)
        elif self._retrace is not None:
            self._follow(self._retrace, entry)
            if not self.has_ended:
                return False
        else:
            self._push(entry, _bytes_of(entry))
        if self._is_told:
            return False
        self._is_told = True
        return True

    def can_wait(self) -> bool:
        """Its reader is not told now, but at the end of the pause. False: its end and much that
        waits are told at once."""
        self._is_told = False  # first: who ends it from now on sees that nobody was told, and tells
        unread_bytes = self._pushed_bytes - self._taken_bytes
        is_much = len(self._chunks) > _QUIET_CHUNKS or unread_bytes > _QUIET_BYTES
        if is_much or self.has_ended:
            self._is_told = True
            return False
        return True

    def _push(self, chunk: Any, size: int) -> None:
        if waiting := len(self._chunks):  # one may be larger
            unread_bytes = self._pushed_bytes - self._taken_bytes
            if waiting >= MAX_BACKLOG or unread_bytes + size > MAX_BACKLOG_BYTES:
                self._end(self._too_far_behind())
                return
        self._pushed += 1
        self._pushed_bytes += size
        if self._trail is not None:
            self._trail.add(chunk, size)
        self._chunks.append(chunk)

    def _too_far_behind(self) -> Shed:
        is_many = len(self._chunks) >= MAX_BACKLOG
        behind = f"{MAX_BACKLOG} chunks" if is_many else f"{MAX_BACKLOG_BYTES} bytes"
        return Shed(f"the reader fell {behind} behind its stream")

    def _follow(self, retrace: Trail, entry: Any) -> None:
        retrace.add(entry, _bytes_of(entry))
        trail = self._trail
        assert trail is not None
        if retrace.length == trail.length:
            self._retrace = None
            if retrace.digest() != trail.digest():
                self._end(self._broken_off())

    def _broken_off(self) -> ModelFailed:
        return ModelFailed("the stream broke off, and the model did not repeat the same chunks")

    def succeed(self, result: Any) -> None:
        if not self.has_ended:
            self._end(self._retraced())
            self._tell()

    def fail(self, error: BaseException) -> None:
        if not self.has_ended:
            self._end(error)
            self._tell()

    def detach(self) -> None:
        """It always finds its reader's loop."""

    def _retraced(self) -> ModelFailed | None:
        """What an end means now: it may have come earlier than the first time."""
        return None if self._retrace is None else self._broken_off()

    def _end(self, error: BaseException | None) -> None:
        self._error = error
        self.has_ended = True  # last: the reader looks at it first

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            _wake_in(self.loop, [self])

    # In the reader's loop.

    def wake(self) -> None:
        self._is_told = False  # first: what comes from now on is told anew
        chunks, direct = self._chunks, self.direct
        if direct is not None and chunks and not self.has_ended:
            # The hot path: the few chunks that have come, while there are more to come.
            pushed_bytes = self._pushed_bytes
            if pushed_bytes - self._taken_bytes <= AT_ONCE_BYTES:
                taken = [chunks.popleft()]
                for _ in range(len(chunks)):
                    taken.append(chunks.popleft())
                if direct(taken):
                    self._taken_bytes = pushed_bytes
                    return
                chunks.extendleft(reversed(taken))
        if self.reader is not None:
            self.reader()
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def take_direct(self, chunk: Any) -> bool:
        """Whether the reader took it past the queue. What waits there goes first."""
        return self.direct is not None and not self._chunks and self.direct((chunk,))

    def take(self, most_bytes: float = math.inf) -> list[Any]:
        """The chunks that are there; the one that goes beyond `most_bytes` is the last."""
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
            self._taken_bytes += _bytes_of(chunk)
        return taken

    def has_chunks(self) -> bool:
        return bool(self._chunks)

    def is_at_end(self) -> bool:
        """Whether all has been read; raises what went wrong."""
        if not self.has_ended or self._chunks:
            return False
        if self._error is not None:
            raise self._error
        return True

    async def wait_chunk(self) -> Any:
        """The next chunk; END when there is none; raises what went wrong."""
        chunks = self._chunks
        while not chunks:
            if self.is_at_end():
                return END
            if chunks:  # they came with the end
                break
            self._waiter = self.loop.create_future()
            await self._waiter
        chunk = chunks.popleft()
        self._taken_bytes += _bytes_of(chunk)
        return chunk


class OpenStream:
    """A stream as its reader has it: an async iterator; or, attached, chunks without a task."""

    __slots__ = ("_call", "_deadline", "_withdraw", "has_chunks", "is_at_end", "take")

    def __init__(
        self,
        call: StreamCall,
        withdraw: Callable[[StreamCall], None],
        deadline: asyncio.TimerHandle | None = None,
    ) -> None:
        self._call = call
        self._withdraw = withdraw
        self._deadline = deadline
        self.take = call.take
        self.has_chunks = call.has_chunks
        self.is_at_end = call.is_at_end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        chunk = await self._call.wait_chunk()
        if chunk is END:
            raise StopAsyncIteration
        return chunk

    def attach(
        self,
        reader: Callable[[], None] | None,
        direct: Direct | None = None,
        pause: "Pause | None" = None,
    ) -> None:
        """Call this, in the loop, whenever there may be something to take, or the end; but not in
        the `pause`. A model that makes its chunks in that loop may hand them to `direct`."""
        call = self._call
        call.reader = reader
        call.direct = direct
        if call.pause is not None:
            call.pause.leave(call)
        call.pause = pause
        if pause is not None:
            pause.join(call)

    def close(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        call = self._call
        if not call.is_done:
            call.is_abandoned = True
            self._withdraw(call)


class Pause:
    """Between two rounds of writes of one event loop. While it is on, models in other threads do
    not wake that loop for chunks that can wait. `Writes` begins it, and ends it in any case."""

    __slots__ = ("_calls", "_clock", "_has_held", "_until")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: may be read from any thread."""
        self._clock = clock
        self._calls: set[StreamCall] = set()
        self._until = 0.0
        self._has_held = False  # something was put and not told

    # In the readers' loop.

    def join(self, call: StreamCall) -> None:
        self._calls.add(call)

    def leave(self, call: StreamCall) -> None:
        self._calls.discard(call)

    def begin(self, until: float) -> None:
        self._until = until

    def end(self) -> None:
        """Tell what was held back, if anything was."""
        self._until = 0.0  # first: who puts a chunk from now on tells it
        if self._has_held:
            self._has_held = False
            _wake_all([call for call in self._calls if call.has_chunks()])

    def is_on(self) -> bool:
        return self._clock() < self._until

    # From any thread.

    def hold_back(self, told: list[StreamCall]) -> list[StreamCall]:
        """Those that must be told now."""
        if not self.is_on():
            return told
        self._has_held = True
        if not self.is_on():  # it has ended meanwhile, perhaps without a look at these
            return told
        return [call for call in told if call.pause is not self or not call.can_wait()]


def _bytes_of(chunk: Any) -> int:
    if isinstance(chunk, _SIZED):
        return len(chunk)
    size: int = getattr(chunk, "nbytes", _OTHER_BYTES)
    return size


def deliver_step(step: Iterable[tuple[StreamCall, Any]]) -> None:
    """The entries of one step, each to its stream. From any thread; each loop is told once."""
    told: list[StreamCall] = []
    try:
        for call, entry in step:
            if call.put(entry):
                told.append(call)
    finally:  # a call that is marked as told must be told
        if told:
            _wake(told)


def _wake(told: list[StreamCall]) -> None:
    pause = told[0].pause
    if pause is not None and not (told := pause.hold_back(told)):
        return
    loop = told[0].loop
    if any(call.loop is not loop for call in told):
        for other in {call.loop for call in told}:
            _wake_in(other, [call for call in told if call.loop is other])
    else:
        _wake_in(loop, told)


def _wake_in(loop: asyncio.AbstractEventLoop, calls: list[StreamCall]) -> None:
    if asyncio._get_running_loop() is loop:
        _wake_all(calls)
        return
    try:
        loop.call_soon_threadsafe(_wake_all, calls)
    except RuntimeError:  # the readers' loop is closed: nobody reads any more
        for call in calls:
            call.is_abandoned = True


def _wake_all(calls: list[StreamCall]) -> None:
    """Readers of much, a few in a turn: each encodes and writes what it finds."""
    unread_bytes = 0
    for count, call in enumerate(calls, 1):
        unread_bytes += call._pushed_bytes - call._taken_bytes
        call.wake()
        if unread_bytes > AT_ONCE_BYTES and count < len(calls):
            call.loop.call_soon(_wake_all, calls[count:])
            return
