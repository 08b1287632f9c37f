"""How many of the waiting rows leave in the next batch.

All of them is right where a row more costs little. Elsewhere a queue is better served in several
batches: the first callers are answered earlier, and the last no later than the time lost between
batches. And where rows are computed in tiles, a batch that ends with a full tile beats one that
begins another for a row or two, if the rows that stay will have company.
"""

import bisect
import math

from headway.core.batching.arrivals import Arrivals
from headway.core.costs import Costs
from headway.core.costs.sizes import size_class
from headway.core.policy import Policy

LOSS = 0.03  # of the time until the queue is empty: what serving the first ones earlier may cost …
LOSS_BUSY = 0.1  # … and of the time that workers are idle, where that is less
SHARING = 0.25  # of the work: what it may cost that several workers share a queue
KEEPS_UP = 0.7  # of their capacity
HAND_OVER_S = 50e-6  # to a worker and back: what each batch takes beside what the model takes
_REMEMBERED = 1024


class Sizing:
    def __init__(self, policy: Policy, costs: Costs, arrivals: Arrivals) -> None:
        self._max_rows = policy.max_batch_size
        self._costs = costs
        self._arrivals = arrivals
        self._version: tuple[int, int] = (-1, 0)  # of the costs, and how many callers
        self._edition = -1
        self._taken: dict[tuple[int, int], int] = {}
        self._ladders: dict[int, list[int]] = {}
        self._steps = _steps(self._max_rows)

    def rows_to_take(self, rows: int, size: int, workers: int = 1) -> int:
        """Of so many waiting rows of that size, on average, with so many workers free."""
        if workers > 1:
            rows = self._part(rows, size, workers)
        self._forget_if_changed()
        size = size_class(size)
        taken = self._taken.get((rows, size))
        if taken is None:
            taken = self._taken[rows, size] = self._choose(rows, size)
        return taken

    def _forget_if_changed(self) -> None:
        costs = self._costs
        version = (costs.version, self._arrivals.callers)
        if self._version == version and len(self._taken) <= _REMEMBERED:
            return
        is_new = self._edition != costs.edition or self._version[1] != version[1]
        self._version = version
        if is_new or costs.has_trial or len(self._taken) > _REMEMBERED:
            self._edition = costs.edition
            self._taken.clear()
            self._ladders.clear()

    def _choose(self, rows: int, size: int) -> int:
        costs = self._costs
        most = min(rows, self._max_rows)
        best = costs.best_rows(size)
        by_rows, scale = costs.by_rows(size)
        all_s = by_rows[min(most, best)]
        if all_s is None or most == 1:
            return best
        if best <= rows and costs.is_trial(best, size):
            return best
        # Rows that arrive meanwhile join the rows that stay; on a worker that is often idle they
        # may as well come later.
        busy = self._arrivals.busy
        coming = min(int(self._arrivals.rate_rps * all_s * scale * busy), self._max_rows)
        if rows == self._arrivals.callers:
            coming = 0  # all of a closed loop are here
        rows += coming
        choices: list[tuple[float, float, int]] = []
        hand_over_s = HAND_OVER_S / scale
        for take in self._candidates(most, size):
            batch_s = by_rows[take]
            if batch_s is None:
                continue
            batch_s += hand_over_s
            batches, rest = divmod(rows, take)
            rest_s = (by_rows[rest] or 0.0) + hand_over_s if rest else 0.0
            end_s = batches * batch_s + rest_s
            waited_s = take * batch_s * batches * (batches + 1) / 2 + rest * end_s
            choices.append((end_s, waited_s, take))
        if not choices:
            return best
        loss = min(LOSS, LOSS_BUSY * (1.0 - busy))
        enough_s = min(choices)[0] * (1.0 + loss)
        return min((waited_s, take) for end_s, waited_s, take in choices if end_s <= enough_s)[1]

    def _part(self, rows: int, size: int, workers: int) -> int:
        """Of rows that several workers share: as few as do not cost much more work in all."""
        costs = self._costs
        most_s = (costs.predict(min(rows, self._max_rows), size) or 0.0) * (1.0 + SHARING)
        for parts in range(min(workers, rows), 1, -1):
            part = -(-rows // parts)
            if parts * (costs.predict(part, size) or math.inf) <= most_s:
                return part
        return rows

    def keeps_up(self, power: float, size: int) -> bool:
        """Would so many workers be enough for what comes?"""
        best = self._costs.best_rows(size)
        best_s = self._costs.predict(best, size)
        return best_s is not None and self._arrivals.rate_rps * best_s <= KEEPS_UP * power * best

    def _candidates(self, most: int, size: int) -> set[int]:
        rows = self._ladder(size)
        below = rows[: bisect.bisect_right(rows, most)]
        return {most, -(-most // 2), -(-most // 3), -(-most // 4), *below}

    def _ladder(self, size: int) -> list[int]:
        size = size_class(size)
        ladder = self._ladders.get(size)
        if ladder is None:
            ladder = self._ladders[size] = self._draw_ladder(size)
        return ladder

    def _draw_ladder(self, size: int) -> list[int]:
        """Sizes worth a look: a few an octave, and those where a tile is full."""
        by_rows, _ = self._costs.by_rows(size)
        sizes = sorted(self._steps.union(self._costs.peaks(size)))
        return [rows for rows in sizes if by_rows[rows]]


def _steps(most: int) -> set[int]:
    """A few numbers an octave, up to that one."""
    steps, rows = {most}, 1
    while rows <= most:
        steps.add(rows)
        rows = max(rows + 1, int(rows * math.sqrt(2)))
    return steps
