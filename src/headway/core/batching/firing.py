"""When a batch leaves, from which lane, and with how many rows at most.

A rule fires a lane, or names the moment to ask again. None of them composes the batch: `composing`
chooses the items that leave with the lane's head.
"""

import math
from typing import TypeAlias

from headway.core.batching.arrivals import Arrivals
from headway.core.batching.gathering import Gathering
from headway.core.batching.pool import Pool
from headway.core.batching.rehearsal import Rehearsal, Setting
from headway.core.costs import Costs
from headway.core.faults.fitting import Fitting
from headway.core.items import FireReason, Item
from headway.core.policy import Firing, Policy
from headway.core.queueing.queue import Lane, Queue
from headway.core.queueing.running import Running

WORTH_A_WAIT = 0.25  # before a rehearsal, wait only if sharing saves this part of the batch time
LEAST_WAIT_S = 1e-5  # shorter waits are skipped
SHARING = 0.25  # sharing a queue among workers may add this part to the work
KEEPS_UP = 0.7  # up to this part of their capacity, faster workers do without a slow one


# Plain classes, never changed: compiled code makes frozen ones more slowly (decision 30).


class Fire:
    def __init__(self, lane: Lane, reason: FireReason) -> None:
        self.lane = lane
        self.reason = reason


class HoldUntil:
    def __init__(self, until: float) -> None:
        self.until = until


class GivenRule:
    """A rule that is given how many rows make a batch, and does not learn."""

    def __init__(self, policy: Policy) -> None:
        self.most_rows = policy.max_batch_size

    def rows_now(self, lane: Lane) -> int:
        return self.most_rows


class WindowRule(GivenRule):
    """The textbook rule: fire if a batch is full, or if the oldest item has waited its window."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
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


class StaticRule(GivenRule):
    """Only full batches leave; others leave just in time for an item's deadline, or on drain."""

    def __init__(self, policy: Policy, costs: Costs) -> None:
        super().__init__(policy)
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
    waits for the rehearsed window. A batch grows up to the size with the most rows per second,
    without a partly filled tile that would lower that rate; in a pool, the rehearsal chooses it.
    """

    def __init__(
        self, policy: Policy, costs: Costs, running: Running, fitting: Fitting, pool: Pool
    ) -> None:
        self.linger_cap_s = 0.0  # the longest wait in force now, for the record
        self._max_wait_s = math.inf if policy.max_wait_s is None else policy.max_wait_s
        self._slo_s = math.inf if policy.slo_s is None else policy.slo_s
        self._max_rows = policy.max_batch_size
        self._max_cost = policy.max_batch_cost or math.inf
        self._costs = costs
        self._running = running
        self._fitting = fitting
        self._pool = pool
        self.rehearsal = Rehearsal(policy, costs, running)
        self.arrivals = Arrivals(running, self.rehearsal.arrived)
        self._gathering = Gathering(costs, self.arrivals, running, policy.max_batch_size)

    # ---- when

    def decide(
        self, queue: Queue, now: float, *, idle_since: float, aged_turn: bool
    ) -> Fire | HoldUntil:
        lane = queue.lead(now, aged_turn=aged_turn)
        assert lane is not None, "decide() on an empty queue"
        self.linger_cap_s = 0.0
        full = self._why_full(lane)
        may_wait = self._max_wait_s > 0.0 and len(queue.lanes) == 1
        if may_wait and self._pool.is_unequal:
            faster_at = self._faster_at(queue, lane, now)
            if now < faster_at:
                return HoldUntil(faster_at)
        if full is not None or not may_wait:
            return Fire(lane, full or FireReason.IDLE)
        if self.arrivals.is_closed:
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
        self.rehearsal.meet(lane.mean_size, lane.rows / lane.items)
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
        setting = self.rehearsal.setting
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
        if best_s is None or self.arrivals.rate_rps * best_s > KEEPS_UP * power * best:
            return -math.inf
        rows = max(1, min(self.rows_now(lane), lane.rows, self._fitting.rows_at(size)))
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

    # ---- how many

    @property
    def most_rows(self) -> int:
        """The most rows that pay in one batch, as far as is known."""
        return min(self._max_rows, self._costs.best_rows())

    def rows_now(self, lane: Lane) -> int:
        """The most rows of the lane that may leave in the next batch."""
        rows, size, running = lane.rows, lane.mean_size, self._running
        setting = self._rehearsed()
        if setting is not None and not size:
            best = self._costs.best_rows()
            cap_rows = self.rehearsal.cap_rows_at(setting, self.arrivals.rate_rps)
            return min(best, self.rehearsal.rows_to_take(rows, cap_rows))
        # In a closed loop no new items join those that a batch leaves behind.
        if self.arrivals.is_closed and running.workers == 1:
            return min(self._gathering.part_rows(lane), self._costs.best_rows(size))
        if setting is None and running.free > 1:
            rows = self._shared(rows, size, running.free)
        return self._costs.paying_rows(rows, size)

    def _shared(self, rows: int, size: int, workers: int) -> int:
        """How many of `rows` each free worker takes: as few as do not add much work in all."""
        costs = self._costs
        most_s = (costs.predict(min(rows, self._max_rows), size) or 0.0) * (1.0 + SHARING)
        for parts in range(min(workers, rows), 1, -1):
            part = -(-rows // parts)
            if parts * (costs.predict(part, size) or math.inf) <= most_s:
                return part
        return rows

    def _rehearsed(self) -> Setting | None:
        """None: there is one worker, nothing is known yet, or the loop is closed."""
        if self._running.workers == 1 or self.arrivals.is_closed:
            return None
        return self.rehearsal.setting

    def _why_full(self, lane: Lane) -> FireReason | None:
        """Why the batch leaves without a wait; None: a larger batch may pay."""
        rows = lane.rows
        if rows >= self._max_rows:
            return FireReason.FULL
        setting = self._rehearsed()
        if setting is None:
            cap_rows = self._costs.best_rows(lane.mean_size)
        else:
            cap_rows = self.rehearsal.cap_rows_at(setting, self.arrivals.rate_rps)
        if rows >= cap_rows:
            return FireReason.KNEE
        if lane.size_rows >= self._max_cost:
            return FireReason.BUDGET
        if self._fitting.limits and rows >= self._fitting.rows_at(lane.mean_size):
            return FireReason.BUDGET
        return None


def latest_batch_s(costs: Costs, rows: int, size: int) -> float:
    """How long before a deadline a batch must start; 0 while nothing is known."""
    return (costs.predict(rows, size) or 0.0) + costs.margin_s(rows, size)


Rule: TypeAlias = AutoRule | WindowRule | StaticRule


def rule_for(policy: Policy, costs: Costs, auto: AutoRule) -> Rule:
    if policy.firing is Firing.WINDOW:
        return WindowRule(policy)
    if policy.firing is Firing.STATIC:
        return StaticRule(policy, costs)
    return auto
