"""How many rows of a lower class may run while a higher class is in use.

A lower class gets the capacity that higher classes leave, in portions. Large portions use the model
best, but a higher item that arrives meanwhile waits long; small ones do the opposite. So a batch
that could delay a higher class has only the rows it needs for the required rate: most of the best
rate while the higher classes use little of the model, nearly all of it when they use nearly all.
A batch is not limited if it takes at most twice as long as a batch of the higher classes would.
"""

import bisect
import math
from typing import Final

from headway.core.costs import Costs
from headway.core.costs.sizes import size_class
from headway.core.items import Priority
from headway.core.queueing.priority import ClassUsage

_MOST_ROWS: Final = 1_000_000  # no limit
_STEPS: Final = 32  # to which the share of the higher classes is rounded


class Filling:
    def __init__(self, costs: Costs, workers: int) -> None:
        self._costs = costs
        self._workers = workers
        self._usage = ClassUsage(len(Priority))
        self._portions: dict[tuple[int, int, bool], int] = {}  # rows, by size and share
        self._version = -1  # the version of the costs that they were computed from
        self.is_used = False  # have several classes waited at once?

    def served(self, class_rows: list[int], size: int, now: float) -> None:
        """A batch leaves with these rows of each class."""
        best = self._costs.best_rows(size)
        best_s = self._costs.predict(best, size)
        if best_s is None:
            return
        for index, rows in enumerate(class_rows):
            if rows:
                self._usage.add(index, rows * best_s / best, now)
        self.is_used = True
        if self._version != self._costs.version:
            self._version = self._costs.version
            self._portions.clear()

    def rows_with(self, priority: Priority, rows: int, size: int, now: float) -> int:
        """The most rows for a batch that already has `rows` rows of higher classes.

        It counts the rows of all classes, once items of class `priority` have joined.
        """
        share = self._usage.above(priority, now) / self._workers if priority else 0.0
        if not share and not rows:
            return _MOST_ROWS  # no higher class is in use
        step = min(_STEPS, round(share * _STEPS))
        key = (size_class(size), step, rows > 0)
        portion = self._portions.get(key)
        if portion is None:
            share = step / _STEPS
            lost = lost_beside(share) if rows else lost_between(share)
            portion = max(self._portion(size, 1.0 - lost), self._unnoticed(size, share))
            self._portions[key] = portion
        return max(portion, rows)

    def _unnoticed(self, size: int, share: float) -> int:
        """The largest batch that takes no longer than two batches of the higher classes alone.

        A higher item waits for one such batch and then for its own: about twice as long as alone.
        """
        by_rows, scale = self._costs.by_rows(size)
        own_s = self._costs.predict(self._portion(size, share), size)
        if own_s is None:
            return 0
        sizes = range(self._costs.best_rows(size) + 1)
        most_s = 2.0 * own_s / scale
        longer = bisect.bisect_right(sizes, most_s, key=lambda rows: by_rows[rows] or 0.0)
        return longer - 1

    def _portion(self, size: int, rate: float) -> int:
        """The smallest batch that reaches the share `rate` of the best rate."""
        by_rows, _ = self._costs.by_rows(size)
        best = self._costs.best_rows(size)
        best_s = by_rows[best]
        if best_s is None:
            return _MOST_ROWS
        # The rate grows with the rows, up to the best.
        return bisect.bisect_left(
            range(best),
            rate * best / best_s,
            lo=1,
            key=lambda rows: rows / (by_rows[rows] or math.inf),
        )


# With batches of these two sizes the lower class gets about four fifths of the capacity that the
# higher ones leave, and a higher item waits for at most one batch of each. Found by simulation,
# with batch times of 1 + 0.8 × rows and 2 + 0.2 × rows.


def lost_between(share: float) -> float:
    """The part of the best rate that a batch without higher classes may lose.

    `share`: of the capacity, used by the higher classes.
    """
    return 0.2 * (1.0 - share) * (1.0 - share * share)


def lost_beside(share: float) -> float:
    """The same for a batch that includes a higher class, which waits for all of it."""
    return lost_between(share) + 0.15 * (1.0 - share) ** 6
