"""When to fire: the three policies. A worker is free and somebody waits, or nobody asks.

Each answers with a lane to run now and why, or with the moment to ask again. None of them
composes the batch: who leaves with the lane's head is `composing`'s business.
"""

import math
from typing import NamedTuple, Protocol

from headway.core.batching.linger import Linger
from headway.core.batching.pool import Pool
from headway.core.batching.sizing import Sizing
from headway.core.costs import Costs
from headway.core.faults.memory import Fitting
from headway.core.items import FireReason, Item
from headway.core.policy import Policy
from headway.core.queueing.queue import Lane, Queue

WORTH_A_WAIT = 0.15  # of the time of all together is saved: less is not worth a wait
LIKELY = 85.0  # percent of batches take no longer than a batch that is held reckons with
LATE_PATIENCE = 0.3  # of the cap: how long to linger before those who have waited already


class Fire(NamedTuple):
    lane: Lane
    reason: FireReason


class HoldUntil(NamedTuple):
    until: float


class Rule(Protocol):
    linger_cap_s: float  # in force now, for the record

    def decide(
        self, queue: Queue, now: float, *, idle_since: float, aged_turn: bool
    ) -> Fire | HoldUntil: ...


class WindowRule:
    """The textbook rule: full, or the oldest has waited its window."""

    def __init__(self, policy: Policy) -> None:
        assert policy.max_wait_s is not None
        self.linger_cap_s = policy.max_wait_s

    def decide(
        self, queue: Queue, now: float, *, idle_since: float, aged_turn: bool
    ) -> Fire | HoldUntil:
        lane = queue.oldest_lane()
        oldest = lane.oldest() if lane else None
        assert lane is not None
        assert oldest is not None, "decide() on an empty queue"
        due = oldest.arrived_at + self.linger_cap_s
        if now >= due:  # the longest waiting first, or another lane that is always full starves it
            is_full = lane.partition in queue.full_lanes
            return Fire(lane, FireReason.FULL if is_full else FireReason.WINDOW)
        full = queue.oldest_full_lane()
        return HoldUntil(due) if full is None else Fire(full, FireReason.FULL)


class StaticRule:
    """Only full batches leave; a rest leaves in time for an item's deadline, or on drain."""

    linger_cap_s = math.inf

    def __init__(self, policy: Policy, costs: Costs) -> None:
        self._max_queue = policy.max_queue
        self._costs = costs

    def decide(
        self, queue: Queue, now: float, *, idle_since: float, aged_turn: bool
    ) -> Fire | HoldUntil:
        urgent = queue.earliest_deadline()
        latest_start = math.inf if urgent is None else self._latest_start(urgent, queue)
        if urgent is not None and now >= latest_start:
            return Fire(queue.lanes[urgent.lane], FireReason.DEADLINE)
        full = queue.oldest_full_lane()
        if full is None and (queue.is_overflowing or queue.rows >= self._max_queue):
            full = queue.oldest_lane()  # rests fill the queue, and nobody else fits: nothing moves
        return HoldUntil(latest_start) if full is None else Fire(full, FireReason.FULL)

    def _latest_start(self, urgent: Item, queue: Queue) -> float:
        lane = queue.lanes[urgent.lane]
        # One more may come until then, and make the batch longer.
        batch_s = latest_batch_s(self._costs, lane.rows + 1, lane.mean_size)
        if batch_s == 0.0:  # nobody knows how long it takes: leave it half of its time
            return (urgent.arrived_at + urgent.deadline) / 2
        return urgent.deadline - batch_s


