"""Watches over batches that run too long. A thread cannot be ended from outside: their callers are
answered, and whoever asks is told that the model hangs until it comes back."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from headway.core import Batch
from headway.errors import HeadwayError, ModelFailed
from headway.runtime.events import BatchFinished, BatchLost, BatchStarted, Event

_log = logging.getLogger(__name__)


class Abandons(Protocol):
    """What it needs of a batcher."""

    def abandon(self, batch: Batch, error: HeadwayError) -> None: ...


class Watchdog:
    """An observer. `hangs` learns when a first batch is over its time, and when all are back."""

    def __init__(
        self, batcher: Abandons, *, limit_s: float, hangs: Callable[[bool], Any] = bool
    ) -> None:
        self._batcher = batcher
        self._limit_s = limit_s
        self._hangs = hangs
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._late: set[int] = set()

    def __call__(self, event: Event) -> None:
        if isinstance(event, BatchStarted):
            loop = asyncio.get_running_loop()
            batch = event.batch
            self._timers[batch.id] = loop.call_later(self._limit_s, self._expire, event)
        elif isinstance(event, BatchFinished | BatchLost):
            timer = self._timers.pop(event.batch.id, None)
            if timer is not None:
                timer.cancel()
            if event.batch.id in self._late:
                self._late.discard(event.batch.id)
                if not self._late:
                    _log.warning("%s answers again", event.model)
                    self._hangs(False)

    def _expire(self, event: BatchStarted) -> None:
        self._timers.pop(event.batch.id, None)
        _log.error("%s has not answered within %g s", event.model, self._limit_s)
        if not self._late:
            self._hangs(True)
        self._late.add(event.batch.id)
        error = ModelFailed(f"{event.model} did not answer within {self._limit_s:g} s")
        self._batcher.abandon(event.batch, error)
