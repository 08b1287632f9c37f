"""Which items share a batch where sizes differ: the one around the next item that wastes least."""

import math

from headway.core.batching.composition import Composition
from headway.core.batching.filling import Filling
from headway.core.batching.lateness import Lateness
from headway.core.batching.planning import (
    Limits,
    Part,
    Planner,
    price_among_its_own,
    price_of_a_row,
    sorted_chunk,
)
from headway.core.costs import Costs
from headway.core.items import FireReason, Item
from headway.core.policy import Compose, Policy
from headway.core.queueing.queue import FairLane, Line, Queue


class PlannedComposer:
    def __init__(
        self,
        policy: Policy,
        costs: Costs,
        queue: Queue,
        limits: Limits,
        *,
        lateness: Lateness,
        filling: Filling,
    ) -> None:
        self._max_rows = policy.max_batch_size
        self._sorts = policy.compose is Compose.SORT
        self._costs = costs
        self._queue = queue
        self._limits = limits
        self._lateness = lateness
        self._filling = filling
        self._planner = Planner(costs, limits)

    def compose(self, lane: FairLane, now: float) -> Composition:
        """The batch around the next item that wastes least."""
        made = Composition()
        top, is_urged = lane.top, self._lateness.is_possible
        if is_urged:
            made.late_before = now + self._lateness.batch_s(1, min(top.shelves)) - 1e-9
            if self._lateness.drop(lane, made) or not lane.items:
                return made
            if made.late:
                top = lane.top
        line = self._queue.aged_line(lane, now) or top
        anchor = line.oldest() if line is not top else self._urgent(line, lane, now)
        first_due = line.due.not_before() if is_urged else math.inf
        self._take_part(line, anchor, made)
        if is_urged:
            made.late_before = now + self._lateness.batch_s(made.rows, made.size) - 1e-9
            if first_due < made.late_before:
                self._lateness.sort_out(made)
        if made.items and lane.items > line.items:
            self._fill(lane, line, made, now)
        made.left_rows = lane.rows
        if made.left_rows:
            made.stopped_by = self._why_no_more(made)
        return made

    def _urgent(self, line: Line, lane: FairLane, now: float) -> Item | None:
        """Whose turn it is by its deadline; None: it is that of the head."""
        queue = self._queue
        if not queue.hurries or not queue.has_deadlines:
            return None
        soon_s = 2 * self._lateness.batch_s(self._max_rows, lane.mean_size)
        urgent = line.urgent(now + soon_s, 1)
        return urgent[0] if urgent else None

    def _take_part(self, line: Line, anchor: Item | None, made: Composition) -> None:
        """The anchor and those of its part of the plan, in their order, up to every limit."""
        queue, shelves = self._queue, line.shelves
        head = line.head()
        anchor = anchor or head
        size = queue.shelf_of(anchor)
        cap = None if self._sorts else self._planner.most_alone(size, shelves[size].rows)
        inside = [size]
        if cap is None:
            rows_of = {each: shelf.rows for each, shelf in shelves.items()}
            part = self._part_of(size, rows_of)
            low, high = part.low, part.high
            inside, available, largest = [], 0, 0
            for each, shelf in shelves.items():
                if low < each <= high:
                    inside.append(each)
                    available += shelf.rows
                    largest = max(largest, shelf.largest)
            most = min(available, self._limits.rows_at(largest))
            cap = part.cap(most) if most <= self._max_rows else most
        cap = max(cap, anchor.rows)
        if anchor is not head:
            queue.take_one(anchor)
            made.add([anchor], line.priority)
            inside = [each for each in inside if each in shelves]
        if inside and cap > made.rows:
            is_single = line.rows == line.items
            taken = queue.take(line, cap - made.rows, inside)
            made.add(taken, line.priority, len(taken) if is_single else None)
        made.size = max([item.size for item in made.items])

    def _part_of(self, size: int, rows_of: dict[int, int]) -> Part:
        if self._sorts:
            return sorted_chunk(size, rows_of, self._limits)
        return self._planner.part_of(size, rows_of)

    def _fill(self, lane: FairLane, line: Line, made: Composition, now: float) -> None:
        """Lower classes come along where that delays no item of this one."""
        lower = [each for each in lane.lines[line.priority + 1 :] if each.items]
        if not lower:
            return
        first_deadline = min([item.deadline for item in made.items])
        first_arrived = min([item.arrived_at for item in made.items])
        due = min(first_deadline, first_arrived + self._lateness.slo_s)
        for each in lower:
            most = self._filling.rows_with(each.priority, made.rows, made.size, now)
            most = min(most, self._limits.rows_at(made.size))
            while most > made.rows and now + self._lateness.batch_s(most, made.size) > due:
                most = made.rows + (most - made.rows) // 2
            self._fill_from(each, most, made)

    def _fill_from(self, line: Line, most: int, made: Composition) -> None:
        """Whole shelves at once, the longest first: they waste least."""
        shelves, whole, rows = line.shelves, [], made.rows
        costs, limits = self._costs, self._limits
        part: int | None = None  # the shelf that is taken from last, and not as a whole
        by_rows, scale = costs.by_rows(made.size)
        shorter = sorted([each for each in shelves if each <= made.size])
        for size in shorter[::-1]:
            if rows >= most:
                break
            company = shelves[size].rows
            price_s = price_of_a_row(rows, by_rows, scale, limits)
            if price_s > price_among_its_own(size, company, costs, limits):
                continue
            if company > most - rows:
                part = size
                break
            whole.append(size)
            rows += company
        if whole:
            made.add(self._queue.take(line, rows - made.rows, whole), line.priority)
        if part is not None:
            made.add(self._queue.take(line, most - rows, [part]), line.priority)

    def _why_no_more(self, made: Composition) -> FireReason:
        if made.rows >= self._max_rows:
            return FireReason.FULL
        if made.rows >= self._limits.rows_at(made.size):
            return FireReason.BUDGET
        return FireReason.KNEE
