"""How many of the waiting rows leave now, and how many are enough to leave without a wait.

A batch grows up to the size with the most rows per second, without a partly filled tile that would
lower that rate. In a pool, the rehearsal chooses the size.
"""

import math

from headway.core.batching.arrivals import Arrivals
from headway.core.batching.gathering import Gathering
from headway.core.batching.rehearsal import Rehearsal, Setting
from headway.core.costs import Costs
from headway.core.faults.fitting import Fitting
from headway.core.items import FireReason
from headway.core.policy import Firing, Policy
from headway.core.queueing.queue import Lane
from headway.core.queueing.running import Running

SHARING = 0.25  # sharing a queue among workers may add this part to the work


class BatchSize:
    def __init__(
        self,
        policy: Policy,
        costs: Costs,
        *,
        arrivals: Arrivals,
        gathering: Gathering,
        rehearsal: Rehearsal,
        fitting: Fitting,
        running: Running,
    ) -> None:
        self._costs = costs
        self._arrivals = arrivals
        self._gathering = gathering
        self._rehearsal = rehearsal
        self._fitting = fitting
        self._running = running
        self._max_rows = policy.max_batch_size
        self._max_cost = policy.max_batch_cost or math.inf
        self._is_given = policy.firing is not Firing.AUTO

    @property
    def most_rows(self) -> int:
        """The most rows that pay in one batch, as far as is known."""
        return self._max_rows if self._is_given else min(self._max_rows, self._costs.best_rows())

    def part_rows(self, size: int) -> int:
        """The most rows of one item; a larger request is to be split."""
        return min(self.most_rows, self._fitting.rows_at(size))

    def rows_now(self, lane: Lane) -> int:
        """The most rows of the lane that may leave in the next batch."""
        rows = self._max_rows if self._is_given else self._rows_auto(lane)
        if self._fitting.limits:
            rows = min(rows, self._fitting.rows_at(0))  # the composer limits items with a size
        return rows

    def _rows_auto(self, lane: Lane) -> int:
        rows, size, running = lane.rows, lane.mean_size, self._running
        setting = self._rehearsed()
        if setting is not None and not size:
            best = self._costs.best_rows()
            return min(best, self._rehearsal.rows_to_take(rows, setting.cap_rows))
        # In a closed loop no new items join those that a batch leaves behind.
        if self._arrivals.is_closed and running.workers == 1:
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
        if self._running.workers == 1 or self._arrivals.is_closed:
            return None
        return self._rehearsal.setting

    def why_full(self, lane: Lane) -> FireReason | None:
        """Why the batch leaves without a wait; None: a larger batch may pay."""
        rows = lane.rows
        if rows >= self._max_rows:
            return FireReason.FULL
        setting = self._rehearsed()
        cap_rows = self._costs.best_rows(lane.mean_size) if setting is None else setting.cap_rows
        if rows >= cap_rows:
            return FireReason.KNEE
        if lane.size_rows >= self._max_cost:
            return FireReason.BUDGET
        if self._fitting.limits and rows >= self._fitting.rows_at(lane.mean_size):
            return FireReason.BUDGET
        return None

    def why_cut(self, rows: int) -> FireReason:
        """Why a batch of `rows` rows leaves some of the waiting items behind."""
        if rows >= self._max_rows:
            return FireReason.FULL
        return FireReason.KNEE if rows < self._fitting.rows_at(0) else FireReason.BUDGET
