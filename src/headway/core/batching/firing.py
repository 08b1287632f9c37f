"""When to fire: the three policies. They are asked when a worker is free and an item waits.

Each answers with a lane to run now and why, or with the moment to ask again. None of them
composes the batch: `composing` chooses the items that leave with the lane's head.
"""

import math
from typing import TypeAlias

from headway.core.batching.arrivals import Arrivals
from headway.core.batching.batch_size import BatchSize
from headway.core.batching.pool import Pool
from headway.core.batching.rehearsal import Rehearsal
from headway.core.batching.returns import Held
from headway.core.batching.sizing import Sizing
from headway.core.batching.stagger import Stagger
from headway.core.costs import Costs
from headway.core.items import FireReason, Item
from headway.core.policy import Firing, Policy
from headway.core.queueing.queue import Lane, Queue

WORTH_A_WAIT = 0.25  # of the time of all together is saved: less is little
LIKELY = 85.0  # percent of batches take no longer than a batch that is held reckons with

LEAST_WAIT_S = 1e-5  # less is no wait
SOON = 0.7  # of what is saved: how long to hold until all callers are here, …
SOON_FOR_LITTLE = 0.35  # … and where that is little: no batch is held for some of them then


# Plain classes that nobody changes: compiled code makes frozen ones more slowly (decision 0115).


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
    """Fire when idle, unless waiting is expected to pay.

    How long it pays to wait for others is rehearsed with the latest arrivals. In a closed loop,
    where arrivals follow our answers, a batch is held until all callers are here.
    """

    def __init__(
        self,
        policy: Policy,
        costs: Costs,
        *,
        arrivals: Arrivals,
        stagger: Stagger,
        rehearsal: Rehearsal,
        batch_size: BatchSize,
        sizing: Sizing,
        pool: Pool,
    ) -> None:
        self.linger_cap_s = 0.0  # in force now, for the record
        self.running_items = 0
        self.running_batches = 0
        self.workers = policy.workers  # those that are there
        self._max_wait_s = math.inf if policy.max_wait_s is None else policy.max_wait_s
        self._slo_s = math.inf if policy.slo_s is None else policy.slo_s
        self._max_rows = policy.max_batch_size
        self._costs = costs
        self._arrivals = arrivals
        self._stagger = stagger
        self._rehearsal = rehearsal
        self._batch_size = batch_size
        self._sizing = sizing
        self._pool = pool
        self._hold = HoldUntil(-math.inf)  # the last answer, valid until something arrives
        self._hold_arrivals = -1

    def decide(
        self, queue: Queue, now: float, *, idle_since: float, aged_turn: bool
    ) -> Fire | HoldUntil:
        lane = queue.lead(now, aged_turn=aged_turn)
        assert lane is not None, "decide() on an empty queue"
        full = self._batch_size.why_full(lane)
        may_wait = self._max_wait_s > 0.0 and len(queue.lanes) == 1
        if may_wait and self._pool.is_unequal:
            faster_at = self._faster_at(queue, lane, now)
            if now < faster_at:
                return HoldUntil(faster_at)
        group = self._group(lane) if may_wait and self.workers == 1 else 0
        self._batch_size.group_rows = group
        if full is not None or not may_wait:
            return Fire(lane, full or FireReason.IDLE)
        if group:
            return self._hold_for_group(queue, lane, now, idle_since)
        if not self._arrivals.is_closed:
            return self._window(queue, lane, now, idle_since)
        if self.workers - self.running_batches > 1:
            return Fire(lane, FireReason.IDLE)  # a newcomer finds a free worker, too
        if lane.items + self.running_items >= self._arrivals.most_at_once:
            return Fire(lane, FireReason.ALL_HERE)
        return self._hold_for_returns(queue, lane, now, idle_since)

    def _group(self, lane: Lane) -> int:
        """How many callers in step leave together; 0: they are not in step, or not alike."""
        if not self._stagger.may_be_in_step:
            return 0
        items, rows = lane.items, lane.rows
        if lane.size_rows >= rows or rows != items:  # they have sizes, or several rows
            return 0
        self._arrivals.learn_arrivals()
        return self._stagger.group(items + self.running_items)

    def _hold_for_group(
        self, queue: Queue, lane: Lane, now: float, idle_since: float
    ) -> Fire | HoldUntil:
        oldest = lane.oldest()
        assert oldest is not None
        self.linger_cap_s = min(self._stagger.together_s, self._max_wait_s)
        if lane.items >= self._batch_size.group_rows:
            return Fire(lane, FireReason.ALL_HERE)
        due = min(
            oldest.arrived_at + self.linger_cap_s, now + self._slack_s(queue, lane, oldest, now)
        )
        if now < due:
            return HoldUntil(due)
        return Fire(lane, FireReason.LINGER if idle_since < now else FireReason.IDLE)

    def _window(self, queue: Queue, lane: Lane, now: float, idle_since: float) -> Fire | HoldUntil:
        """Until the oldest has waited as long as the rehearsal says."""
        oldest = lane.oldest()
        assert oldest is not None
        rehearsal = self._rehearsal
        rehearsal.size, rehearsal.item_rows = lane.mean_size, lane.rows / lane.items
        window_s = self.linger_cap_s = self._window_s(lane)
        due = oldest.arrived_at + window_s
        if now < due:
            due = min(due, now + self._slack_s(queue, lane, oldest, now))
            if now < due:
                return HoldUntil(due)
        return Fire(lane, FireReason.LINGER if idle_since < now else FireReason.IDLE)

    def _window_s(self, lane: Lane) -> float:
        setting = self._rehearsal.setting
        if setting is not None:
            return setting.window_s
        saved_s, together_s = self._saved_s(lane, 1)
        if not self.running_batches or not together_s or saved_s < WORTH_A_WAIT * together_s:
            return 0.0
        # Workers that all start with one item each would leave all other items behind.
        alone_s = self._costs.predict(1, lane.mean_size) or 0.0
        return min(alone_s / self.workers, self._max_wait_s)

    def _faster_at(self, queue: Queue, lane: Lane, now: float) -> float:
        """A slow worker is left idle where a faster one will be done sooner, and the faster ones
        keep up without it."""
        if not self._sizing.keeps_up(self._pool.faster_power(), lane.mean_size):
            return -math.inf
        rows = self._batch_size.rows_now(lane, self.running_batches)
        rows = max(1, min(rows, lane.rows))
        batch_s = self._costs.predict(rows, lane.mean_size) or 0.0
        oldest = lane.oldest()
        assert oldest is not None
        waited_s = now - oldest.arrived_at
        faster_at = self._pool.better_at(now, batch_s, -(-lane.rows // rows), waited_s)
        return min(faster_at, now + self._slack_s(queue, lane, oldest, now))

    def _hold_for_returns(
        self, queue: Queue, lane: Lane, now: float, idle_since: float
    ) -> Fire | HoldUntil:
        """For callers that ask again after their answers: as long as a batch saved is worth."""
        if self._hold_arrivals == self._arrivals.count and now < self._hold.until:
            return self._hold  # no item came meanwhile
        wait = self.linger_cap_s = self._return_wait(queue, lane, now, idle_since)
        if wait <= LEAST_WAIT_S:
            lingered = idle_since < now
            return Fire(lane, FireReason.LINGER if lingered else FireReason.IDLE)
        self._hold_arrivals = self._arrivals.count
        self._hold = HoldUntil(now + wait)
        return self._hold

    def _return_wait(self, queue: Queue, lane: Lane, now: float, idle_since: float) -> float:
        missing = self._arrivals.most_at_once - lane.items - self.running_items
        oldest = lane.oldest()
        saved_s, together_s = self._saved_s(lane, missing)
        if missing <= 0 or saved_s <= 0.0 or oldest is None:
            return 0.0
        idle_s, max_wait_s = now - idle_since, self._max_wait_s
        slack_s = self._slack_s(queue, lane, oldest, now)
        is_much = saved_s >= WORTH_A_WAIT * together_s
        soon = SOON if is_much else SOON_FOR_LITTLE
        # An item that just missed a batch waits no longer than that one ran: it sets the p99.
        patient_s = saved_s - (now - oldest.arrived_at) if is_much else 0.0
        most_s = min(min(soon * saved_s, max_wait_s) - idle_s, slack_s)
        patient_s = min(patient_s, max_wait_s - idle_s, slack_s)
        return self._arrivals.return_wait(
            now, Held(lane.items, missing, most_s, patient_s, saved_s)
        )

    def _saved_s(self, lane: Lane, joining: int) -> tuple[float, float]:
        """What is saved where so many join instead of running by themselves, and what all of them
        take together; 0 where it is not known."""
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
        seconds = self._costs.predict(lane.rows + 1, lane.mean_size) or 0.0
        return due - now - seconds * (1.0 + max(0.0, self._costs.error_at(LIKELY)))


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
