"""Watches over batches that run too long. A thread cannot be ended from outside: the callers of
such a batch are answered, and once every worker is stuck, queued and new callers too."""

import asyncio
import logging

from headway.core.lifecycle.health import find_overdue, is_stuck
from headway.errors import ModelFailed, NotReady
from headway.runtime.batching.decider import BatchDecider
from headway.runtime.events import BatchFinished, BatchLost, BatchStarted, Event

_log = logging.getLogger(__name__)
_RETRY_S = 60.0  # callers are asked to retry after this, while every worker is stuck


class BatchWatchdog:
    """An observer with one timer for all batches. A batch that starts while no timer runs sets it;
    when it expires, all running batches are checked."""

    def __init__(self, decider: BatchDecider, *, limit_s: float) -> None:
        self._decider = decider
        self._limit_s = limit_s
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the timer's
        self._late: set[int] = set()

    def __call__(self, event: Event) -> None:
        if isinstance(event, BatchStarted):
            if self._timer is None or self._loop is not asyncio.get_running_loop():
                self._arm(event.batch.fired_at + self._limit_s)
        elif self._late and isinstance(event, BatchFinished | BatchLost):
            self._came_back(event.batch.id)

    def _arm(self, at: float | None) -> None:
        self._timer = None
        if at is None:
            return
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(max(0.0, at - self._decider.shell.now()), self._look)

    def _look(self) -> None:
        found = find_overdue(self._decider.running(), self._limit_s, self._decider.shell.now())
        new = found.batch_ids - self._late
        self._late |= new
        name, limit_s = self._decider.name, self._limit_s
        for batch_id in sorted(new):
            _log.error("%s has not answered within %g s", name, limit_s)
            self._decider.abandon(
                batch_id, ModelFailed(f"{name} did not answer within {limit_s:g} s")
            )
        if new and is_stuck(len(self._late), self._decider.pool.present):
            reason = f"{name} is stuck: a batch has been running for more than {limit_s:g} s"
            self._decider.losses.give_up(NotReady(reason, retry_after_s=_RETRY_S))
        self._arm(found.look_at)

    def _came_back(self, batch_id: int) -> None:
        if batch_id in self._late:
            self._late.discard(batch_id)
            _log.warning("%s answers again", self._decider.name)
            self._decider.losses.recover()
