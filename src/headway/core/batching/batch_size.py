"""How many of the waiting rows leave now, and how many are enough to leave at once.

With one worker, `sizing` says what empties the queue soonest. Where the replay of the latest
arrivals found a batch size that is clearly better (several workers that share the load), that one
is used. Where batch times vary, `steadying` says how many are too many.
"""

import math

from headway.core.batching.arrivals import Arrivals
from headway.core.batching.rehearsal import Rehearsal, Setting
from headway.core.batching.sizing import Sizing
from headway.core.costs import Costs
from headway.core.faults.fitting import Fitting
from headway.core.items import FireReason
from headway.core.policy import Firing, Policy
from headway.core.queueing.queue import Lane


class BatchSize:
    def __init__(
        self,
        policy: Policy,
        costs: Costs,
        *,
        arrivals: Arrivals,
        sizing: Sizing,
        rehearsal: Rehearsal,
        fitting: Fitting,
    ) -> None:
        self._costs = costs
        self._arrivals = arrivals
        self._sizing = sizing
        self._rehearsal = rehearsal
        self._fitting = fitting
        self._max_rows = policy.max_batch_size
        self._max_cost = policy.max_batch_cost or math.inf
        self._is_given = policy.firing is not Firing.AUTO
        self.workers = policy.workers
        self.group_rows = 0  # of callers in step that leave together; 0: they are not

    @property
    def most_rows(self) -> int:
        """The most rows that pay in one batch, as far as is known."""
        return self._max_rows if self._is_given else min(self._max_rows, self._costs.best_rows())

    def part_rows(self, size: int) -> int:
        """The most rows of one item; a larger request is to be split."""
        return min(self.most_rows, self._fitting.rows_at(size))

    def rows_now(self, lane: Lane, running_batches: int) -> int:
        """How many of the lane's rows leave, at most."""
        rows = self._max_rows if self._is_given else self._rows_auto(lane, running_batches)
        if self._fitting.limits:
            rows = min(rows, self._fitting.rows_at(0))  # those with a size: the composer
        return rows

    def _rows_auto(self, lane: Lane, running_batches: int) -> int:
        if self.group_rows:
            return min(self.group_rows, self._max_rows)
        setting, size = self._rehearsed(), lane.mean_size
        free = self.workers - running_batches if setting is None else 1
        best = self._costs.best_rows(size)
        if setting is None or size or self._costs.is_trial(best, size):
            return self._sizing.rows_to_take(lane.rows, size, free)
        if setting.cap_rows is None:
            rows = self._sizing.rows_to_take(lane.rows, size)
        else:
            rows = min(best, self._rehearsal.rows_to_take(lane.rows, setting.cap_rows))
        steady = self._rehearsal.steady_rows(lane.rows)
        return rows if steady is None else min(rows, steady)

    def _rehearsed(self) -> Setting | None:
        """None: nothing is known yet, or callers wait for their answers before they ask again."""
        return None if self._arrivals.is_closed else self._rehearsal.setting

    def why_full(self, lane: Lane) -> FireReason | None:
        """Why no more items are waited for; None: a larger batch may pay."""
        rows = lane.rows
        if rows >= self._max_rows:
            return FireReason.FULL
        setting = self._rehearsed()
        cap_rows = None if setting is None else setting.cap_rows
        if cap_rows is not None and rows >= cap_rows:
            cap_rows = self._rehearsal.cap_now(cap_rows)
        if rows >= (cap_rows or self._costs.best_rows(lane.mean_size)):
            return FireReason.KNEE
        if setting is not None and not lane.mean_size:
            steady = self._rehearsal.steady_rows(rows)
            if steady is not None and rows >= steady:
                return FireReason.KNEE
        if lane.size_rows >= self._max_cost:
            return FireReason.BUDGET
        if self._fitting.limits and rows >= self._fitting.rows_at(lane.mean_size):
            return FireReason.BUDGET
        return None

    def why_cut(self, rows: int) -> FireReason:
        """Why a batch of so many rows leaves some of the items behind."""
        if rows >= self._max_rows:
            return FireReason.FULL
        return FireReason.KNEE if rows < self._fitting.rows_at(0) else FireReason.BUDGET
