"""Which sizes share a batch, where every item of a batch is padded to the longest.

Waiting items are cut by size into batches so that all of them together take least time (a dynamic
programme over the sizes that are waiting: the best cut before each is known when its turn comes).
Of the batches that are planned, the one of the *anchor*, whose turn it is, leaves; so only sizes
around it are planned for. So no item starves, the long do not wait for the short, and where
batching does not pay, each runs alone.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from headway.core.costs import Costs
from headway.core.faults.fitting import Fitting

_BELOW_ALL = -1  # some items have no size: 0
_GROUPS = 16  # of neighbouring sizes are told apart by one plan
_REDRAW_EVERY = 64  # plans: what batches take changes slowly


class Limits(NamedTuple):
    max_rows: int
    max_cost: float  # rows × size, as run
    batch_sizes: tuple[int, ...] = ()  # the only ones the model runs at; empty: any
    sizes: tuple[int, ...] = ()  # likewise of the items' sizes; longer ones run as they are
    fitting: Fitting | None = None

    @property
    def is_learned(self) -> bool:
        """Has a batch run out of memory? Then limits change."""
        return self.fitting is not None and bool(self.fitting.limits)

    def padded_rows(self, rows: int) -> int:
        """What the model runs for so many rows."""
        if not self.batch_sizes:
            return rows
        return next((size for size in self.batch_sizes if size >= rows), rows)

    def padded_size(self, size: int) -> int:
        """What the model runs where the longest has that size."""
        return next((each for each in self.sizes if each >= size), size) if self.sizes else size

    def rows_at(self, size: int) -> int:
        """The most rows of a batch of that size; 0: even the smallest costs too much."""
        if self.sizes:
            size = self.padded_size(size)
        most = self.max_rows
        if size and self.max_cost < math.inf:
            most = int(min(most, self.max_cost // size))
        if self.fitting is not None and self.fitting.limits:
            most = min(most, self.fitting.rows_at(size))
        if not self.batch_sizes:
            return most
        return max((each for each in self.batch_sizes if each <= most), default=0)


class Part(NamedTuple):
    """Which items may share one batch: sizes above `low`, up to `high`."""

    low: int
    high: int
    rows: int  # planned for one batch
    best_rows: Sequence[int] = ()  # of so many or fewer, how many have the best rate; empty: all

    def cap(self, rows: int) -> int:
        """How many of so many leave together."""
        return max(self.rows, self.best_rows[rows]) if self.best_rows else rows


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


def shelf_of(sizes: tuple[int, ...]) -> Callable[[int], int]:
    """The class of sizes that an item is planned with: the size the model runs it at or, where it
    runs at any, one of 4 steps an octave."""
    if not sizes:
        return _one_of_4
    return lambda size: next((each for each in sizes if each >= size), size)


def _one_of_4(size: int) -> int:
    shift = size.bit_length() - 3
    return size if shift <= 0 else -(-size >> shift) << shift


class Planner:
    """Finds the part of the best cut that holds some size, in a few microseconds.

    Only what could share a batch with that size, or take its company away, is looked at: a batch's
    worth of rows on each side, in no more than `_GROUPS` groups of neighbouring sizes.
    """

    def __init__(self, costs: Curves, limits: Limits) -> None:
        self._limits = limits
        self._shapes = _Shapes(costs, limits)
        self._plans = 0

    def most_alone(self, size: int, rows: int) -> int | None:
        """How many leave together where there are so many of one size that they need no others;
        None: company may pay."""
        self._plans += 1
        if self._plans % _REDRAW_EVERY == 0 or self._limits.is_learned:
            self._shapes.clear()
        shape = self._shapes[size]
        if shape is None or rows <= shape.most:
            return None
        each, _ = _alone(rows, shape)
        return max(each, shape.best_rows[shape.most])

    def part_of(self, size: int, rows_of: Mapping[int, int]) -> Part:
        if self._limits.is_learned:
            self._shapes.clear()
        near = _neighbours(size, rows_of, self._limits.max_rows)
        part = plan(size, near, self._shapes.__getitem__)
        if part is None:
            guess = _guess(near, self._limits)
            part = plan(size, near, lambda each: shape_at(each, guess, self._limits))
            assert part is not None, "a guess knows every size"
        return part


class Shape(NamedTuple):
    """What batches of one size take."""

    most: int  # rows
    seconds: Sequence[float]  # by rows
    best_rows: Sequence[int]  # of so many or fewer, how many have the best rate


class _Shapes(dict[int, Shape | None]):
    """By size: as they were known some plans ago. What is not known is asked for each time."""

    def __init__(self, costs: Curves, limits: Limits) -> None:
        super().__init__()
        self._costs = costs
        self._limits = limits

    def __missing__(self, size: int) -> Shape | None:
        shape = shape_at(size, self._costs, self._limits)
        if shape is not None:
            self[size] = shape
        return shape


def shape_at(size: int, costs: Curves, limits: Limits) -> Shape | None:
    """None: too little is known yet."""
    curve = costs.planning_curve(size)
    if curve is None:
        return None
    seconds, best_rows = curve
    return Shape(max(1, min(limits.rows_at(size), len(seconds) - 1)), seconds, best_rows)


def _neighbours(size: int, rows_of: Mapping[int, int], max_rows: int) -> dict[int, int]:
    """The sizes around this one, up to the first with which there are more rows than a batch holds
    on that side, in groups of about as many rows each."""
    sizes = sorted(rows_of)
    rows = [rows_of[each] for each in sizes]
    at = bisect.bisect_left(sizes, size)
    below = list(itertools.accumulate(rows[:at][::-1]))
    above = list(itertools.accumulate(rows[at + 1 :]))
    low = max(0, at - 1 - bisect.bisect_right(below, max_rows))
    high = at + 2 + bisect.bisect_right(above, max_rows)
    sizes, rows = sizes[low:high], rows[low:high]
    if len(sizes) <= _GROUPS:
        return dict(zip(sizes, rows, strict=True))
    up_to = list(itertools.accumulate(rows))
    least = up_to[-1] / _GROUPS
    grouped, before, index, last = {}, 0, 0, len(sizes) - 1
    while index <= last:
        index = min(bisect.bisect_left(up_to, before + least, index), last)
        grouped[sizes[index]] = up_to[index] - before
        before = up_to[index]
        index += 1
    return grouped


def _guess(rows_of: Mapping[int, int], limits: Limits) -> Guess:
    rows = sum(rows_of.values())
    mean = sum(size * each for size, each in rows_of.items()) / rows
    return Guess(mean, min(limits.max_rows, rows))


def plan(
    size: int, rows_of: Mapping[int, int], shape_of: Callable[[int], Shape | None]
) -> Part | None:
    """Of the best cut of so many rows of each size, the part for this size (or that it would be in,
    where nobody has it). None: too little is known yet."""
    sizes = sorted(rows_of)
    rows_before, least_s = [0], [0.0]  # of all before each size
    starts: list[int] = []  # of the part that ends with each size, if all before it are cut best
    batches: list[int] = []  # and the rows of one batch of it
    first = end = 0
    for index, each in enumerate(sizes):
        shape = shape_of(each)
        if shape is None:
            return None
        most, seconds, best_rows = shape
        batch_rows = rows_of[each]
        if batch_rows <= most and best_rows[batch_rows] == batch_rows:
            best_s = seconds[batch_rows]
        else:
            batch_rows, best_s = _alone(batch_rows, shape)
        best, best_s = index, best_s + least_s[index]
        end += rows_of[each]
        while first < index and end - rows_before[first] > most:
            first += 1
        for start in range(first, index):
            taken = least_s[start] + seconds[end - rows_before[start]]
            if taken < best_s:
                best, best_s, batch_rows = start, taken, end - rows_before[start]
        rows_before.append(end)
        least_s.append(best_s)
        starts.append(best)
        batches.append(batch_rows)
        first = best  # longer ones have no use for shorter ones that this one left behind
    return _part_of(size, sizes, starts, batches, shape_of)


def _part_of(
    size: int,
    sizes: list[int],
    starts: list[int],
    batches: list[int],
    shape_of: Callable[[int], Shape | None],
) -> Part:
    """Walk back from the largest to the part that holds the size."""
    stop = len(sizes)
    while starts[stop - 1] > 0 and size <= sizes[starts[stop - 1] - 1]:
        stop = starts[stop - 1]
    start, high = starts[stop - 1], sizes[stop - 1]
    low = sizes[start - 1] if start else _BELOW_ALL
    shape = shape_of(high)
    assert shape is not None
    if size > high:
        return Part(high, size, 1, shape.best_rows)
    return Part(low, high, batches[stop - 1], shape.best_rows)


def sorted_chunk(size: int, rows_of: Mapping[int, int], limits: Limits) -> Part:
    """Batches as full as they may be, one after the other, in the order of sizes: the one that
    holds the size."""
    low, last, rows = _BELOW_ALL, 0, 0
    for each in sorted(rows_of):
        if rows and rows + rows_of[each] > max(1, limits.rows_at(each)):
            if size <= last:
                break
            low, rows = last, 0
        last, rows = each, rows + rows_of[each]
    return Part(low, last, rows)


def _alone(rows: int, shape: Shape) -> tuple[int, float]:
    """The rows of one size among themselves, in several batches where that is better: how many
    in each, and what they take together."""
    most, seconds, best_rows = shape
    each = best_rows[rows if rows < most else most]
    batches, rest = divmod(rows, each)
    several_s = batches * seconds[each] + seconds[rest]
    if rows <= most and seconds[rows] <= several_s:
        return rows, seconds[rows]
    return each, several_s


def price_of_a_row(
    rows: int, by_rows: Sequence[float | None], scale: float, limits: Limits
) -> float:
    """What one row more adds to a batch of so many, by what batches take (`Costs.by_rows`);
    infinite where nothing is known."""
    more = rows + 1
    if limits.batch_sizes:
        rows, more = limits.padded_rows(rows), limits.padded_rows(more)
    before, after = by_rows[rows], by_rows[more]
    return math.inf if before is None or after is None else after * scale - before * scale


def price_among_its_own(size: int, company: int, costs: Costs, limits: Limits) -> float:
    """What a row of that size takes in a batch with others like it; none where nothing is known."""
    own = max(1, min(company, limits.rows_at(size)))
    run_rows = own
    if limits.batch_sizes or limits.sizes:
        run_rows, size = limits.padded_rows(own), limits.padded_size(size)
    elsewhere = costs.predict(run_rows, size)
    return -math.inf if elsewhere is None else elsewhere / own
