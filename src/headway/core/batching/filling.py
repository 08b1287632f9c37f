"""How many rows of a lower class may run while a higher one is in use.

A lower class gets what the higher ones leave, in portions. Large portions use the model best and
make a higher item that arrives meanwhile wait long; small ones the other way round. So a batch in
which, or before which, a higher class would wait holds only as many rows as it takes to reach the
rate that is needed: most of the best one while the higher classes use little of it, nearly all of
it when they use nearly all. A batch that takes no more than twice as long as theirs would anyway
is no matter, however many rows it holds.
"""

from typing import Final

from headway.core.costs import Costs
from headway.core.costs.sizes import size_class
from headway.core.items import Priority
from headway.core.queueing.priority import ClassUsage

_FREE: Final = 1.01  # of a batch's time: what takes no longer than this delays nobody
_TIMES_OWN: Final = 2.0  # of what a batch of the higher classes takes: they notice longer ones
_MOST_ROWS: Final = 1_000_000
_REDRAW_EVERY: Final = 64  # batches
_STEPS: Final = 32  # of the share of the classes above


class Filling:
    def __init__(self, costs: Costs, workers: int) -> None:
        self._costs = costs
        self._workers = workers
        self._usage = ClassUsage(len(Priority))
        self._portions: dict[tuple[int, int, bool], int] = {}  # rows, by size and share
        self._free: dict[tuple[int, int], int] = {}  # rows, by rows and size
        self._free_version = -1  # of the costs from which they follow
        self._batches = 0

    @property
    def is_used(self) -> bool:
        """Have several classes waited at once?"""
        return self._batches > 0

    def served(self, class_rows: list[int], size: int, now: float) -> None:
        """A batch leaves with so many rows of each class."""
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
        """The most rows of a batch that has so many of higher classes, once some of this class
        are in it."""
        share = self._usage.above(priority, now) / self._workers if priority else 0.0
        if not share and not rows:
            return _MOST_ROWS  # nobody above is about
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
        """How many rows take no longer than so many."""
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
        """Of so many rows at most; 0 where one takes longer."""
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
        """The largest batch that takes no longer than two of those which the classes above would
        make by themselves. They wait for one such batch before theirs, and for theirs: about twice
        what they would wait alone."""
        own_s = self._costs.predict(self._portion(size, share), size)
        if own_s is None:
            return 0
        return self._largest_within(_TIMES_OWN * own_s, self._costs.best_rows(size), size)

    def _portion(self, size: int, rate: float) -> int:
        """The smallest batch that has so much of the best rate."""
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


# With batches of these two sizes the lower class gets about four fifths of what the higher ones
# leave, and a higher item waits for one of each at most. Found by simulation, where a batch takes
# 1 + 0.8 or 2 + 0.2 for each row.


def lost_between(share: float) -> float:
    """What a batch without higher classes may lose of the best rate, if they use that share."""
    return 0.2 * (1.0 - share) * (1.0 - share * share)


def lost_beside(share: float) -> float:
    """Likewise, of a batch in which a higher class is: it waits for all of it."""
    return lost_between(share) + 0.15 * (1.0 - share) ** 6
