"""Streams: many chunks for one caller, handed over a step of the model at a time.

The model's side hands each step over whole, from whatever thread it is in (`StepQueue`). The
readers' event loop is told once, takes steps apart, and wakes each reader once.
"""

import asyncio
import math
import threading
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
_QUIET_STEPS = 64  # that may wait whole, for the end of a pause …
_QUIET_BYTES = 4096  # … and what they may bring a stream
AT_ONCE_BYTES = 2**18  # of chunks that are read in one turn of the readers' event loop
_SIZED = (str, bytes)
_TEXT = frozenset([str])
# Called in the reader's loop with chunks. False: not now, they are to be put.
Direct: TypeAlias = Callable[[Sequence[Any]], bool]


class StreamCall:
    """One value and the chunks of its answer, read by one caller in that caller's event loop."""

    __slots__ = (
        "_chunks",
        "_error",
        "_has_begun",
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
        "step_queue",
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
        self.step_queue: StepQueue | None = None  # of the model, once it runs
        self._chunks: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self.has_ended = False  # there will be no more chunks
        self._has_begun = False  # there was a chunk
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
        if not self._has_begun:
            self._trail = Trail() if may_rerun else None
        elif self._trail is None:
            self.fail(self._broken_off())
        else:
            self._retrace = Trail()

    def put(self, entry: Any) -> bool:
        """One entry of a step: a chunk, None for nothing, END, or this item's own error. True:
        there is something new for its reader."""
        if entry is None or self.has_ended or self.is_abandoned:
            return False
        if entry is END or isinstance(entry, Exception):
            self._end(self._retraced() if entry is END else entry)
        elif self._retrace is not None:
            self._follow(self._retrace, entry)
            return self.has_ended
        else:
            self._push(entry, _bytes_of(entry))
        return True

    def put_texts(self, texts: Sequence[str]) -> None:
        """The same of several chunks, all of them texts. The hot path."""
        size = 0
        for text in texts:
            size += len(text)
        is_plain = not self._chunks and self._retrace is None and size <= _QUIET_BYTES
        if not is_plain or self.has_ended or self.is_abandoned:
            for text in texts:
                self.put(text)
            return
        self._has_begun = True
        self._pushed_bytes += size
        if self._trail is not None:
            self._trail.add_texts(texts)
        self._chunks.extend(texts)

    def lets_past(self, texts: Sequence[str]) -> bool:
        """Whether a direct reader is to take them without a stay here (`take_texts`). Called in
        its loop. The hot path."""
        if self._chunks or self._retrace is not None or self.has_ended or self.is_abandoned:
            return False
        self._has_begun = True
        if self._trail is not None:
            self._trail.add_texts(texts)
        return True

    def _push(self, chunk: Any, size: int) -> None:
        if waiting := len(self._chunks):  # one may be larger
            unread_bytes = self._pushed_bytes - self._taken_bytes
            if waiting >= MAX_BACKLOG or unread_bytes + size > MAX_BACKLOG_BYTES:
                self._end(self._too_far_behind())
                return
        self._has_begun = True
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
        self._settle(None)

    def fail(self, error: BaseException) -> None:
        self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        if self.step_queue is not None:
            self.step_queue.hand_out()  # what came before the end
        if not self.has_ended:
            self._end(self._retraced() if error is None else error)
            _wake_in(self.loop, [self])

    def detach(self) -> None:
        """It always finds its reader's loop."""

    def _retraced(self) -> ModelFailed | None:
        """What an end means now: it may have come earlier than the first time."""
        return None if self._retrace is None else self._broken_off()

    def _end(self, error: BaseException | None) -> None:
        self._error = error
        self.has_ended = True  # last: the reader looks at it first

    # In the reader's loop.

    def wake(self) -> None:
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
        self._tell()

    def _tell(self) -> None:
        if self.reader is not None:
            self.reader()
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def take_texts(self, texts: Sequence[str]) -> None:
        """That were let past. What has been put since goes after them."""
        if self.direct is None or not self.direct(texts):
            self._taken_bytes -= sum(map(len, texts))  # unread is what was pushed, less this
            self._chunks.extendleft(reversed(texts))
            self._tell()

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
        call.pause = pause
        if call.step_queue is not None:
            call.step_queue.look_for_pause()

    def close(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        call = self._call
        if not call.is_done:
            call.is_abandoned = True
            self._withdraw(call)


class StepQueue:
    """The steps of one batch, on their way to its streams.

    A few steps of texts wait whole, until the readers' loop takes them apart, or a stream is to
    end. Every other step is taken apart at once. Under the lock, chunks are put into streams, and
    nothing else is called.
    """

    __slots__ = (
        "_is_told",
        "_knows_pause",
        "_lock",
        "_pause",
        "_readers",
        "_untold_bytes",
        "_untold_steps",
        "_waiting",
        "calls",
    )

    def __init__(self, calls: Sequence[StreamCall]) -> None:
        self.calls = calls
        self._readers: dict[asyncio.AbstractEventLoop, list[StreamCall]] = {}
        for call in calls:
            self._readers.setdefault(call.loop, []).append(call)
            call.step_queue = self
        self._lock = threading.Lock()
        self._waiting: list[Sequence[str]] = []
        self._is_told = False  # the loops have been asked to look, and have not yet
        self._untold_steps = 0  # that have come since …
        self._untold_bytes: float = 0  # … and at most so many of one stream
        self._pause: Pause | None = None  # of all streams; None: they have different ones, or none
        self._knows_pause = False

    # From the model's side, in any thread.

    def deliver(self, entries: Sequence[Any]) -> None:
        """An entry for each stream. The loops are told, but in a pause of theirs only of ends, of
        errors and of much."""
        is_texts = _TEXT.issuperset(map(type, entries))
        size = max(map(len if is_texts else _urgency_of, entries))
        with self._lock:
            self._untold_steps += 1
            self._untold_bytes += size
            is_much = self._untold_bytes > _QUIET_BYTES or self._untold_steps > _QUIET_STEPS
            if is_texts:
                self._waiting.append(entries)
            if is_much or not is_texts:
                self._hand_out()
            if not is_texts:
                for call, entry in zip(self.calls, entries, strict=True):
                    call.put(entry)
            if self._is_told:
                return
        if is_much or not self._is_held_back():
            self._tell()

    def _is_held_back(self) -> bool:
        if not self._knows_pause:
            self._knows_pause = True  # first: a reader that changes now is looked for once more
            pauses = {call.pause for call in self.calls if not call.is_done}
            self._pause = pauses.pop() if len(pauses) == 1 else None
        return self._pause is not None and self._pause.hold(self)

    def _tell(self) -> None:
        self._is_told = True
        here = asyncio._get_running_loop()
        for loop, calls in self._readers.items():
            if loop is here:
                self._wake(calls)
                continue
            try:
                loop.call_soon_threadsafe(self._wake, calls)
            except RuntimeError:  # the readers' loop is closed: nobody reads any more
                for call in calls:
                    call.is_abandoned = True

    # From any thread.

    def hand_out(self) -> None:
        """Each stream has its part of all that has come."""
        with self._lock:
            self._hand_out()

    def _hand_out(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for call, texts in zip(self.calls, zip(*waiting, strict=True), strict=True):
                call.put_texts(texts)

    def look_for_pause(self) -> None:
        """One of the readers has another."""
        self._knows_pause = False

    # In a reader's loop.

    def wake(self, pause: "Pause") -> None:
        """It is over. Its streams are all in its loop."""
        if self._untold_steps:  # else they have left already, with a step that came later
            self._wake([call for call in self.calls if call.pause is pause])

    def _wake(self, calls: Sequence[StreamCall]) -> None:
        let_past: list[tuple[StreamCall, Sequence[str]]] = []
        others = calls
        with self._lock:
            is_much = self._untold_bytes * len(calls) > AT_ONCE_BYTES
            self._is_told = False
            self._untold_steps = self._untold_bytes = 0
            are_all = len(calls) == len(self.calls)  # else the others are in other loops
            if is_much or not are_all or self._pause is None:
                self._hand_out()
            elif self._waiting:
                let_past, others = self._hand_past()
        for call, texts in let_past:
            call.take_texts(texts)
        woken = [call for call in others if call._chunks or call.has_ended]
        if woken:
            _wake_all(woken)

    def _hand_past(self) -> tuple[list[tuple[StreamCall, Sequence[str]]], list[StreamCall]]:
        """As `_hand_out`; but what a reader can take directly is returned, and not put."""
        waiting, self._waiting = self._waiting, []
        let_past: list[tuple[StreamCall, Sequence[str]]] = []
        others = []
        for call, texts in zip(self.calls, zip(*waiting, strict=True), strict=True):
            if call.direct is not None and call.lets_past(texts):
                let_past.append((call, texts))
            else:
                call.put_texts(texts)
                others.append(call)
        return let_past, others


class Pause:
    """Between two rounds of writes of one event loop. While it is on, models in other threads do
    not wake that loop for steps that can wait. `Writes` begins it, and ends it in any case."""

    __slots__ = ("_clock", "_held", "_until")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: may be read from any thread."""
        self._clock = clock
        self._held: set[StepQueue] = set()
        self._until = 0.0

    # In the readers' loop.

    def begin(self, until: float) -> None:
        self._until = until

    def end(self) -> None:
        """Tell what was held back, if anything was."""
        self._until = 0.0  # first: who comes from now on is not held back
        while self._held:
            self._held.pop().wake(self)

    # From any thread.

    def hold(self, queue: StepQueue) -> bool:
        """Whether they are told at its end."""
        if self._clock() >= self._until:
            return False
        self._held.add(queue)
        return self._clock() < self._until  # else it has ended meanwhile, perhaps without them


def _bytes_of(chunk: Any) -> int:
    if isinstance(chunk, _SIZED):
        return len(chunk)
    size: int = getattr(chunk, "nbytes", _OTHER_BYTES)
    return size


def _urgency_of(entry: Any) -> float:
    """What it takes; more than anything that can wait where it is an end."""
    if entry is None:
        return 0
    return math.inf if entry is END or isinstance(entry, Exception) else _bytes_of(entry)


def deliver_step(step: Iterable[tuple[StreamCall, Any]]) -> None:
    """Entries of streams that are no batch, each to its own. From any thread."""
    told: dict[asyncio.AbstractEventLoop, list[StreamCall]] = {}
    for call, entry in step:
        if call.put(entry):
            told.setdefault(call.loop, []).append(call)
    for loop, calls in told.items():
        _wake_in(loop, calls)


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