class AutoRule:
    """Fire when idle, unless lingering is expected to pay.

    It pays where arrivals follow each other (fan-out) or follow our answers (closed loops); the
    gaps seen lately say so. Everyone seen lately is here: nobody to wait for.
    """

    def __init__(self, policy: Policy, costs: Costs, linger: Linger, fitting: Fitting) -> None:
        self.linger_cap_s = 0.0
        self.running_items = 0
        self.running_batches = 0
        self.last_fired_at = -math.inf
        self.workers = policy.workers  # those that are there
        self._max_wait_s = math.inf if policy.max_wait_s is None else policy.max_wait_s
        self._slo_s = math.inf if policy.slo_s is None else policy.slo_s
        self._max_rows = policy.max_batch_size
        self._max_cost = policy.max_batch_cost or math.inf
        self._costs = costs
        self._linger = linger
        self._fitting = fitting
        self._hold = HoldUntil(-math.inf)  # the last answer, valid until something arrives
        self._hold_arrivals = -1
        self.sizing: Sizing
        self.pool: Pool

    def decide(
        self, queue: Queue, now: float, *, idle_since: float, aged_turn: bool
    ) -> Fire | HoldUntil:
        lane = queue.lead(now, aged_turn=aged_turn)
        assert lane is not None, "decide() on an empty queue"
        full = self._is_full(lane)
        if full is not None:
            return Fire(lane, full)
        if self._max_wait_s == 0.0 or len(queue.lanes) > 1:
            return Fire(lane, FireReason.IDLE)
        if self.workers > 1:
            next_departure = self._next_departure(queue, lane, now)
            if self.pool.is_unequal:
                next_departure = max(next_departure, self._faster_at(lane, now))
            if now < next_departure:
                return HoldUntil(next_departure)
            if self.workers - self.running_batches > 1:
                return Fire(lane, FireReason.IDLE)  # a newcomer finds a free worker, too
        if lane.items + self.running_items >= self._linger.everyone:
            return Fire(lane, FireReason.EVERYONE)
        return self._linger_or_fire(queue, lane, now, idle_since)

    def _faster_at(self, lane: Lane, now: float) -> float:
        """A slow worker is left idle where a faster one will be done sooner, and the faster ones
        keep up without it."""
        pool, size = self.pool, lane.mean_size
        if not self.sizing.keeps_up(pool.faster_power(), size):
            return -math.inf
        batch_s = self._costs.predict(min(lane.rows, self._max_rows), size) or 0.0
        return pool.better_at(now, batch_s)

    def _next_departure(self, queue: Queue, lane: Lane, now: float) -> float:
        """Workers that take turns do more than workers that start together.

        A batch smaller than what keeps the workers up with the load leaves no sooner after the
        last one than such a batch takes to come together; the fewer of them run, the sooner.
        """
        if not self.running_batches:
            return -math.inf
        rows, spacing_s = self.sizing.sustaining(lane.mean_size)
        if lane.rows >= rows:
            return -math.inf
        oldest = lane.oldest()
        assert oldest is not None
        latest = now + self._slack_s(queue, lane, oldest, now)
        return min(
            self.last_fired_at
            + min(spacing_s * self.running_batches / self.workers, self._max_wait_s),
            latest,
        )

    def _is_full(self, lane: Lane) -> FireReason | None:
        if lane.rows >= self._max_rows:
            return FireReason.FULL
        if lane.rows >= self._costs.best_rows(lane.mean_size):
            return FireReason.KNEE
        if lane.size_rows >= self._max_cost:
            return FireReason.BUDGET
        if self._fitting.limits and lane.rows >= self._fitting.rows_at(lane.mean_size):
            return FireReason.BUDGET
        return None

    def _linger_or_fire(
        self, queue: Queue, lane: Lane, now: float, idle_since: float
    ) -> Fire | HoldUntil:
        if self._hold_arrivals == self._linger.arrivals:  # nobody came meanwhile
            return self._hold if now < self._hold.until else Fire(lane, FireReason.LINGER)
        cap_s = self._cap_s(queue, lane, now, idle_since)
        wait = self._best_wait(lane, cap_s)
        wait = self.linger_cap_s = max(wait, self._return_wait(queue, lane, now, idle_since))
        if wait <= 0.0:
            lingered = idle_since < now
            return Fire(lane, FireReason.LINGER if lingered else FireReason.IDLE)
        self._hold_arrivals = self._linger.arrivals
        self._hold = HoldUntil(now + wait)
        return self._hold

    def _best_wait(self, lane: Lane, cap_s: float) -> float:
        size = lane.mean_size
        batch_s = self._costs.predict(lane.rows, size)
        if batch_s is None or cap_s <= 0.0 or not self._saved_s(lane, 1):
            return 0.0
        larger_s = self._costs.predict(lane.rows + 1, size)
        row_s = 0.0 if larger_s is None else max(0.0, larger_s - batch_s)
        # Of several workers the next is free sooner: a newcomer saves less.
        return self._linger.best_wait(lane.items, cap_s, batch_s / self.workers, row_s)

    def _return_wait(self, queue: Queue, lane: Lane, now: float, idle_since: float) -> float:
        """For callers who come again after their answers: as long as a batch saved is worth."""
        missing = self._linger.everyone - lane.items - self.running_items
        oldest = lane.oldest()
        saved_s = self._saved_s(lane, missing)
        if missing <= 0 or saved_s <= 0.0 or oldest is None:
            return 0.0
        longest_s = min(saved_s, self._max_wait_s) - (now - idle_since)
        most_s = min(longest_s, self._slack_s(queue, lane, oldest, now))
        return self._linger.return_wait(now, lane.items, most_s, saved_s)

    def _saved_s(self, lane: Lane, joining: int) -> float:
        """What is saved where so many join instead of running by themselves; 0 where that is
        little beside what a batch takes: then nobody is worth a wait."""
        costs, size, rows = self._costs, lane.mean_size, lane.rows
        joining = max(1, min(joining, self._max_rows))
        apart_s, alone_s = costs.predict(joining, size), costs.predict(rows, size)
        together_s = costs.predict(min(rows + joining, self._max_rows), size)
        if apart_s is None or alone_s is None or together_s is None:
            return 0.0
        saved_s = apart_s + alone_s - together_s
        return saved_s if saved_s >= WORTH_A_WAIT * together_s else 0.0

    def _cap_s(self, queue: Queue, lane: Lane, now: float, idle_since: float) -> float:
        """No longer than one item takes alone, than the user says, than any deadline leaves."""
        alone_s = self._costs.predict(1, lane.mean_size)
        oldest = lane.oldest()
        if alone_s is None or oldest is None:
            return 0.0
        most = min(alone_s, self._max_wait_s)
        # Whoever has just missed a batch waits not much longer than for that one: p99 is theirs.
        patience = most - (now - oldest.arrived_at)
        cap = max(patience, LATE_PATIENCE * most - (now - idle_since))
        return min(cap, self._slack_s(queue, lane, oldest, now))

    def _slack_s(self, queue: Queue, lane: Lane, oldest: Item, now: float) -> float:
        """How long the batch can be held with every deadline and the SLO still met."""
        due = min(queue.next_deadline(), oldest.arrived_at + self._slo_s)
        if due == math.inf:
            return math.inf
        seconds = self._costs.predict(lane.rows + 1, lane.mean_size) or 0.0
        return due - now - seconds * (1.0 + max(0.0, self._costs.error_at(LIKELY)))


def latest_batch_s(costs: Costs, rows: int, size: int) -> float:
    """How long before a deadline a batch must start; 0 while nothing is known."""
    return (costs.predict(rows, size) or 0.0) + costs.margin_s(rows, size)
