"""How many of the waiting rows leave in the next batch.

All of them is right where a row more costs little. Elsewhere a queue is better served in several
batches: the first callers are answered earlier, and the last no later than the time lost between
batches. And where rows are computed in tiles, a batch that ends with a full tile beats one that
begins another for a row or two, if those who stay will have company.
"""

import math

from headway.core.batching.linger import Linger
from headway.core.costs import Costs
from headway.core.policy import Policy

LOSS = 0.03  # of the time until the queue is empty: what serving the first ones earlier may cost …
LOSS_BUSY = 0.1  # … and of the time that workers are idle, where that is less
_REMEMBERED = 1024


class Sizing:
    def __init__(self, policy: Policy, costs: Costs, linger: Linger) -> None:
        self._max_rows = policy.max_batch_size
        self._costs = costs
        self._linger = linger
        self._version = -1
        self._taken: dict[tuple[int, int], int] = {}
        self._ladders: dict[int, list[int]] = {}

    def rows_to_take(self, rows: int, size: int) -> int:
        """Of so many waiting rows of that size, on average."""
        if self._version != self._costs.version or len(self._taken) > _REMEMBERED:
            self._version = self._costs.version
            self._taken.clear()
            self._ladders.clear()
        taken = self._taken.get((rows, size))
        if taken is None:
            taken = self._taken[rows, size] = self._choose(rows, size)
        return taken

    def _choose(self, rows: int, size: int) -> int:
        costs = self._costs
        most = min(rows, self._max_rows)
        best = costs.best_rows(size)
        all_s = costs.predict(min(most, best), size)
        if all_s is None or most == 1:
            return best
        if best <= rows and costs.is_trial(best, size):
            return best
        # Those who come meanwhile keep company to those who stay.
        rows += min(int(self._linger.rate_rps * all_s), self._max_rows)
        choices: list[tuple[float, float, int]] = []
        for take in self._candidates(most, size):
            batch_s = costs.predict(take, size)
            if batch_s is None:
                continue
            batches, rest = divmod(rows, take)
            rest_s = (costs.predict(rest, size) or 0.0) if rest else 0.0
            end_s = batches * batch_s + rest_s
            waited_s = take * batch_s * batches * (batches + 1) / 2 + rest * end_s
            choices.append((end_s, waited_s, take))
        if not choices:
            return best
        loss = min(LOSS, LOSS_BUSY * (1.0 - self._linger.busy))
        enough_s = min(choices)[0] * (1.0 + loss)
        return min((waited_s, take) for end_s, waited_s, take in choices if end_s <= enough_s)[1]

    def _candidates(self, most: int, size: int) -> set[int]:
        ladder = self._ladders.get(size)
        if ladder is None:
            ladder = self._ladders[size] = self._draw_ladder(size)
        parts = {-(-most // batches) for batches in (1, 2, 3, 4)}
        return parts.union(each for each in ladder if each <= most)

    def _draw_ladder(self, size: int) -> list[int]:
        """Sizes worth a look: a few an octave, and those where a tile is full."""
        costs, ladder, rows = self._costs, set(), 1
        while rows <= self._max_rows:
            ladder.add(rows)
            rows = max(rows + 1, int(rows * math.sqrt(2)))
        ladder.add(self._max_rows)
        return sorted(ladder.union(costs.peaks(size)))
