"""Steps of a model on their way to its streams.

The model's side hands over whole steps, from any thread. The readers' event loop is notified once,
and then takes apart all steps that have come.
"""

import asyncio
import math
import threading
from collections.abc import Sequence
from typing import Any

from headway.model import END
from headway.runtime.calling.faults import is_error
from headway.runtime.driving.streams import (
    AT_ONCE_BYTES,
    QUIET_BYTES,
    StreamCall,
    bytes_of,
    wake_all,
)

_QUIET_STEPS = 64  # steps that may wait whole; each stream's part: QUIET_BYTES
_TEXT = frozenset([str])


class StepQueue:
    """The steps of one batch, on their way to its streams.

    A few steps of texts wait whole, until the readers' loop takes them apart, or a stream is to
    end. Every other step is taken apart at once. Under the lock, chunks are put into streams, or
    set aside for readers that take them directly; readers are called after it.
    """

    __slots__ = (
        "_is_told",
        "_lock",
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
        self._untold_steps = 0  # steps that have arrived since, and …
        self._untold_bytes: float = 0  # … the bytes of the stream that got most of them

    # From the model's side, in any thread.

    def deliver(self, entries: Sequence[Any]) -> None:
        """Deliver an entry for each stream. The loops are notified once until they look."""
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
        self._tell()

    def _tell(self) -> None:
        self._is_told = True
        here = asyncio._get_running_loop()
        for loop, calls in self._readers.items():
            if loop is here:
                self._wake(calls)
                continue
            try:
                loop.call_soon_threadsafe(self._wake, calls)
            except RuntimeError:  # the readers' loop is closed: no reader is left
                for call in calls:
                    call.is_abandoned = True

    # From any thread.

    def put_waiting(self) -> None:
        """Give every stream its entries of all waiting steps."""
        with self._lock:
            self._put_waiting()

    def _put_waiting(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for call, texts in zip(self.calls, zip(*waiting, strict=True), strict=True):
                call.put_texts(texts)

    # In a reader's loop.

    def _wake(self, calls: Sequence[StreamCall]) -> None:
        aside: list[tuple[StreamCall, Sequence[str]]] = []
        others = list(calls)
        with self._lock:
            is_much = self._untold_bytes * len(calls) > AT_ONCE_BYTES
            self._is_told = False
            self._untold_steps = self._untold_bytes = 0
            if is_much or len(self._readers) > 1:
                self._put_waiting()
            elif self._waiting:
                aside, others = self._put_or_set_aside()
        given = 0
        try:
            for call, texts in aside:
                given += 1
                call.give(texts)
        finally:  # if a reader raised, the readers after it still get their texts
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


def _urgency_of(entry: Any) -> float:
    """The bytes of an entry; infinite for an end, which cannot wait."""
    if entry is None:
        return 0
    return math.inf if entry is END or is_error(entry) else bytes_of(entry)
