"""When to fire: the rules of the three policies, asked when a worker is free and an item waits.

Each rule returns a lane to run now and why, or the moment to ask again. None of them composes the
batch: `composing` chooses the items that leave with the lane's head.
"""

import math
from typing import TypeAlias

from headway.core.batching.arrivals import Arrivals
from headway.core.batching.batch_size import BatchSize
from headway.core.batching.gathering import Gathering
from headway.core.batching.pool import Pool
from headway.core.batching.rehearsal import Rehearsal
from headway.core.costs import Costs
from headway.core.items import FireReason, Item
from headway.core.policy import Firing, Policy
from headway.core.queueing.queue import Lane, Queue
from headway.core.queueing.running import Running

WORTH_A_WAIT = 0.25  # before a rehearsal, wait only if sharing saves this part of the batch time
LEAST_WAIT_S = 1e-5  # shorter waits are skipped
KEEPS_UP = 0.7  # up to this part of their capacity, faster workers do without a slow one


# Plain classes, never changed: compiled code makes frozen ones more slowly (decision 30).


class Fire:
    __slots__ = ("lane", "reason")

    def __init__(self, lane: Lane, reason: FireReason) -> None:
        self.lane = lane
        self.reason = reason


class HoldUntil:
    __slots__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until


class WindowRule:
    """The textbook rule: fire if a batch is full, or if the oldest item has waited its window."""

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
        if now >= due:  # before full lanes, or a lane that is always full would starve this one
            is_full = lane.partition in queue.full_lanes
            return Fire(lane, FireReason.FULL if is_full else FireReason.WINDOW)
        full = queue.oldest_full_lane()
        return HoldUntil(due) if full is None else Fire(full, FireReason.FULL)


class StaticRule:
    """Only full batches leave; others leave just in time for an item's deadline, or on drain."""

    def __init__(self, policy: Policy, costs: Costs) -> None:
        self.linger_cap_s = math.inf
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
            full = queue.oldest_lane()  # no batch can ever be full: the queue has no room left
        return HoldUntil(latest_start) if full is None else Fire(full, FireReason.FULL)

    def _latest_start(self, urgent: Item, queue: Queue) -> float:
        lane = queue.lanes[urgent.lane]
        # One more item may arrive until then, and make the batch longer.
        batch_s = latest_batch_s(self._costs, lane.rows + 1, lane.mean_size)
        if batch_s == 0.0:  # the cost is unknown: start after half of its time
            return (urgent.arrived_at + urgent.deadline) / 2
        return urgent.deadline - batch_s


