"""Which items share a batch: takes them from one lane, up to every limit in force.

If sizes differ, a plan chooses them (`by_plan`). Otherwise they leave in order: if a higher class
waits, items of a lower one join only while they delay no higher item; a class that would starve
takes its share first; an item that must leave now to be in time goes before others. Items that
cannot be answered in time are dropped (`lateness`).
"""

import math
from collections.abc import Sequence

from headway.core.batching.by_plan import PlannedComposer
from headway.core.batching.composition import Composition
from headway.core.batching.filling import Filling
from headway.core.batching.lateness import Lateness
from headway.core.batching.planning import Limits, shelf_of
from headway.core.costs import Costs
from headway.core.faults.fitting import Fitting
from headway.core.items import FireReason, Item
from headway.core.policy import Compose, Firing, Order, Policy
from headway.core.queueing.deadlines import DOUBTFUL_PERCENTILE, HOPELESS_PERCENTILE
from headway.core.queueing.priority import FLOOR
from headway.core.queueing.queue import FairLane, Line, Queue


class Composer:
    def __init__(self, policy: Policy, costs: Costs, queue: Queue, fitting: Fitting) -> None:
        self._is_auto = policy.firing is Firing.AUTO
        self._is_packed = policy.compose is Compose.PACKED
        self._costs = costs
        self._queue = queue
        self._limits = limits = Limits(
            policy.max_batch_size,
            policy.max_batch_cost or math.inf,
            policy.batch_sizes,
            policy.pad_sizes,
            fitting,
        )
        self._max_rows = policy.max_batch_size
        self._fitting = fitting
        self._lateness = Lateness(policy, costs, queue, limits)
        self._filling = Filling(costs, policy.workers)
        self._planned: PlannedComposer | None = None
        if may_plan(policy):
            self._planned = PlannedComposer(
                policy, costs, queue, limits, self._lateness, self._filling
            )

    def compose(
        self, lane: FairLane, now: float, *, cap_rows: int, is_flooded: bool = False
    ) -> Composition:
        """Take the next batch out of the lane.

        `cap_rows`: the most rows that pay; `is_flooded`: more items arrive than can be served. If
        the batch is empty and late items were dropped, ask again.
        """
        is_mixed = not self._queue.has_one_class
        size = _common_size(lane)
        if size is None and self._planned is not None:
            made = self._planned.compose(lane, now)
        else:
            # In a flood, an item that will probably be late gives its place to one that will
            # probably not. Otherwise it stays: there is room for the other items as well.
            is_short = is_flooded and lane.rows > cap_rows
            error = self._costs.error_at(DOUBTFUL_PERCENTILE if is_short else HOPELESS_PERCENTILE)
            made = self._in_order(
                lane, now, cap_rows=cap_rows, size=size, error=error, is_mixed=is_mixed
            )
        if made.items and is_mixed:
            self._queue.ageing.served(made.class_rows)
            if self._is_auto:
                self._filling.served(made.class_rows, made.size, now)
        return made

    def padded_rows(self, rows: int) -> int:
        return self._limits.padded_rows(rows)

    def run_size(self, items: Sequence[Item], rows: int, size: int) -> int:
        """The size that the model runs for each row: items are padded to it, or packed."""
        if self._is_packed and size:
            return -(-sum(item.rows * item.size for item in items) // rows)
        return self._limits.padded_size(size)

    # ---- in order

    def _in_order(
        self,
        lane: FairLane,
        now: float,
        *,
        cap_rows: int,
        size: int | None,
        error: float,
        is_mixed: bool,
    ) -> Composition:
        """`size`: of all items of the lane; None: they differ. `is_mixed`: several classes wait."""
        lateness, queue = self._lateness, self._queue
        made = Composition(lateness.allowed_rows(min(lane.rows, cap_rows)), error=error)
        is_urged = self._is_auto and lateness.is_possible
        if is_urged:
            made.late_before = lateness.before(lane, now, made.goal, made.error)
            if lateness.drop(lane, made, now) or not lane.items:
                return made
        if is_mixed:
            aged = queue.aged_line(lane, now)
            if aged is not None and aged is not lane.top:
                self._take_aged(aged, made, size)
        if is_urged and queue.hurries and queue.has_deadlines:
            self._take_urgent(lane, made, size)
        for line in lane.lines:
            if line.items and made.rows < made.goal:
                self._take_line(lane, line, made, size, now)
        made.left_rows = lane.rows
        return made

    def _take_line(
        self, lane: FairLane, line: Line, made: Composition, size: int | None, now: float
    ) -> None:
        """Fill the batch from one class, in order, while that does not delay higher classes."""
        goal = made.goal
        above = sum(made.class_rows[: line.priority])
        if self._is_auto and (above or self._filling.is_used):
            goal = self._filling.rows_with(line.priority, above, size or lane.mean_size, now)
            goal = max(goal, self._limits.padded_rows(above)) if above else goal
            goal = min(made.goal, goal + made.rows - above)
        if size is None:
            taken = self._queue.take_while(line, lambda item: self._fits(made, item, goal))
            made.items += taken
            made.class_rows[line.priority] += sum([item.rows for item in taken])
            return
        limit = self._uniform_limit(size) if size else self._max_rows
        most = (goal if goal < limit else limit) - made.rows
        if lane.rows == lane.items:
            most = max(most, 0 if made.items else 1)
            taken = self._queue.take(line, most) if most else []
            made.add(taken, line.priority, len(taken))
            next_rows = 1
        else:
            most = max(most, 0 if made.items else line.head().rows)
            made.add(self._queue.take(line, most), line.priority)
            next_rows = line.head().rows if line.items else 0
        made.size = size
        if line.items and made.stopped_by is None:
            made.stopped_by = self._stopped_by(made, next_rows, limit)

    def _take_aged(self, line: Line, made: Composition, size: int | None) -> None:
        """A class that would starve takes its share first."""
        share = max(1, made.goal // FLOOR)
        if size is not None:
            first = line.head()
            made.add(self._queue.take(line, max(share, first.rows)), line.priority)
            made.size = size
        else:
            taken = self._queue.take_while(
                line, lambda item: made.rows < share and self._fits(made, item, made.goal)
            )
            made.items += taken
            made.class_rows[line.priority] += sum(item.rows for item in taken)

    def _take_urgent(self, lane: FairLane, made: Composition, size: int | None) -> None:
        """Take items that must leave now to be in time, before older ones."""
        line = lane.top
        if lane.rows <= made.goal - made.rows:
            return
        batch_s = self._lateness.batch_s(made.goal, size or lane.mean_size)
        for item in line.urgent(made.late_before + batch_s, made.goal):
            limit = min(made.goal, self._uniform_limit(size)) if size else made.goal
            if made.rows + item.rows > limit or (made.items and self._obstacle(made, item)):
                return
            self._queue.take_one(item)
            made.items.append(item)
            made.class_rows[line.priority] += item.rows
            self._count(made, item)

    def _fits(self, made: Composition, item: Item, goal: int) -> bool:
        """Add the item's figures to the batch, if no limit keeps it out."""
        if made.rows:
            obstacle = self._obstacle(made, item)
            if obstacle is not None or made.rows + item.rows > goal:
                made.stopped_by = made.stopped_by or obstacle
                return False
        self._count(made, item)
        return True

    def _count(self, made: Composition, item: Item) -> None:
        made.rows += item.rows
        made.total += item.rows * item.size
        if item.size > made.size:
            made.size = item.size
            made.size_cap = self._costs.best_rows(item.size)

    # ---- limits

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
        if self._cost_with(made, item, rows, size) > self._limits.max_cost:
            return FireReason.BUDGET
        if self._fitting.limits and rows > self._fitting.rows_at(self._limits.padded_size(size)):
            return FireReason.BUDGET
        if not self._is_auto or self._is_packed:
            return None
        cap = made.size_cap if size == made.size else self._costs.best_rows(size)
        return FireReason.KNEE if rows > cap else None

    def _cost_with(self, made: Composition, item: Item, rows: int, size: int) -> int:
        if self._is_packed:
            return made.total + item.rows * item.size
        return self._limits.padded_rows(rows) * self._limits.padded_size(size)

    def _stopped_by(self, made: Composition, next_rows: int, limit: int) -> FireReason | None:
        """The limit that stops `next_rows` more rows from joining; None if the goal is reached."""
        rows = made.rows + next_rows
        if rows > self._max_rows and made.rows < self._max_rows:
            return FireReason.FULL
        if limit < rows <= made.goal:
            is_budget = self._is_packed or rows > self._limits.rows_at(made.size)
            return FireReason.BUDGET if is_budget else FireReason.KNEE
        return FireReason.KNEE if made.rows < made.goal < rows else None

    def _uniform_limit(self, size: int) -> int:
        """The most rows of a batch in which all items have `size`."""
        if self._is_packed:
            most = int(min(self._max_rows, self._limits.max_cost // size))
            return min(most, self._fitting.rows_at(size)) if self._fitting.limits else most
        most = self._limits.rows_at(size)
        return min(most, self._costs.best_rows(size)) if self._is_auto else most


def may_plan(policy: Policy) -> bool:
    """Does a plan choose by size which items share a batch?"""
    return policy.firing is Firing.AUTO and policy.compose in (Compose.DP, Compose.SORT)


def queue_for(policy: Policy) -> Queue:
    has_shelves = may_plan(policy) or policy.order is Order.SHORTEST  # items are kept by size
    return Queue(
        order=policy.order,
        weights=policy.tenant_weights,
        full_rows=policy.max_batch_size,
        ageing_s=policy.ageing_s,
        # An SLO checks every item for lateness, and fixed batch sizes limit how many leave.
        may_be_plain=policy.slo_s is None and not policy.batch_sizes,
        shelf_of=shelf_of(policy.pad_sizes) if has_shelves else None,
    )


def _common_size(lane: FairLane) -> int | None:
    """The size of all items of the lane; None: they differ."""
    if not lane.size_rows:
        return 0
    largest = 0
    for line in lane.lines:
        if len(line.shelves) > 1:
            return None
        for shelf in line.shelves.values():
            largest = max(largest, shelf.largest)
    return largest if lane.size_rows == lane.rows * largest else None
