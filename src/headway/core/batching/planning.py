"""Which sizes go together, where everyone in a batch is padded to its longest.

Those who wait are cut by size into batches so that all of them together take least time (a dynamic
programme over the sizes that are waiting: the best cut before each is known when its turn comes).
What comes out are bounds, not names: so a plan can be made while the workers are busy, and whoever
has come or gone meanwhile needs no new one. Of the batches that are planned, the one of the
*anchor*, whose turn it is, leaves. So nobody starves, the long do not wait for the short, and where
batching does not pay, each runs alone.
"""

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from headway.core.costs import Costs, size_class
from headway.core.faults.memory import Fitting
from headway.core.items import Item

_BELOW_ALL = -1  # some items have no size: 0


class Limits(NamedTuple):
    max_rows: int
    max_cost: float  # rows × size, as run
    batch_sizes: tuple[int, ...] = ()  # the only ones the model runs at; empty: any
    sizes: tuple[int, ...] = ()  # likewise of the items' sizes; longer ones run as they are
    fitting: Fitting | None = None

    def padded_rows(self, rows: int) -> int:
        """What the model runs for so many rows."""
        return next((size for size in self.batch_sizes if size >= rows), rows)

    def padded_size(self, size: int) -> int:
        """What the model runs where the longest has that size."""
        return next((each for each in self.sizes if each >= size), size) if self.sizes else size

    def rows_at(self, size: int) -> int:
        """The most rows of a batch of that size; 0: even the smallest costs too much."""
        size = self.padded_size(size)
        most = int(min(self.max_rows, self.max_cost // size)) if size else self.max_rows
        if self.fitting is not None and self.fitting.limits:
            most = min(most, self.fitting.rows_at(size))
        if not self.batch_sizes:
            return most
        return max((each for each in self.batch_sizes if each <= most), default=0)


class Part(NamedTuple):
    """Who may share one batch: sizes above `low`, up to `high`."""

    low: int
    high: int
    rows: int  # planned for one batch
    best_rows: Sequence[int] = ()  # of so many or fewer, how many have the best rate; empty: all

    def cap(self, rows: int) -> int:
        """How many of so many leave together."""
        return max(self.rows, self.best_rows[rows]) if self.best_rows else rows


class Plan(NamedTuple):
    parts: tuple[Part, ...]  # by size; each begins where the last one ends

    def part_of(self, size: int) -> Part:
        """The part for that size, though nobody of it may have been there when it was made."""
        parts = self.parts
        at = bisect.bisect_left(parts, size, key=lambda part: part.high)
        if at < len(parts):
            return parts[at]
        last = parts[-1]
        return Part(last.high, size, 1, last.best_rows)


class Curves(Protocol):
    def planning_curve(self, size: int) -> tuple[Sequence[float], Sequence[int]] | None: ...


class Guess(NamedTuple):
    """Of a model that nobody has timed: every padded row costs its size, and every batch as much
    again as one item does."""

    batch_cost: float
    max_rows: int

    def planning_curve(self, size: int) -> tuple[Sequence[float], Sequence[int]]:
        costs = [self.batch_cost + rows * size for rows in range(self.max_rows + 1)]
        return [0.0, *costs[1:]], range(self.max_rows + 1)


def guessed_plan(waiting: Sequence[Item], limits: Limits) -> Plan:
    """The best cut as far as can be told without any times: like goes with like."""
    mean = sum(item.size for item in waiting) / len(waiting)
    rows = min(limits.max_rows, sum(item.rows for item in waiting))
    made = plan(waiting, Guess(mean, rows), limits)
    assert made is not None, "a guess knows every size"
    return made


def plan(waiting: Iterable[Item], costs: Curves, limits: Limits) -> Plan | None:
    """The best cut of those who wait. None: too little is known yet."""
    rows_of = _rows_by_class(waiting, limits)
    sizes = sorted(rows_of)
    rows_before, least_s = [0], [0.0]  # of all before each size
    parts: list[Part] = []  # that end with each size, if all before it are cut best
    starts: list[int] = []
    first = 0
    for index, size in enumerate(sizes):
        curve = costs.planning_curve(size)
        if curve is None:
            return None
        seconds, best_rows = curve
        most = max(1, min(limits.rows_at(size), len(seconds) - 1))
        end = rows_before[-1] + rows_of[size]
        batch_rows, best_s = _alone(rows_of[size], most, seconds, best_rows)
        best, best_s = index, best_s + least_s[index]
        while end - rows_before[first] > most and first < index:
            first += 1
        for start in range(first, index):
            taken = least_s[start] + seconds[end - rows_before[start]]
            if taken < best_s:
                best, best_s, batch_rows = start, taken, end - rows_before[start]
        rows_before.append(end)
        least_s.append(best_s)
        starts.append(best)
        parts.append(Part(sizes[best - 1] if best else _BELOW_ALL, size, batch_rows, best_rows))
        first = best  # longer ones have no use for shorter ones that this one left behind
    return Plan(tuple(_walked_back(parts, starts)))


def sorted_chunks(waiting: Sequence[Item], limits: Limits) -> Plan:
    """Batches as full as they may be, one after the other, in the order of sizes."""
    parts: list[Part] = []
    low, size, rows = _BELOW_ALL, 0, 0
    for item in sorted(waiting, key=lambda item: item.size):
        most = max(1, limits.rows_at(item.size))
        if rows and rows + item.rows > most and item.size > size:
            parts.append(Part(low, size, rows))
            low, rows = size, 0
        size, rows = item.size, rows + item.rows
    return Plan((*parts, Part(low, size, rows)))


def take(waiting: Iterable[Item], anchor: Item, part: Part, limits: Limits) -> list[Item]:
    """The anchor and those of its part, in their order, up to every limit."""
    low, high = part.low, part.high
    chosen, rows, size = [anchor], anchor.rows, anchor.size
    most = limits.rows_at(size)
    for item in waiting:
        if rows >= most:
            break
        if not low < item[3] <= high or item is anchor:  # size
            continue
        fewer = most if item[3] <= size else limits.rows_at(item[3])
        if rows + item[2] > fewer:
            continue
        size, most = max(size, item[3]), fewer
        chosen.append(item)
        rows += item[2]
    cap = part.cap(rows) if rows <= limits.max_rows else rows
    while rows > cap and len(chosen) > 1:
        rows -= chosen.pop().rows
    return chosen


def _rows_by_class(waiting: Iterable[Item], limits: Limits) -> dict[int, int]:
    """Sizes that cost the same are not told apart: few are left, however many wait."""
    by_size: dict[int, int] = {}
    for item in waiting:
        size = item[3]
        by_size[size] = by_size.get(size, 0) + item[2]
    class_of: Callable[[int], int] = limits.padded_size if limits.sizes else size_class
    by_class: dict[int, int] = {}
    for size, rows in by_size.items():
        cost_class = class_of(size)
        by_class[cost_class] = by_class.get(cost_class, 0) + rows
    return by_class


def _alone(
    rows: int, most: int, seconds: Sequence[float], best_rows: Sequence[int]
) -> tuple[int, float]:
    """The rows of one size among themselves, in several batches where that is better: how many
    in each, and what they take together."""
    each = best_rows[min(rows, most)]
    batches, rest = divmod(rows, each)
    several_s = batches * seconds[each] + seconds[rest]
    if rows <= most and seconds[rows] <= several_s:
        return rows, seconds[rows]
    return each, several_s


def _walked_back(parts: Sequence[Part], starts: Sequence[int]) -> list[Part]:
    walked: list[Part] = []
    stop = len(parts)
    while stop:
        walked.append(parts[stop - 1])
        stop = starts[stop - 1]
    return walked[::-1]


def fills(
    item: Item, rows: int, size: int, *, company: int, costs: Costs, limits: Limits
) -> float | None:
    """How long the batch takes with the item in it; None: that would cost more than running it
    among its own `company` of rows."""
    more, own = rows + item.rows, max(1, min(company, limits.rows_at(item.size)))
    if item.size > size or more > limits.rows_at(size):
        return None
    before = costs.predict(limits.padded_rows(rows), size)
    after = costs.predict(limits.padded_rows(more), size)
    elsewhere = costs.predict(limits.padded_rows(own), limits.padded_size(item.size))
    if before is None or after is None or elsewhere is None:
        return None
    return after if after - before <= elsewhere * item.rows / own else None
