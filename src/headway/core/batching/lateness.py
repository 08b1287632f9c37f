"""Which items would be late if they left now, and are dropped instead.

A batch that shrinks to save its oldest item costs more per item exactly when capacity is short, and
the queue never recovers. So the batch keeps its size, and items that it cannot answer in time are
dropped.
"""

from headway.core.batching.composition import Composition
from headway.core.batching.planning import INFINITE, Limits
from headway.core.costs import Costs
from headway.core.items import Item
from headway.core.policy import Policy
from headway.core.queueing.deadlines import HOPELESS_PERCENTILE
from headway.core.queueing.queue import FairLane, Queue

ROUNDING_S = 1e-9  # times that differ by less are equal
MOST_DROPPED = 32  # late items in one decision; the next call drops more


class Lateness:
    """Finds items that would be late, and takes them out of the queue or of the batch."""

    def __init__(self, policy: Policy, costs: Costs, queue: Queue, limits: Limits) -> None:
        self.slo_s = INFINITE if policy.slo_s is None else policy.slo_s
        self._batch_sizes = policy.batch_sizes
        self._is_padded = bool(policy.batch_sizes or policy.pad_sizes)
        self._costs = costs
        self._queue = queue
        self._limits = limits

    @property
    def is_possible(self) -> bool:
        """Has any item a deadline, or the model an SLO?"""
        return self.slo_s < INFINITE or self._queue.has_deadlines

    def batch_s(self, rows: int, size: int) -> float:
        """The time of such a batch if it is among the fastest."""
        if self._is_padded:
            rows, size = self._limits.padded_rows(rows), self._limits.padded_size(size)
        seconds = self._costs.predict(rows, size) or 0.0
        return seconds * (1.0 + self._costs.error_at(HOPELESS_PERCENTILE))

    def before(self, lane: FairLane, now: float, rows: int, error: float) -> float:
        """The moment before which a due item is late, if a batch of `rows` rows leaves now."""
        seconds = self._costs.predict(rows, lane.mean_size)
        if seconds is None:
            return -INFINITE  # the cost is unknown: no item counts as late
        return now + seconds * (1.0 + error) - ROUNDING_S

    def is_late(self, made: Composition, item: Item) -> bool:
        """Would the item miss its deadline or the SLO now, though it could have met it at first?

        An item that never could be in time runs all the same until its deadline: the estimate may
        be wrong, and a model that refuses every item never shows that it got faster.
        """
        due = min(item.deadline, item.arrived_at + self.slo_s)
        if due >= made.late_before:
            return False
        return due - item.arrived_at >= self.batch_s(item.rows, item.size)

    def first_due(self, items: list[Item]) -> float:
        """The earliest moment at which one of the items must be answered."""
        deadline = arrived_at = INFINITE
        for item in items:
            deadline = min(deadline, item.deadline)
            arrived_at = min(arrived_at, item.arrived_at)
        return min(deadline, arrived_at + self.slo_s)

    def drop(self, lane: FairLane, made: Composition, now: float | None = None) -> bool:
        """Drop items that would be late. True: there are more than one decision may drop.

        With `now`, the batch gets smaller as its items are dropped, so that others may be in time.
        """
        while (item := lane.next_due(made.late_before)) is not None:
            if not self.is_late(made, item):
                continue  # it never could be in time, and runs all the same
            self._queue.remove(item.id)
            made.late.append(item)
            if now is not None and 0 < lane.rows < made.goal:
                made.goal = self.allowed_rows(lane.rows)
                made.late_before = self.before(lane, now, made.goal, made.error)
            if len(made.late) >= MOST_DROPPED:
                return True
        return False

    def sort_out(self, made: Composition) -> None:
        """Drop the late items of a composed batch; the other items stay in it."""
        late = [item for item in made.items if self.is_late(made, item)]
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

    def allowed_rows(self, rows: int) -> int:
        """The rows to run. With fixed batch sizes: pad up or run fewer, the cheaper per row."""
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
