"""Admit, push out, or refuse at the door: the queue is bounded, and hopeless work never enters.

The estimate at the door is the optimistic one (nobody else will come): what could still be
answered in time is not refused, and what turns hopeless later is dropped when a batch forms. Once
that has happened the door is strict, until the rush is over: who would only wait to be dropped is
told so at once, as long as a full batch for every worker waits already.
"""

import math
from collections.abc import Iterable

from headway.core.costs import Costs
from headway.core.items import Batch, Item, Refusal, RefusalReason
from headway.core.policy import Firing, Policy
from headway.core.queueing.queue import Queue
from headway.errors import (
    DeadlineExceeded,
    HeadwayError,
    InputTooLarge,
    ModelFailed,
    Poison,
    QueueFull,
    Shed,
)

_RUSH_S = 1.0  # a rush is over when nobody was turned away for so long, or for the SLO if longer


class Admission:
    def __init__(self, policy: Policy, costs: Costs, queue: Queue) -> None:
        self._policy = policy
        self._costs = costs
        self._queue = queue
        self.workers = policy.workers  # those that are there; at least 1: one will be back
        self._sheds = policy.firing is Firing.AUTO
        self._strict_since = self._strict_until = -math.inf
        self._slack_s = 0.0  # what the strict estimate was short of, lately

    def admit(
        self, item: Item, rows: int, cap_rows: int, running: Iterable[Batch]
    ) -> list[Refusal]:
        """Let an item (the first of `rows` rows) in, or raise. Returns those pushed out for it."""
        if item.deadline <= item.arrived_at:
            raise DeadlineExceeded("the deadline had passed before the item was queued")
        if self._sheds and (self._policy.slo_s is not None or item.deadline < math.inf):
            try:
                self._refuse_if_hopeless(item, cap_rows, running)
            except Shed as shed:  # there is no time for all: is somebody over his share?
                victims = self._queue.make_way(item)
                if not victims:
                    raise
                retry_s = shed.retry_after_s or 0.0
                return [Refusal(each, RefusalReason.SHED, retry_s) for each in victims]
        if self._queue.rows + rows <= self._policy.max_queue:
            return []
        return self._push_out(item, rows, cap_rows)

    def queued_s(self, cap_rows: int, rows: float | None = None) -> float:
        """Seconds of work waiting: what a newcomer should expect, and what scaling should watch."""
        rows = self._queue.rows if rows is None else rows
        full_s = self._costs.predict(cap_rows)
        if full_s is None:
            return 0.0
        return rows / cap_rows * full_s / self.workers

    def _push_out(self, item: Item, rows: int, cap_rows: int) -> list[Refusal]:
        limit = self._policy.max_queue
        if rows > limit:
            raise InputTooLarge(f"{rows} rows; the queue holds {limit}", limit=limit)
        victims = self._queue.make_room(item._replace(rows=rows), limit)
        retry_after_s = self.queued_s(cap_rows)
        if not victims:
            raise QueueFull(
                f"the queue is full ({limit} rows)", limit=limit, retry_after_s=retry_after_s
            )
        return [Refusal(each, RefusalReason.QUEUE_FULL, retry_after_s) for each in victims]

    def _refuse_if_hopeless(self, item: Item, cap_rows: int, running: Iterable[Batch]) -> None:
        alone_s = self._costs.predict(item.rows, item.size)
        if alone_s is None or self._costs.predict(cap_rows) is None:
            return  # a model nobody has measured serves; it does not shed
        margin_s = self._costs.margin_s(item.rows, item.size)
        wait_s = self._wait_s(item, cap_rows, running)
        if wait_s <= 0:
            return  # a worker is free: the estimate may be wrong, and only running it can tell
        finish_at = item.arrived_at + wait_s + alone_s + margin_s - 1e-9
        if finish_at > item.deadline:
            raise DeadlineExceeded(
                f"{(item.deadline - item.arrived_at) * 1e3:.1f} ms are left, about "
                f"{(finish_at - item.arrived_at) * 1e3:.1f} ms are needed"
            )
        slo_s, is_rush = self._policy.slo_s, item.arrived_at < self._strict_until
        if slo_s is None:
            return
        if is_rush:
            finish_at = self._strict_finish(item, wait_s, cap_rows, finish_at)
        if finish_at > item.arrived_at + slo_s:
            if is_rush:
                self._stay_strict(item.arrived_at)
            raise Shed(
                f"the SLO of {slo_s * 1e3:g} ms cannot be met: about "
                f"{(finish_at - item.arrived_at) * 1e3:.0f} ms are to be expected",
                retry_after_s=wait_s,
            )

    def saw_late(self, arrivals: Iterable[float], now: float, late_before: float) -> None:
        """Items that were let in then had to be dropped from one batch, for none who came earlier
        than `late_before` less the SLO could be in time: the door was too hopeful.

        However many they are, the batch was late once: by what the first of them was short of.
        """
        if now >= self._strict_until:
            self._strict_since, self._slack_s = now, 0.0
        else:
            first = min((each for each in arrivals if each >= self._strict_since), default=math.inf)
            self._slack_s += max(0.0, late_before - (first + (self._policy.slo_s or math.inf)))
        self._stay_strict(now)

    def _stay_strict(self, now: float) -> None:
        self._strict_until = now + max(self._policy.slo_s or 0.0, _RUSH_S)

    def _strict_finish(self, item: Item, wait_s: float, cap_rows: int, hopeful: float) -> float:
        """As it will be, not as it might be: its batch fills up, and others are late too."""
        if self._queue.rows_ahead(item) < cap_rows * self.workers:
            return hopeful  # the workers would run out of work; or it is next, whoever floods
        full_s = self._costs.predict(cap_rows, item.size) or 0.0
        margin_s = self._costs.margin_s(cap_rows, item.size)
        # A batch more than needed: to have fewer waiting costs nothing as long as some do.
        assert self._policy.slo_s is not None
        slack_s = min(full_s + self._slack_s, self._policy.slo_s / 2)
        return item.arrived_at + wait_s + full_s + margin_s + slack_s

    def _wait_s(self, item: Item, cap_rows: int, running: Iterable[Batch]) -> float:
        """When the item's own batch could start: after the running ones and the full ones ahead."""
        ahead = self._queue.rows_ahead(item)
        full_s = self._costs.predict(cap_rows, item.size) or 0.0
        workers = self.workers
        left = sorted(
            max(0.0, batch.fired_at + (batch.predicted_s or 0.0) - item.arrived_at)
            for batch in running
        )
        batches_ahead = int((ahead + item.rows - 1) // cap_rows)
        if len(left) < workers and batches_ahead < workers - len(left):
            return 0.0
        turns, place = divmod(batches_ahead, workers)
        starts = [0.0] * (workers - len(left)) + left
        return starts[place] + turns * full_s


def refusal_error(refusal: Refusal, policy: Policy) -> HeadwayError:
    """The exception for someone who was queued and will not run."""
    match refusal.reason:
        case RefusalReason.QUEUE_FULL:
            return QueueFull(
                "pushed out of a full queue by work of a higher class or a quieter tenant",
                limit=policy.max_queue,
                retry_after_s=refusal.retry_after_s,
            )
        case RefusalReason.SHED:
            return Shed(
                "it waited too long to be answered within the SLO",
                retry_after_s=refusal.retry_after_s,
            )
        case RefusalReason.DEADLINE:
            return DeadlineExceeded("the deadline passed, or could no longer be met, in the queue")
        case RefusalReason.POISON:
            return Poison(
                f"its worker was lost twice with this input alone on it: {refusal.detail}"
            )
        case RefusalReason.WORKER_LOST:
            return ModelFailed(f"its worker was lost, and it may not run again: {refusal.detail}")
