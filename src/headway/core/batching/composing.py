"""Which items share a batch: takes them from one lane, up to every limit in force.

If sizes differ, a plan chooses them (`by_plan`); otherwise they leave in order (`in_order`).
Items that cannot be answered in time are dropped (`lateness`).
"""

import math
from collections.abc import Sequence

from headway.core.batching.by_plan import PlannedComposer
from headway.core.batching.composition import Composition
from headway.core.batching.filling import Filling
from headway.core.batching.in_order import OrderedComposer
from headway.core.batching.lateness import Lateness
from headway.core.batching.planning import Limits, shelf_of
from headway.core.costs import Costs
from headway.core.faults.fitting import Fitting
from headway.core.items import Item
from headway.core.policy import Compose, Firing, Order, Policy
from headway.core.queueing.deadlines import DOUBTFUL, HOPELESS
from headway.core.queueing.queue import FairLane, Queue

__all__ = ["Composer", "Composition", "may_plan", "needs_shelves", "queue_for"]


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
        lateness = Lateness(policy, costs, queue, limits)
        self._filling = Filling(costs, policy.workers)
        parts = policy, costs, queue, limits, lateness, self._filling
        self._in_order = OrderedComposer(*parts)
        self._planned: PlannedComposer | None = None
        if may_plan(policy):
            self._planned = PlannedComposer(*parts)

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
            error = self._costs.error_at(DOUBTFUL if is_short else HOPELESS)
            made = self._in_order.compose(
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


def may_plan(policy: Policy) -> bool:
    """Does a plan choose by size which items share a batch?"""
    return policy.firing is Firing.AUTO and policy.compose in (Compose.DP, Compose.SORT)


def needs_shelves(policy: Policy) -> bool:
    """Must the queue keep items by size?"""
    return may_plan(policy) or policy.order is Order.SHORTEST


def queue_for(policy: Policy) -> Queue:
    return Queue(
        order=policy.order,
        weights=policy.tenant_weights,
        full_rows=policy.max_batch_size,
        ageing_s=policy.ageing_s,
        # An SLO checks every item for lateness, and fixed batch sizes limit how many leave.
        may_be_plain=policy.slo_s is None and not policy.batch_sizes,
        shelf_of=shelf_of(policy.pad_sizes) if needs_shelves(policy) else None,
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
