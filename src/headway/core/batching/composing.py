"""Who goes together: takes items from one lane, in order, up to every limit in force.

Drops what cannot be answered in time instead of shrinking the batch for it: a batch that shrinks
to save its head costs more per item exactly when capacity is short, and never recovers.
"""

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.batching.planning import (
    Limits,
    Part,
    Plan,
    fills,
    guessed_plan,
    plan,
    sorted_chunks,
    take,
)
from headway.core.costs import Costs
from headway.core.faults.memory import Fitting
from headway.core.items import FireReason, Item, Priority
from headway.core.policy import Compose, Firing, Order, Policy
from headway.core.queueing.queue import AGED_SHARE, Lane, Queue

MOST_PLANNED = 1024  # of those who wait are looked at for one batch
SORTED_BATCHES = 4  # likewise, where they are only sorted
STALE = 1 / 8  # of those who wait have come since: a plan is as good as new before that
FILLED = 1.25  # of its planned time: how long a batch may take with lower classes in it
HOPELESS = 10.0  # percent of batches run so fast: who would be late even then has no chance
DOUBTFUL = 85.0  # who is in time in so many percent of cases has a good chance
_CLASSES = tuple(Priority)
_arrival = operator.itemgetter(1, 0)


@dataclass(slots=True)
class Composition:
    """A batch in the making."""

    goal: int  # rows
    late_before: float  # whoever is due before this moment would be late, leaving now
    alone_s: float  # what one item takes: who had less than that was late from the start
    slo_s: float
    error: float = 0.0  # batches are reckoned to take so much longer than predicted
    left_rows: int = 0  # still in the lane
    items: list[Item] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    total: int = 0  # rows × size of each, which is all that a packed batch costs
    size_cap: int = 0  # the rows that pay at that size
    stopped_by: FireReason | None = None  # the limit that kept somebody out, if one did
    late: list[Item] = field(default_factory=list)  # left out: no answer could be in time

    def is_late(self, item: Item) -> bool:
        """Would it miss its deadline or the SLO, leaving now, when it could have met it before?

        What nobody could have met in time runs all the same while it is not over: the estimate may
        be wrong, and a model whose every item is refused never shows that it got faster.
        """
        due = min(item.deadline, item.arrived_at + self.slo_s)
        return due < self.late_before and due - item.arrived_at >= self.alone_s


class _Ahead(NamedTuple):
    """A plan, and whom it was made for."""

    plan: Plan
    lane: Lane
    priority: Priority
    pushed: int  # the lane's, then


