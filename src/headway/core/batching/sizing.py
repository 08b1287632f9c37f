"""How many of the waiting rows leave in the next batch.

All of them is right where a row more costs little. Elsewhere a queue is better served in several
batches: the first callers are answered earlier, and the last no later than the time lost between
batches. And where rows are computed in tiles, a batch that ends with a full tile beats one that
begins another for a row or two, if those who stay will have company.
"""

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple

from headway.core.batching.linger import Linger
from headway.core.costs import Costs
from headway.core.costs.sizes import size_class
from headway.core.policy import Policy

LOSS = 0.03  # of the time until the queue is empty: what serving the first ones earlier may cost …
LOSS_BUSY = 0.1  # … and of the time that workers are idle, where that is less
KEEPS_UP = 0.7  # of their capacity
HAND_OVER_S = 50e-6  # to a worker and back: what each batch takes beside what the model takes
HEADROOM = 0.25  # of what comes: what the workers can do beyond it, where they can
_REMEMBERED = 1024


class _Ladder(NamedTuple):
    """Sizes worth a look, and what a batch of each takes."""

    rows: list[int]
    seconds: list[float]


class Sizing:
    def __init__(self, policy: Policy, costs: Costs, linger: Linger) -> None:
        self._max_rows = policy.max_batch_size
        self._costs = costs
        self._linger = linger
        self._version = -1
        self._taken: dict[tuple[int, int], int] = {}
        self.workers: float = policy.workers  # of the usual speed
        self._ladders: dict[int, _Ladder] = {}
        self._steps = _steps(self._max_rows)
        self._sustaining: tuple[tuple[int, int, int], tuple[int, float]] = (-1, -1, -1), (1, 0.0)

    def rows_to_take(self, rows: int, size: int) -> int:
        """Of so many waiting rows of that size, on average."""
        self._forget_if_changed()
        size = size_class(size)
        taken = self._taken.get((rows, size))
        if taken is None:
            taken = self._taken[rows, size] = self._choose(rows, size)
        return taken

    def _forget_if_changed(self) -> None:
        if self._version != self._costs.version or len(self._taken) > _REMEMBERED:
            self._version = self._costs.version
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
        # Those who come meanwhile keep company to those who stay; on a worker that is often idle
        # they may as well come later.
        busy = self._linger.busy
        coming = self._linger.rate_rps * all_s * scale * busy
        rows += min(int(coming), self._max_rows)
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

    def rows_beside(
        self, rows: int, size: int, times: float, others: Sequence[tuple[float, float]]
    ) -> int:
        """The same for a worker on which a batch takes so many times as long, where others will be
        free in so many seconds, and take so many times as long.

        So many that all who wait are answered at the same time, whoever takes them; but no fewer
        than keep up with what comes.
        """
        most = self.rows_to_take(rows, size)
        all_s = self._costs.predict(most, size)
        if most == 1 or all_s is None or min(free_s for free_s, _ in others) >= all_s * times:
            return most
        enough = self.sustaining(size)[0]
        if times != 1.0:
            enough = self._rows_within((self._costs.predict(enough, size) or 0.0) / times, size)
        return max(1, min(most, enough), self._shared(rows, most, size, times, others))

    def _shared(
        self,
        rows: int,
        most: int,
        size: int,
        times: float,
        others: Sequence[tuple[float, float]],
    ) -> int:
        choices = sorted(self._candidates(most, size))
        low, high = 0, len(choices) - 1
        while low < high:  # the smallest with which all are served by the same time
            middle = (low + high) // 2
            end_s = (self._costs.predict(choices[middle], size) or 0.0) * times
            taken = choices[middle]
            for free_s, slow in others:
                taken += self._rows_within((end_s - free_s) / slow, size)
            if taken >= rows:
                high = middle
            else:
                low = middle + 1
        return choices[low]

    def _rows_within(self, seconds: float, size: int) -> int:
        """How many rows a batch of so many seconds has."""
        at = bisect.bisect_right(self._ladder(size).seconds, seconds)
        return self._ladder(size).rows[at - 1] if at else 0

    def keeps_up(self, power: float, size: int) -> bool:
        """Would so many workers be enough for what comes?"""
        best = self._costs.best_rows(size)
        best_s = self._costs.predict(best, size)
        return best_s is not None and self._linger.rate_rps * best_s <= KEEPS_UP * power * best

    def sustaining(self, size: int) -> tuple[int, float]:
        """The smallest batch with which the workers keep up with what comes, and some room to
        spare; and how long it takes to come together."""
        key = (self._costs.version, self._linger.batches, size)
        if self._sustaining[0] != key:
            self._forget_if_changed()
            self._sustaining = key, self._find_sustaining(size)
        return self._sustaining[1]

    def _find_sustaining(self, size: int) -> tuple[int, float]:
        came_rps = self._linger.rate_rps
        best = self._costs.best_rows(size)
        best_s = self._costs.predict(best, size)
        if best_s is None or came_rps <= 0.0:
            return 1, 0.0
        most_rps = self.workers * best / best_s
        if came_rps >= most_rps:
            return 1, 0.0
        wanted_rps = came_rps + min(HEADROOM * came_rps, 0.5 * (most_rps - came_rps))
        for rows, seconds in zip(*self._ladder(size), strict=True):
            if self.workers * rows >= wanted_rps * seconds:
                half_s = self._costs.predict(-(-rows // 2), size) or 0.0
                saved = min(1.0, max(0.0, 2 * half_s - seconds) / seconds)
                return rows, (rows - 1) / came_rps * saved
        return 1, 0.0

    def _candidates(self, most: int, size: int) -> set[int]:
        rows = self._ladder(size).rows
        below = rows[: bisect.bisect_right(rows, most)]
        return {most, -(-most // 2), -(-most // 3), -(-most // 4), *below}

    def _ladder(self, size: int) -> _Ladder:
        size = size_class(size)
        ladder = self._ladders.get(size)
        if ladder is None:
            ladder = self._ladders[size] = self._draw_ladder(size)
        return ladder

    def _draw_ladder(self, size: int) -> _Ladder:
        """Sizes worth a look: a few an octave, and those where a tile is full."""
        by_rows, scale = self._costs.by_rows(size)
        sizes = sorted(self._steps.union(self._costs.peaks(size)))
        known = [(rows, seconds * scale) for rows in sizes if (seconds := by_rows[rows])]
        return _Ladder([rows for rows, _ in known], [seconds for _, seconds in known])


def _steps(most: int) -> set[int]:
    """A few numbers an octave, up to that one."""
    steps, rows = {most}, 1
    while rows <= most:
        steps.add(rows)
        rows = max(rows + 1, int(rows * math.sqrt(2)))
    return steps
