"""How many rows of a lower class may run while a higher class is in use.

A lower class gets the capacity that higher classes leave, in portions. Large portions use the model
best, but a higher item that arrives meanwhile waits long; small ones do the opposite. So a batch
that could delay a higher class has only the rows it needs for the required rate: most of the best
rate while the higher classes use little of the model, nearly all of it when they use nearly all.
A batch is not limited if it takes at most twice as long as a batch of the higher classes would.
"""

from typing import Final

from headway.core.costs import Costs
from headway.core.costs.sizes import size_class
from headway.core.items import Priority
from headway.core.queueing.priority import ClassUsage

_FREE: Final = 1.01  # rows are free if they make a batch no longer than this factor
_TIMES_OWN: Final = 2.0  # a batch delays higher classes if it takes longer than two of theirs
_MOST_ROWS: Final = 1_000_000  # no limit
_REDRAW_EVERY: Final = 64  # batches after which portions are computed anew
_STEPS: Final = 32  # to which the share of the higher classes is rounded


class Filling:
    def __init__(self, costs: Costs, workers: int) -> None:
        self._costs = costs
        self._workers = workers
        self._usage = ClassUsage(len(Priority))
        self._portions: dict[tuple[int, int, bool], int] = {}  # rows, by size and share
        self._free: dict[tuple[int, int], int] = {}  # rows, by rows and size
        self._free_version = -1  # the version of the costs that they were computed from
        self._batches = 0

    @property
    def is_used(self) -> bool:
        """Have several classes waited at once?"""
        return self._batches > 0

    def served(self, class_rows: list[int], size: int, now: float) -> None:
        """A batch leaves with these rows of each class."""
        best = self._costs.best_rows(size)
        best_s = self._costs.predict(best, size)
        if best_s is None:
            return
        for index, rows in enumerate(class_rows):
            if rows:
                self._usage.add(index, rows * best_s / best, now)
        self._batches += 1
        if self._batches % _REDRAW_EVERY == 0:
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
        return max(portion, self._free_rows(rows, size)) if rows else portion

    def _free_rows(self, rows: int, size: int) -> int:
        """The most rows that take hardly longer than `rows` rows."""
        if self._free_version != self._costs.version:
            self._free_version = self._costs.version
            self._free.clear()
        key = rows, size_class(size)
        free = self._free.get(key)
        if free is None:
            free = self._free[key] = self._find_free(rows, size)
        return free

    def _find_free(self, rows: int, size: int) -> int:
        costs = self._costs
        seconds = costs.predict(rows, size)
        if seconds is None:
            return _MOST_ROWS
        return max(rows, self._largest_within(_FREE * seconds, costs.best_rows(size), size))

    def _largest_within(self, most_s: float, most: int, size: int) -> int:
        """The largest batch, up to `most` rows, within `most_s`; 0 if none."""
        by_rows, scale = self._costs.by_rows(size)
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            seconds = by_rows[middle]
            if seconds and seconds * scale <= most_s:
                low = middle
            else:
                high = middle - 1
        return low

    def _unnoticed(self, size: int, share: float) -> int:
        """The largest batch that takes no longer than two batches of the higher classes alone.

        A higher item waits for one such batch and then for its own: about twice as long as alone.
        """
        own_s = self._costs.predict(self._portion(size, share), size)
        if own_s is None:
            return 0
        return self._largest_within(_TIMES_OWN * own_s, self._costs.best_rows(size), size)

    def _portion(self, size: int, rate: float) -> int:
        """The smallest batch that reaches the share `rate` of the best rate."""
        costs = self._costs
        by_rows, scale = costs.by_rows(size)
        best = costs.best_rows(size)
        best_s = costs.predict(best, size)
        if best_s is None:
            return _MOST_ROWS
        enough = rate * best / best_s
        low, high = 1, best
        while low < high:  # the rate grows with the rows, up to the best
            middle = (low + high) // 2
            seconds = by_rows[middle]
            if seconds is not None and middle / (seconds * scale) >= enough:
                high = middle
            else:
                low = middle + 1
        return high


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