class Composer:
    def __init__(self, policy: Policy, costs: Costs, queue: Queue, fitting: Fitting) -> None:
        self._is_auto = policy.firing is Firing.AUTO
        self._max_rows = policy.max_batch_size
        self._max_cost = policy.max_batch_cost or math.inf
        self._slo_s = math.inf if policy.slo_s is None else policy.slo_s
        self._ageing_s = policy.ageing_s
        self._batch_sizes = policy.batch_sizes
        self._costs = costs
        self._queue = queue
        self._fitting = fitting
        self._is_packed = policy.compose is Compose.PACKED
        self._sorts = policy.compose is Compose.SORT
        self._may_plan = (
            self._is_auto
            and policy.order is Order.FIFO
            and policy.compose in (Compose.DP, Compose.SORT)
        )
        self._most = SORTED_BATCHES * self._max_rows if self._sorts else MOST_PLANNED
        self._limits = Limits(
            policy.max_batch_size, self._max_cost, policy.batch_sizes, policy.pad_sizes, fitting
        )
        self._ahead: _Ahead | None = None

    def compose(
        self,
        lane: Lane,
        now: float,
        *,
        cap_rows: int,
        aged_turn: bool,
        is_flooded: bool = False,
    ) -> Composition:
        """Take the next batch out of the lane.

        `cap_rows`: no more rows than this pay; `aged_turn`: where a batch is too small to share,
        this one is for the longest waiting; `is_flooded`: more comes than can be served.
        """
        if self._may_plan and lane.size_rows:
            planned = self._compose_planned(lane, now, aged_turn=aged_turn)
            if planned is not None:
                return planned
        goal = self._allowed_rows(min(lane.rows, cap_rows))
        # In a flood the place of an item with a small chance goes to one with a good chance.
        # Otherwise the others have their turn all the same, and it costs nobody anything.
        is_short = is_flooded and lane.rows > cap_rows
        error = self._costs.error_at(DOUBTFUL if is_short else HOPELESS)
        goal = self._timely_rows(lane, now, goal, error)
        late_before = self._late_before(lane, now, goal, error)
        made = Composition(goal, late_before, self._alone_s(lane), self._slo_s, error)
        oldest, head = lane.oldest(), lane.head()
        assert oldest is not None
        assert head is not None, "compose() from an empty lane"
        # Where the head is the oldest, it leaves anyway.
        if now - oldest.arrived_at > self._ageing_s and head[3] is not oldest:
            self._take_aged(lane, now, made, self._aged_share(head[3], goal, aged_turn=aged_turn))
        made.left_rows = lane.rows
        aged, aged_late = len(made.items), len(made.late)
        for priority in _CLASSES:
            if not self._take_class(lane, priority, made, now):
                break
        self._queue.served(made.items[aged:] + made.late[aged_late:], lane)
        return made

    # ---- where sizes differ

    def needs_plan(self, lane: Lane) -> bool:
        """Would a batch of this lane have to wait for its plan?"""
        head = lane.head() if self._may_plan and lane.size_rows else None
        return head is not None and not self._is_planned(lane, head[3].priority)

    def plan_ahead(self, lane: Lane) -> None:
        """The workers are busy, and this lane is next: make its plan now rather than then."""
        head = lane.head()
        assert head is not None
        priority = head[3].priority
        self._plan(lane, priority, lane.next_up(priority, self._most))

    def _is_planned(self, lane: Lane, priority: Priority) -> bool:
        ahead = self._ahead
        return (
            ahead is not None
            and ahead.lane is lane
            and ahead.priority is priority
            and lane.pushed - ahead.pushed <= STALE * lane.items
        )

    def _plan(self, lane: Lane, priority: Priority, waiting: list[Item]) -> Plan:
        if self._sorts:
            made = sorted_chunks(waiting, self._limits)
        else:
            made = plan(waiting, self._costs, self._limits) or guessed_plan(waiting, self._limits)
        self._ahead = _Ahead(made, lane, priority, lane.pushed)
        return made

    def _part(self, lane: Lane, anchor: Item, waiting: list[Item]) -> Part:
        """Who may go with the anchor."""
        ahead = self._ahead
        if ahead is not None and self._is_planned(lane, anchor.priority):
            return ahead.plan.part_of(anchor.size)
        return self._plan(lane, anchor.priority, waiting).part_of(anchor.size)

    def _compose_planned(self, lane: Lane, now: float, *, aged_turn: bool) -> Composition | None:
        """The batch that wastes least around whoever is next. None: in order will do."""
        late: list[Item] = []
        while lane.items > len(late):
            anchor, waiting = self._candidates(lane, now, aged_turn=aged_turn)
            if lane.size_rows == lane.rows * anchor.size:  # all are of one size
                if late:
                    break  # refuse them first; whoever asks next composes in order
                return None
            part = self._part(lane, anchor, waiting)
            made = self._in_time(take(waiting, anchor, part, self._limits), now)
            late += made.late
            if made.items:
                self._fill(lane, anchor.priority, made, now)
                return self._taken(lane, made, late)
            for item in made.late:
                del self._queue.live[item.id]
        return self._taken(lane, Composition(0, now, 0.0, self._slo_s), late)

    def _candidates(self, lane: Lane, now: float, *, aged_turn: bool) -> tuple[Item, list[Item]]:
        """Whose turn it is, and who may go along: on the turn of the aged, their own class."""
        oldest, head = lane.oldest(), lane.head()
        assert oldest is not None
        assert head is not None, "compose() from an empty lane"
        most = self._most
        if aged_turn and now - oldest.arrived_at > self._ageing_s:
            anchor, waiting = oldest, lane.lines[oldest.priority].first(most)
        else:
            anchor, waiting = head[3], lane.next_up(head[3].priority, most)
        if anchor not in waiting:
            waiting.insert(0, anchor)
        return anchor, waiting

    def _in_time(self, chosen: list[Item], now: float) -> Composition:
        """The chosen without those who would be late: they are dropped, the batch goes on."""
        rows, size = sum(item.rows for item in chosen), max(item.size for item in chosen)
        made = Composition(rows, -math.inf, 0.0, self._slo_s)
        if self._slo_s < math.inf or self._queue.has_deadlines:
            made.late_before = now + self._batch_s(rows, size) - 1e-9
        for item in chosen:
            if self._is_late(made, item):
                made.late.append(item)
            else:
                made.items.append(item)
                made.rows += item.rows
                made.size = max(made.size, item.size)
        return made

    def _batch_s(self, rows: int, size: int) -> float:
        rows, size = self.padded_rows(rows), self._limits.padded_size(size)
        seconds = self._costs.predict(rows, size) or 0.0
        return seconds * (1.0 + self._costs.error_at(HOPELESS))

    def _is_late(self, made: Composition, item: Item) -> bool:
        """As `Composition.is_late`; what one item takes alone depends on its size."""
        due = min(item.deadline, item.arrived_at + self._slo_s)
        if due >= made.late_before:
            return False
        return due - item.arrived_at >= self._batch_s(item.rows, item.size)

    def _fill(self, lane: Lane, priority: Priority, made: Composition, now: float) -> None:
        """Lower classes come along where that delays nobody much, and nobody beyond his time."""
        planned_s = self._batch_s(made.rows, made.size)
        due = min(min(item.deadline, item.arrived_at + self._slo_s) for item in made.items)
        longest_s = min(FILLED * planned_s, max(planned_s, due - now))
        for lower in _CLASSES[priority + 1 :]:
            waiting = lane.lines[lower].first(self._max_rows)
            company = sum(item.rows for item in waiting)
            for item in waiting:
                seconds = fills(
                    item,
                    made.rows,
                    made.size,
                    company=company,
                    costs=self._costs,
                    limits=self._limits,
                )
                if seconds is None or seconds > longest_s or self._is_late(made, item):
                    continue
                made.items.append(item)
                made.rows += item.rows

    def _taken(self, lane: Lane, made: Composition, late: list[Item]) -> Composition:
        queue = self._queue
        leaving = {item.id for item in made.items}
        for priority in _CLASSES:
            lead = lane.lines[priority].head()
            if lead is not None and lead[1] in leaving:
                queue.lead_leaves(priority, lead)
        for item in (*made.items, *made.late):
            queue.live.pop(item.id, None)
        made.items.sort(key=_arrival)
        made.late = late
        queue.served([*made.items, *late], lane)
        made.left_rows = lane.rows
        if made.left_rows:
            made.stopped_by = self._why_no_more(made)
        return made

    def _why_no_more(self, made: Composition) -> FireReason:
        if made.rows >= self._max_rows:
            return FireReason.FULL
        if made.rows >= self._limits.rows_at(made.size):
            return FireReason.BUDGET
        return FireReason.KNEE

    # ---- limits

    def _allowed_rows(self, rows: int) -> int:
        """With fixed batch sizes: pad up, or run fewer, whichever is cheaper for each row."""
        if not self._batch_sizes:
            return rows
        up = next(size for size in self._batch_sizes if size >= rows)
        if up == rows:
            return rows
        down = max((size for size in self._batch_sizes if size <= rows), default=None)
        cost_up = self._costs.predict(up)
        cost_down = self._costs.predict(down) if down else None
        if down is None or cost_up is None or cost_down is None:
            return rows
        return rows if cost_up / rows <= cost_down / down else down

    def padded_rows(self, rows: int) -> int:
        return self._limits.padded_rows(rows) if self._batch_sizes else rows

    def _late_before(self, lane: Lane, now: float, rows: int, error: float) -> float:
        if not self._is_auto or (self._slo_s == math.inf and not self._queue.has_deadlines):
            return -math.inf  # the textbook rules drop nobody before time
        seconds = self._costs.predict(rows, lane.mean_size)
        if seconds is None:
            return -math.inf  # nothing is known: nobody is late
        return now + seconds * (1.0 + error) - 1e-9

    def _timely_rows(self, lane: Lane, now: float, rows: int, error: float) -> int:
        """The most rows, the newest ones, that a batch of just so many answers in time.

        In a flood most of the queue is too old to be saved, and those who are not may be fewer
        than a full batch: a batch of their number is shorter, and saves more of them.
        """
        oldest = lane.oldest()
        if self._slo_s == math.inf or oldest is None:
            return rows
        late_before = self._late_before(lane, now, rows, error)
        if late_before == -math.inf or oldest.arrived_at + self._slo_s >= late_before:
            return rows
        arrivals, each = lane.arrivals, lane.rows / lane.items
        low, high = 0, min(len(arrivals), int(rows / each))
        while low < high:
            count = (low + high + 1) // 2
            batch_rows = min(rows, max(1, round(count * each)))
            due = arrivals[-count].arrived_at + self._slo_s
            if due >= self._late_before(lane, now, batch_rows, error):
                low = count
            else:
                high = count - 1
        return min(rows, max(1, round(low * each)))

    def _alone_s(self, lane: Lane) -> float:
        return self._costs.predict(1, lane.mean_size) or 0.0

    def _obstacle(self, made: Composition, item: Item) -> FireReason | None:
        """The limit that keeps the item out of the batch, if one does."""
        rows = made.rows + item.rows
        if rows > self._max_rows:
            return FireReason.FULL
        if rows > made.goal:
            return FireReason.KNEE
        size = item.size if item.size > made.size else made.size
        if not size:
            return None
        if self._cost_with(made, item, rows, size) > self._max_cost:
            return FireReason.BUDGET
        if self._fitting.limits and rows > self._fitting.rows_at(size):
            return FireReason.BUDGET
        if not self._is_auto or self._is_packed:
            return None
        cap = made.size_cap if size == made.size else self._costs.best_rows(size)
        return FireReason.KNEE if rows > cap else None

    def _cost_with(self, made: Composition, item: Item, rows: int, size: int) -> int:
        if self._is_packed:
            return made.total + item.rows * item.size
        return self.padded_rows(rows) * self._limits.padded_size(size)

    def run_size(self, items: Sequence[Item], rows: int, size: int) -> int:
        """What a batch of these costs for each of its rows: what the model pads them to."""
        if self._is_packed and size:
            return -(-sum(item.rows * item.size for item in items) // rows)
        return self._limits.padded_size(size)

    # ---- taking

    def _take_class(self, lane: Lane, priority: Priority, made: Composition, now: float) -> bool:
        """Fill up from one class, in order. False: the batch is complete."""
        line, queue = lane.lines[priority], self._queue
        lead = line.head()
        if lead is None:
            return True
        queue.lead_leaves(priority, lead)
        if made.late_before == -math.inf and not lane.size_rows and not made.size:
            singles = line.pop_singles(made.goal - made.rows)  # no other limit can keep them out
            made.items += singles
            made.rows += len(singles)
            made.left_rows -= len(singles)
        while made.rows < made.goal:
            entry = line.head()
            if entry is None:
                return True
            item = entry[3]
            if made.late_before > -math.inf and made.is_late(item):
                queue.pop_head(line, entry)
                made.late.append(item)
                made.left_rows -= item.rows
                self._shrink(lane, made, now)
                continue
            if made.items:
                obstacle = self._obstacle(made, item)
                if obstacle is not None:
                    made.stopped_by = made.stopped_by or obstacle
                    return True  # its class waits: order holds. A lower class may fill the rest
            queue.pop_head(line, entry)
            made.left_rows -= item.rows
            self._add(made, item)
        return False

    def _add(self, made: Composition, item: Item) -> None:
        made.items.append(item)
        made.rows += item.rows
        made.total += item.rows * item.size
        if item.size > made.size:
            made.size = item.size
            made.size_cap = self._costs.best_rows(item.size)

    def _shrink(self, lane: Lane, made: Composition, now: float) -> None:
        """One less is left. Where that makes the batch smaller, the others are less late."""
        possible = made.rows + made.left_rows
        if possible < made.goal:
            made.goal = self._allowed_rows(max(possible, 1))
            made.late_before = self._late_before(lane, now, made.goal, made.error)

    def _aged_share(self, head: Item, goal: int, *, aged_turn: bool) -> int:
        """Rows kept for the aged: but the head must still fit, except when it is their turn."""
        share = goal // AGED_SHARE
        if head.rows > goal - share:
            share = 0
        return share or (1 if aged_turn else 0)

    def _take_aged(self, lane: Lane, now: float, made: Composition, share: int) -> None:
        """Those who have waited too long take their share first, whatever their class."""
        for item in list(_waited_since(lane, now - self._ageing_s, share)):
            if made.rows >= share or (made.items and self._obstacle(made, item)):
                return
            self._queue.remove(item.id, served=True)
            if made.is_late(item):
                made.late.append(item)
            else:
                self._add(made, item)


def _waited_since(lane: Lane, moment: float, most: int) -> Iterator[Item]:
    for taken, item in enumerate(lane.in_arrival_order()):
        if item.arrived_at >= moment or taken == most:
            return
        yield item
