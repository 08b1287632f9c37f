"""Which items share a batch if sizes differ: those around the next item that waste least time."""

import math

from headway.core.batching.composition import Composition
from headway.core.batching.filling import Filling
from headway.core.batching.lateness import ROUNDING_S, Lateness
from headway.core.batching.planning import Limits, Part, Planner, sorted_chunk
from headway.core.costs import Costs
from headway.core.items import FireReason, Item
from headway.core.policy import Compose, Policy
from headway.core.queueing.queue import FairLane, Line, Queue, Shelf


class PlannedComposer:
    def __init__(
        self,
        policy: Policy,
        costs: Costs,
        queue: Queue,
        limits: Limits,
        lateness: Lateness,
        filling: Filling,
    ) -> None:
        self._max_rows = policy.max_batch_size
        self._costs = costs
        self._sorts = policy.compose is Compose.SORT
        self._queue = queue
        self._limits = limits
        self._lateness = lateness
        self._filling = filling
        self._planner = Planner(costs, limits)

    def compose(self, lane: FairLane, now: float) -> Composition:
        """Compose the batch around the next item that wastes the least time."""
        made = Composition()
        top, is_urged = lane.top, self._lateness.is_possible
        if is_urged:
            made.late_before = now + self._lateness.batch_s(1, top.by_size[0].size) - ROUNDING_S
            if self._lateness.drop(lane, made) or not lane.items:
                return made
            if made.late:
                top = lane.top
        line = self._queue.aged_line(lane, now) or top
        anchor = line.oldest() if line is not top else self._urgent(line, lane, now)
        first_due = line.due.not_before() if is_urged else math.inf
        self._take_part(line, anchor, made)
        if is_urged:
            made.late_before = now + self._lateness.batch_s(made.rows, made.size) - ROUNDING_S
            if first_due < made.late_before:
                self._lateness.sort_out(made)
        if made.items and lane.items > line.items:
            self._fill(lane, line, made, now)
        made.left_rows = lane.rows
        if made.left_rows:
            made.stopped_by = self._why_no_more(made)
        return made

    def _urgent(self, line: Line, lane: FairLane, now: float) -> Item | None:
        """The item that must go next to meet its deadline; None: the head of the lane goes next."""
        queue = self._queue
        if not queue.hurries or not queue.has_deadlines:
            return None
        soon_s = 2 * self._lateness.batch_s(self._max_rows, lane.mean_size)
        urgent = line.urgent(now + soon_s, 1)
        return urgent[0] if urgent else None

    def _take_part(self, line: Line, anchor: Item | None, made: Composition) -> None:
        """Take the anchor and the items of its part of the plan, in order, up to every limit."""
        queue = self._queue
        head = line.head()
        anchor = anchor or head
        own = line.shelves[queue.shelf_of(anchor)]
        cap = None if self._sorts else self._planner.most_alone(own.size, own.rows)
        inside = [own]
        if cap is None:
            part = self._part_of(own.size, line.by_size)
            low, high = part.low, part.high
            inside = [shelf for shelf in line.shelves.values() if low < shelf.size <= high]
            cap = part.rows
        cap = max(cap, anchor.rows)
        if anchor is not head:
            queue.take_one(anchor)
            made.add([anchor], line.priority)
            inside = [shelf for shelf in inside if shelf.items]
        if inside and cap > made.rows:
            is_single = line.rows == line.items
            taken = queue.take(line, cap - made.rows, inside)
            made.add(taken, line.priority, len(taken) if is_single else None)
        size = 0
        for item in made.items:
            size = max(size, item.size)
        made.size = size

    def _part_of(self, size: int, shelves: list[Shelf]) -> Part:
        """`shelves`: shortest first."""
        sizes, rows = [shelf.size for shelf in shelves], [shelf.rows for shelf in shelves]
        if self._sorts:
            return sorted_chunk(size, sizes, rows, self._limits)
        return self._planner.part_of(size, sizes, rows)

    def _fill(self, lane: FairLane, line: Line, made: Composition, now: float) -> None:
        """Add items of lower classes while that delays no item of this one."""
        lower = [each for each in lane.lines[line.priority + 1 :] if each.items]
        if not lower:
            return
        due = self._lateness.first_due(made.items)
        for each in lower:
            most = self._filling.rows_with(each.priority, made.rows, made.size, now)
            most = min(most, self._limits.rows_at(made.size))
            while most > made.rows and now + self._lateness.batch_s(most, made.size) > due:
                most = made.rows + (most - made.rows) // 2
            self._fill_from(each, most, made)

    def _fill_from(self, line: Line, most: int, made: Composition) -> None:
        """Add whole shelves, the largest sizes first: they need the least padding."""
        whole: list[Shelf] = []
        part: Shelf | None = None  # the last shelf, of which only some items are taken
        rows, is_single = made.rows, line.rows == line.items
        by_rows, scale = self._costs.by_rows(made.size)
        for shelf in reversed(line.by_size):
            if shelf.size > made.size:
                continue
            if rows >= most:
                break
            if self._row_s_here(by_rows, rows) * scale > self._row_s_alone(shelf):
                continue
            if shelf.rows > most - rows:
                part = shelf
                break
            whole.append(shelf)
            rows += shelf.rows
        if whole:
            taken = self._queue.take(line, rows - made.rows, whole)
            made.add(taken, line.priority, len(taken) if is_single else None)
        if part is not None:
            taken = self._queue.take(line, most - rows, [part])
            made.add(taken, line.priority, len(taken) if is_single else None)

    def _row_s_here(self, by_rows: list[float | None], rows: int) -> float:
        """The seconds that one more row adds to a batch of `rows`; infinite: unknown."""
        before, after = by_rows[rows], by_rows[min(rows + 1, self._max_rows)]
        return math.inf if before is None or after is None else after - before

    def _row_s_alone(self, shelf: Shelf) -> float:
        """The seconds for each row of the shelf in a batch of its own."""
        rows = max(1, min(shelf.rows, self._limits.rows_at(shelf.size)))
        return (self._costs.predict(rows, shelf.size) or 0.0) / rows

    def _why_no_more(self, made: Composition) -> FireReason:
        if made.rows >= self._max_rows:
            return FireReason.FULL
        if made.rows >= self._limits.rows_at(made.size):
            return FireReason.BUDGET
        return FireReason.KNEE