class AutoRule:
    """A free worker takes the queued items at once, with two exceptions.

    In a closed loop it waits until enough callers are here for the highest throughput. In a pool it
    waits for the rehearsed window.
    """

    def __init__(
        self,
        policy: Policy,
        costs: Costs,
        *,
        arrivals: Arrivals,
        gathering: Gathering,
        rehearsal: Rehearsal,
        batch_size: BatchSize,
        pool: Pool,
        running: Running,
    ) -> None:
        self.linger_cap_s = 0.0  # the longest wait in force now, for the record
        self._max_wait_s = math.inf if policy.max_wait_s is None else policy.max_wait_s
        self._slo_s = math.inf if policy.slo_s is None else policy.slo_s
        self._max_rows = policy.max_batch_size
        self._costs = costs
        self._arrivals = arrivals
        self._gathering = gathering
        self._rehearsal = rehearsal
        self._batch_size = batch_size
        self._pool = pool
        self._running = running

    def decide(
        self, queue: Queue, now: float, *, idle_since: float, aged_turn: bool
    ) -> Fire | HoldUntil:
        lane = queue.lead(now, aged_turn=aged_turn)
        assert lane is not None, "decide() on an empty queue"
        self.linger_cap_s = 0.0
        full = self._batch_size.why_full(lane)
        may_wait = self._max_wait_s > 0.0 and len(queue.lanes) == 1
        if may_wait and self._pool.is_unequal:
            faster_at = self._faster_at(queue, lane, now)
            if now < faster_at:
                return HoldUntil(faster_at)
        if full is not None or not may_wait:
            return Fire(lane, full or FireReason.IDLE)
        if self._arrivals.is_closed:
            return self._gather(queue, lane, now, idle_since)
        if self._running.workers == 1:
            return Fire(lane, FireReason.IDLE)
        return self._window(queue, lane, now, idle_since)

    def _gather(self, queue: Queue, lane: Lane, now: float, idle_since: float) -> Fire | HoldUntil:
        """Wait until enough callers are here for the highest throughput, if that is soon."""
        start = None
        if self._running.free <= 1:  # otherwise the next item finds a free worker, too
            start = self._gathering.start(lane)
        if start is None or not start.waits:
            return Fire(lane, FireReason.IDLE)
        missing = round(start.items) - lane.items
        if missing <= 0:
            return Fire(lane, FireReason.ALL_HERE)
        oldest = lane.oldest()
        assert oldest is not None
        self.linger_cap_s = min(self._saved_s(lane, missing)[0], self._max_wait_s)
        due = idle_since + self.linger_cap_s
        due = min(due, now + self._slack_s(queue, lane, oldest, now))
        return self._hold(lane, now, due, idle_since)

    def _window(self, queue: Queue, lane: Lane, now: float, idle_since: float) -> Fire | HoldUntil:
        """Wait until the oldest item has waited for the rehearsed window."""
        oldest = lane.oldest()
        assert oldest is not None
        self._rehearsal.meet(lane.mean_size, lane.rows / lane.items)
        self.linger_cap_s = self._window_s(lane)
        due = oldest.arrived_at + self.linger_cap_s
        if now < due:
            due = min(due, now + self._slack_s(queue, lane, oldest, now))
        return self._hold(lane, now, due, idle_since)

    def _hold(self, lane: Lane, now: float, due: float, idle_since: float) -> Fire | HoldUntil:
        if due - now > LEAST_WAIT_S:
            return HoldUntil(due)
        return Fire(lane, FireReason.LINGER if idle_since < now else FireReason.IDLE)

    def _window_s(self, lane: Lane) -> float:
        setting = self._rehearsal.setting
        if setting is not None:
            return setting.window_s
        saved_s, together_s = self._saved_s(lane, 1)
        if not self._running.batches or not together_s or saved_s < WORTH_A_WAIT * together_s:
            return 0.0
        # Workers that all start with one item each would leave all other items behind.
        alone_s = self._costs.predict(1, lane.mean_size) or 0.0
        return min(alone_s / self._running.workers, self._max_wait_s)

    def _faster_at(self, queue: Queue, lane: Lane, now: float) -> float:
        """When a faster worker should take the batch instead of the free one.

        In the past if the free worker should, because the faster ones do not keep up without it or
        would answer later.
        """
        size = lane.mean_size
        best = self._costs.best_rows(size)
        best_s, power = self._costs.predict(best, size), self._pool.faster_power()
        if best_s is None or self._arrivals.rate_rps * best_s > KEEPS_UP * power * best:
            return -math.inf
        rows = max(1, min(self._batch_size.rows_now(lane), lane.rows))
        batch_s = self._costs.predict(rows, size) or 0.0
        oldest = lane.oldest()
        assert oldest is not None
        waited_s = now - oldest.arrived_at
        faster_at = self._pool.better_at(now, batch_s, -(-lane.rows // rows), waited_s)
        return min(faster_at, now + self._slack_s(queue, lane, oldest, now))

    def _saved_s(self, lane: Lane, joining: int) -> tuple[float, float]:
        """Time saved if `joining` items share this batch, and the time of that batch.

        Both are 0 if they are unknown.
        """
        costs, size, rows = self._costs, lane.mean_size, lane.rows
        joining = max(1, min(joining, self._max_rows))
        apart_s, alone_s = costs.predict(joining, size), costs.predict(rows, size)
        together_s = costs.predict(min(rows + joining, self._max_rows), size)
        if apart_s is None or alone_s is None or together_s is None:
            return 0.0, 0.0
        return apart_s + alone_s - together_s, together_s

    def _slack_s(self, queue: Queue, lane: Lane, oldest: Item, now: float) -> float:
        """How long the batch can be held with every deadline and the SLO still met."""
        due = min(queue.next_deadline(), oldest.arrived_at + self._slo_s)
        if due == math.inf:
            return math.inf
        return due - now - latest_batch_s(self._costs, lane.rows + 1, lane.mean_size)


def latest_batch_s(costs: Costs, rows: int, size: int) -> float:
    """How long before a deadline a batch must start; 0 while nothing is known."""
    return (costs.predict(rows, size) or 0.0) + costs.margin_s(rows, size)


Rule: TypeAlias = AutoRule | WindowRule | StaticRule


def rule_for(policy: Policy, costs: Costs, auto: AutoRule) -> Rule:
    """The rule that the policy asks for."""
    if policy.firing is Firing.WINDOW:
        return WindowRule(policy)
    if policy.firing is Firing.STATIC:
        return StaticRule(policy, costs)
    return auto
