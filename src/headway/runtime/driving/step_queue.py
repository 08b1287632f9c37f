"""Steps of a model on their way to its streams.

The model's side hands each step over whole, from whatever thread it is in (`StepQueue`). The
readers' event loop is told once, but not in a `Pause` of its writes, and takes steps apart.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from headway.model import END
from headway.runtime.driving.streams import (
    AT_ONCE_BYTES,
    QUIET_BYTES,
    StreamCall,
    bytes_of,
    wake_all,
)

_QUIET_STEPS = 64  # that may wait whole, for the end of a pause; each stream's part: QUIET_BYTES
_TEXT = frozenset([str])


class StepQueue:
    """The steps of one batch, on their way to its streams.

    A few steps of texts wait whole, until the readers' loop takes them apart, or a stream is to
    end. Every other step is taken apart at once. Under the lock, chunks are put into streams, or
    set aside for readers that take them directly; readers are called after it.
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
            is_much = self._untold_bytes > QUIET_BYTES or self._untold_steps > _QUIET_STEPS
            if is_texts:
                self._waiting.append(entries)
            if is_much or not is_texts:
                self._put_waiting()
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

    def put_waiting(self) -> None:
        """Each stream has its part of all that has come."""
        with self._lock:
            self._put_waiting()

    def _put_waiting(self) -> None:
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
        aside: list[tuple[StreamCall, Sequence[str]]] = []
        others = list(calls)
        with self._lock:
            is_much = self._untold_bytes * len(calls) > AT_ONCE_BYTES
            self._is_told = False
            self._untold_steps = self._untold_bytes = 0
            if is_much or len(self._readers) > 1 or self._pause is None:
                self._put_waiting()
            elif self._waiting:
                aside, others = self._put_or_set_aside()
        given = 0
        try:
            for call, texts in aside:
                given += 1
                call.give(texts)
        finally:  # where a reader raised, those after it still have theirs
            for call, texts in aside[given:]:
                call.put_back(texts)
                others.append(call)
            woken = [call for call in others if call.has_chunks() or call.has_ended]
            if woken:
                wake_all(woken)

    def _put_or_set_aside(
        self,
    ) -> tuple[list[tuple[StreamCall, Sequence[str]]], list[StreamCall]]:
        """As `_put_waiting`; but what a reader takes directly is returned, with the other streams,
        and not put."""
        waiting, self._waiting = self._waiting, []
        aside: list[tuple[StreamCall, Sequence[str]]] = []
        others = []
        for call, texts in zip(self.calls, zip(*waiting, strict=True), strict=True):
            if call.direct is not None and call.set_aside(texts):
                aside.append((call, texts))
            else:
                call.put_texts(texts)
                others.append(call)
        return aside, others


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
            try:
                self._held.pop().wake(self)
            except BaseException:
                self.end()  # a reader that raises keeps nobody else waiting
                raise

    # From any thread.

    def hold(self, queue: StepQueue) -> bool:
        """Whether they are told at its end."""
        if self._clock() >= self._until:
            return False
        self._held.add(queue)
        return self._clock() < self._until  # else it has ended meanwhile, perhaps without them


def _urgency_of(entry: Any) -> float:
    """What it takes; more than anything that can wait where it is an end."""
    if entry is None:
        return 0
    return math.inf if entry is END or isinstance(entry, Exception) else bytes_of(entry)
