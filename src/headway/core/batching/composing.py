"""Which items share a batch: takes them from one lane, in order, up to every limit in force.

Drops what cannot be answered in time instead of shrinking the batch for it: a batch that shrinks
to save its head costs more per item exactly when capacity is short, and never recovers.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.core.batching.filling import Filling
from headway.core.batching.planning import Limits, Part, Planner, fills, sorted_chunk
from headway.core.costs import Costs
from headway.core.faults.fitting import Fitting
from headway.core.items import FireReason, Item, Priority
from headway.core.policy import Compose, Firing, Order, Policy
from headway.core.queueing.priority import FLOOR
from headway.core.queueing.queue import FairLane, Line, Queue

HOPELESS = 10.0  # percent of batches run so fast: an item that is late even then has no chance
DOUBTFUL = 85.0  # an item in time in so many percent of cases has a good chance
MOST_DROPPED = 32  # late items in one decision; the next call drops more
_CLASSES = tuple(Priority)
_rows, _size = operator.attrgetter("rows"), operator.attrgetter("size")
_deadline, _arrived = operator.attrgetter("deadline"), operator.attrgetter("arrived_at")


@dataclass(slots=True)
class Composition:
    """A batch in the making."""

    goal: int = 0  # rows
    late_before: float = -math.inf  # items due before this would be late, leaving now
    error: float = 0.0  # batches are reckoned to take so much longer than predicted
    items: list[Item] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    total: int = 0  # rows × size of each, which is all that a packed batch costs
    size_cap: int = 0  # the rows that pay at that size
    class_rows: list[int] = field(default_factory=lambda: [0 for _ in _CLASSES])
    left_rows: int = 0  # in the lane
    stopped_by: FireReason | None = None  # the limit that kept somebody out, if one did
    late: list[Item] = field(default_factory=list)  # dropped: no answer could be in time

    def add(self, items: Sequence[Item], priority: Priority, rows: int | None = None) -> None:
        """`rows`: theirs, where that is known."""
        if rows is None:
            rows = sum(map(_rows, items))
        self.items += items
        self.rows += rows
        self.class_rows[priority] += rows


class Composer:
    def __init__(self, policy: Policy, costs: Costs, queue: Queue, fitting: Fitting) -> None:
        self._is_auto = policy.firing is Firing.AUTO
        self._max_rows = policy.max_batch_size
        self._max_cost = policy.max_batch_cost or math.inf
        self._slo_s = math.inf if policy.slo_s is None else policy.slo_s
        self._batch_sizes = policy.batch_sizes
        self._costs = costs
        self._queue = queue
        self._fitting = fitting
        self._is_packed = policy.compose is Compose.PACKED
        self._sorts = policy.compose is Compose.SORT
        self._may_plan = may_plan(policy)
        self._limits = Limits(
            policy.max_batch_size, self._max_cost, policy.batch_sizes, policy.pad_sizes, fitting
        )
        self._is_padded = bool(policy.batch_sizes or policy.pad_sizes)
        self._planner = Planner(costs, self._limits)
        self._filling = Filling(costs, policy.workers)

    def compose(
        self, lane: FairLane, now: float, *, cap_rows: int, is_flooded: bool = False
    ) -> Composition:
        """Take the next batch out of the lane.

        `cap_rows`: no more rows than this pay; `is_flooded`: more comes than can be served. No
        items, but some that are late: ask again.
        """
        is_mixed = not self._queue.has_one_class
        size = _common_size(lane)
        if size is None and self._may_plan:
            made = self._compose_planned(lane, now)
        else:
            # In a flood the place of an item with a small chance goes to one with a good chance.
            # Otherwise the others have their turn all the same, and it costs nobody anything.
            is_short = is_flooded and lane.rows > cap_rows
            error = self._costs.error_at(DOUBTFUL if is_short else HOPELESS)
            made = self._compose_in_order(lane, now, cap_rows, size, error)
        if made.items and is_mixed:
            self._queue.ageing.served(made.class_rows)
            if self._is_auto:
                self._filling.served(made.class_rows, made.size, now)
        return made

    # ---- where sizes differ

    def _compose_planned(self, lane: FairLane, now: float) -> Composition:
        """The batch around the next item that wastes least."""
        made = Composition()
        is_urged = self._slo_s < math.inf or self._queue.has_deadlines
        if is_urged:
            made.late_before = now + self._batch_s(1, min(lane.top.shelves)) - 1e-9
            if self._drop_late(lane, made) or not lane.items:
                return made
        line = self._queue.aged_line(lane, now) or lane.top
        anchor = self._anchor(line, lane, now)
        first_due = line.due.not_before() if is_urged else math.inf
        self._take_part(line, anchor, made)
        if is_urged:
            made.late_before = now + self._batch_s(made.rows, made.size) - 1e-9
            if first_due < made.late_before:
                self._sort_out_late(made)
        if made.items and lane.items > line.items:
            self._fill_planned(lane, line, made, now)
        made.left_rows = lane.rows
        if made.left_rows:
            made.stopped_by = self._why_no_more(made)
        return made

    def _anchor(self, line: Line, lane: FairLane, now: float) -> Item | None:
        """Whose turn it is; None: that of the head."""
        if line is not lane.top:
            return line.oldest()
        queue = self._queue
        if queue.has_deadlines and queue.hurries:
            urgent = queue.urgent(line, now + 2 * self._batch_s(self._max_rows, lane.mean_size), 1)
            return urgent[0] if urgent else None
        return None

    def _take_part(self, line: Line, anchor: Item | None, made: Composition) -> None:
        """The anchor and those of its part of the plan, in their order, up to every limit."""
        queue, shelves = self._queue, line.shelves
        head = queue.head(line)
        anchor = anchor or head
        size = queue.shelf_of(anchor)
        cap = None if self._sorts else self._planner.most_alone(size, shelves[size].rows)
        inside = [size]
        if cap is None:
            rows_of = {each: shelf.rows for each, shelf in shelves.items()}
            part = self._part_of(size, rows_of)
            inside = [each for each in rows_of if part.low < each <= part.high]
            available = sum([rows_of[each] for each in inside])
            largest = max([shelves[each].largest for each in inside])
            most = min(available, self._limits.rows_at(largest))
            cap = part.cap(most) if most <= self._max_rows else most
        cap = max(cap, anchor.rows)
        if anchor is not head:
            queue.take_one(anchor)
            made.add((anchor,), line.priority)
            inside = [each for each in inside if each in shelves]
        if inside and cap > made.rows:
            is_single = line.rows == line.items
            taken = queue.take(line, cap - made.rows, inside)
            made.add(taken, line.priority, len(taken) if is_single else None)
        made.size = max(map(_size, made.items))

    def _part_of(self, size: int, rows_of: dict[int, int]) -> Part:
        if self._sorts:
            return sorted_chunk(size, rows_of, self._limits)
        return self._planner.part_of(size, rows_of)

    def _sort_out_late(self, made: Composition) -> None:
        """Items of the batch that would be late are dropped; the batch goes on without them."""
        late = [item for item in made.items if self._is_late(made, item)]
        if not late:
            return
        ids = {item.id for item in late}
        made.items = [item for item in made.items if item.id not in ids]
        made.late += late
        made.rows = sum(item.rows for item in made.items)
        made.size = max((item.size for item in made.items), default=0)
        for item in late:
            self._queue.pay_back(item)
            made.class_rows[item.priority] -= item.rows

    def _is_late(self, made: Composition, item: Item) -> bool:
        """Would it miss its deadline or the SLO, leaving now, when it could have met it before?

        What nobody could have met in time runs all the same while it is not over: the estimate may
        be wrong, and a model whose every item is refused never shows that it got faster.
        """
        due = min(item.deadline, item.arrived_at + self._slo_s)
        if due >= made.late_before:
            return False
        return due - item.arrived_at >= self._batch_s(item.rows, item.size)

    def _fill_planned(self, lane: FairLane, line: Line, made: Composition, now: float) -> None:
        """Lower classes come along where that delays nobody."""
        lower = [each for each in lane.lines[line.priority + 1 :] if each.items]
        if not lower:
            return
        first_deadline, first_arrived = (
            min(map(_deadline, made.items)),
            min(map(_arrived, made.items)),
        )
        due = min(first_deadline, first_arrived + self._slo_s)
        for each in lower:
            most = self._filling.rows_with(each.priority, made.rows, made.size, now)
            most = min(most, self._limits.rows_at(made.size))
            while most > made.rows and now + self._batch_s(most, made.size) > due:
                most = made.rows + (most - made.rows) // 2
            self._fill_from(each, most, made)

    def _fill_from(self, line: Line, most: int, made: Composition) -> None:
        """Whole shelves at once, the longest first: they waste least."""
        shelves, whole, rows = line.shelves, [], made.rows
        part: int | None = None  # the shelf that is taken from last, and not as a whole
        for size in sorted(shelves, reverse=True):
            if size > made.size:
                continue
            if rows >= most:
                break
            company = shelves[size].rows
            if not self._fills(size, company, rows, made):
                continue
            if company > most - rows:
                part = size
                break
            whole.append(size)
            rows += company
        if whole:
            made.add(self._queue.take(line, rows - made.rows, whole), line.priority)
        if part is not None:
            made.add(self._queue.take(line, most - rows, (part,)), line.priority)

    def _fills(self, size: int, company: int, rows: int, made: Composition) -> bool:
        return fills(
            size,
            company,
            rows=rows,
            batch_size=made.size,
            costs=self._costs,
            limits=self._limits,
        )

    def _why_no_more(self, made: Composition) -> FireReason:
        if made.rows >= self._max_rows:
            return FireReason.FULL
        if made.rows >= self._limits.rows_at(made.size):
            return FireReason.BUDGET
        return FireReason.KNEE

    # ---- in order

    def _compose_in_order(
        self, lane: FairLane, now: float, cap_rows: int, size: int | None, error: float
    ) -> Composition:
        """`size`: of all of them, if it is one."""
        made = Composition(self._allowed_rows(min(lane.rows, cap_rows)), error=error)
        is_urged = self._is_auto and (self._slo_s < math.inf or self._queue.has_deadlines)
        if is_urged:
            made.goal = self._timely_rows(lane, now, made)
            made.late_before = self._late_before(lane, now, made.goal, error)
            if self._drop_late(lane, made, now) or not lane.items:
                return made
        aged = self._queue.aged_line(lane, now)
        if aged is not None and aged is not lane.top:
            self._take_aged(aged, made, size)
        if is_urged and self._queue.has_deadlines:
            self._take_urgent(lane, made, size)
        for line in lane.lines:
            if line.items and made.rows < made.goal:
                self._take_line(lane, line, made, size, now)
        made.left_rows = lane.rows
        return made

    def _take_line(
        self, lane: FairLane, line: Line, made: Composition, size: int | None, now: float
    ) -> None:
        """Fill up from one class, in order, as far as that does not delay the classes above."""
        goal = made.goal
        above = sum(made.class_rows[: line.priority])
        if self._is_auto and (above or self._filling.is_used):
            goal = self._filling.rows_with(line.priority, above, size or lane.mean_size, now)
            goal = max(goal, self.padded_rows(above)) if above else goal
            goal = min(made.goal, goal + made.rows - above)
        if size is None:
            taken = self._queue.take_while(line, lambda item: self._fits(made, item, goal))
            made.items += taken
            made.class_rows[line.priority] += sum(map(_rows, taken))
            return
        limit = self._uniform_limit(size) if size else self._max_rows
        most = (goal if goal < limit else limit) - made.rows
        if lane.rows == lane.items:
            most = max(most, 0 if made.items else 1)
            taken = self._queue.take(line, most) if most else []
            made.add(taken, line.priority, len(taken))
            next_rows = 1
        else:
            most = max(most, 0 if made.items else self._queue.head(line).rows)
            made.add(self._queue.take(line, most), line.priority)
            next_rows = self._queue.head(line).rows if line.items else 0
        made.size = size
        if line.items and made.stopped_by is None:
            made.stopped_by = self._stopped_by(made, next_rows, limit)

    def _stopped_by(self, made: Composition, next_rows: int, limit: int) -> FireReason | None:
        """The limit that keeps so many rows more out, other than that the goal is reached."""
        rows = made.rows + next_rows
        if rows > self._max_rows and made.rows < self._max_rows:
            return FireReason.FULL
        if limit < rows <= made.goal:
            is_budget = self._is_packed or rows > self._limits.rows_at(made.size)
            return FireReason.BUDGET if is_budget else FireReason.KNEE
        return FireReason.KNEE if made.rows < made.goal < rows else None

    def _uniform_limit(self, size: int) -> int:
        """The most rows of a batch where all items are of that size."""
        if self._is_packed:
            most = int(min(self._max_rows, self._max_cost // size))
            return min(most, self._fitting.rows_at(size)) if self._fitting.limits else most
        most = self._limits.rows_at(size)
        return min(most, self._costs.best_rows(size)) if self._is_auto else most

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

    def _take_aged(self, line: Line, made: Composition, size: int | None) -> None:
        """A class that would starve takes its share first."""
        share = max(1, made.goal // FLOOR)
        if size is not None:
            first = self._queue.head(line)
            made.add(self._queue.take(line, max(share, first.rows)), line.priority)
            made.size = size
        else:
            taken = self._queue.take_while(
                line, lambda item: made.rows < share and self._fits(made, item, made.goal)
            )
            made.items += taken
            made.class_rows[line.priority] += sum(item.rows for item in taken)

    def _take_urgent(self, lane: FairLane, made: Composition, size: int | None) -> None:
        """Items that must leave now to be in time, whichever came before them."""
        line = lane.top
        if lane.rows <= made.goal - made.rows or not self._queue.hurries:
            return
        batch_s = self._batch_s(made.goal, size or lane.mean_size)
        for item in self._queue.urgent(line, made.late_before + batch_s, made.goal):
            limit = min(made.goal, self._uniform_limit(size)) if size else made.goal
            if made.rows + item.rows > limit or (made.items and self._obstacle(made, item)):
                return
            self._queue.take_one(item)
            made.items.append(item)
            made.class_rows[line.priority] += item.rows
            self._count(made, item)

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

    def _late_before(self, lane: FairLane, now: float, rows: int, error: float) -> float:
        seconds = self._costs.predict(rows, lane.mean_size)
        if seconds is None:
            return -math.inf  # nothing is known: nobody is late
        return now + seconds * (1.0 + error) - 1e-9

    def _timely_rows(self, lane: FairLane, now: float, made: Composition) -> int:
        """The most rows, the newest ones, that a batch of just so many answers in time.

        In a flood most of the queue is too old to be saved, and the other items may be fewer
        than a full batch: a batch of their number is shorter, and saves more of them.
        """
        rows, line = made.goal, lane.top
        if self._slo_s == math.inf:
            return rows
        late_before = self._late_before(lane, now, rows, made.error)
        if late_before == -math.inf:
            return rows
        # Most often even the first arrival, which may have left, is in time.
        if line.arrivals[0].arrived_at + self._slo_s >= late_before:
            return rows
        oldest = line.oldest()
        if oldest is None or oldest.arrived_at + self._slo_s >= late_before:
            return rows
        arrivals, each = line.arrivals, line.rows / line.items
        low, high = 0, min(len(arrivals), int(rows / each))
        while low < high:
            count = (low + high + 1) // 2
            batch_rows = min(rows, max(1, round(count * each)))
            due = arrivals[-count].arrived_at + self._slo_s
            if due >= self._late_before(lane, now, batch_rows, made.error):
                low = count
            else:
                high = count - 1
        return min(rows, max(1, round(low * each)))

    def _drop_late(self, lane: FairLane, made: Composition, now: float | None = None) -> bool:
        """Drop items that would be late. True: there are more than one decision may drop.

        `now`: where fewer items make the batch shorter, the others are less late.
        """
        while (item := self._queue.next_due(lane, made.late_before)) is not None:
            if not self._is_late(made, item):
                continue  # it never could be in time, and runs all the same
            self._queue.remove(item.id)
            made.late.append(item)
            if now is not None and 0 < lane.rows < made.goal:
                made.goal = self._allowed_rows(lane.rows)
                made.late_before = self._late_before(lane, now, made.goal, made.error)
            if len(made.late) >= MOST_DROPPED:
                return True
        return False

    def _batch_s(self, rows: int, size: int) -> float:
        if self._is_padded:
            rows, size = self._limits.padded_rows(rows), self._limits.padded_size(size)
        seconds = self._costs.predict(rows, size) or 0.0
        return seconds * (1.0 + self._costs.error_at(HOPELESS))

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


def may_plan(policy: Policy) -> bool:
    """Is the company of an item chosen by its size?"""
    return policy.firing is Firing.AUTO and policy.compose in (Compose.DP, Compose.SORT)


def needs_shelves(policy: Policy) -> bool:
    """Must the queue tell sizes apart?"""
    return may_plan(policy) or policy.order is Order.SHORTEST


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
