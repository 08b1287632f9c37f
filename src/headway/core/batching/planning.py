"""Which sizes share a batch, if every item of a batch is padded to the longest.

A plan partitions the waiting items by size into batches that together take the least time. (It is a
dynamic programme over the waiting sizes, ascending.) Only one planned batch leaves: the batch of
the *anchor*, the item whose turn it is. So only sizes around the anchor are planned for, no item
starves, long items do not wait for short ones, and items run alone if sharing does not pay.
"""

import math
from collections.abc import Callable
from typing import Final

from headway.core.costs import Costs
from headway.core.faults.fitting import Fitting

INFINITE: Final = math.inf  # a name that compiled code does not look up each time
_BELOW_ALL: Final = -1  # some items have no size: 0
_GROUPS: Final = 16  # groups of neighbouring sizes in one plan, at most


# Limits, parts and shapes are plain classes: compiled code makes and reads them far faster than
# named tuples.


class Limits:
    __slots__ = ("batch_sizes", "fitting", "max_cost", "max_rows", "sizes")

    def __init__(
        self,
        max_rows: int,
        max_cost: float,
        batch_sizes: tuple[int, ...] = (),
        sizes: tuple[int, ...] = (),
        fitting: Fitting | None = None,
    ) -> None:
        self.max_rows = max_rows
        self.max_cost = max_cost  # rows × size, as run
        self.batch_sizes = batch_sizes  # the only ones the model runs at; empty: any
        self.sizes = sizes  # the only item sizes it runs at, for items up to the last; empty: any
        self.fitting = fitting or Fitting(max_rows)

    def padded_rows(self, rows: int) -> int:
        """The rows that the model runs for a batch of `rows` rows."""
        if not self.batch_sizes:
            return rows
        return next((size for size in self.batch_sizes if size >= rows), rows)

    def padded_size(self, size: int) -> int:
        """The size that the model runs if the longest item has `size`."""
        return next((each for each in self.sizes if each >= size), size) if self.sizes else size

    def rows_at(self, size: int) -> int:
        """The most rows of a batch of `size`; 0: even the smallest batch costs too much."""
        if self.sizes:
            size = self.padded_size(size)
        most = self.max_rows
        if size and self.max_cost < INFINITE:
            most = int(min(most, self.max_cost // size))
        if self.fitting.limits:
            most = min(most, self.fitting.rows_at(size))
        if not self.batch_sizes:
            return most
        return max((each for each in self.batch_sizes if each <= most), default=0)


class Part:
    """Which items may share one batch: sizes above `low`, up to `high`."""

    __slots__ = ("high", "low", "rows")

    def __init__(self, low: int, high: int, rows: int) -> None:
        self.low = low
        self.high = high
        self.rows = rows  # planned for one batch


def shelf_of(sizes: tuple[int, ...]) -> Callable[[int], int]:
    """Returns a function from an item's size to its class of sizes.

    The class is the size that the model runs it at or, if it runs at any, one of 4 per octave.
    """
    if not sizes:
        return _one_of_4
    return lambda size: next((each for each in sizes if each >= size), size)


def _one_of_4(size: int) -> int:
    shift = size.bit_length() - 3
    return size if shift <= 0 else -(-size >> shift) << shift


class Shape:
    """The times of batches of one size."""

    __slots__ = ("best_rows", "most", "seconds")

    def __init__(self, most: int, seconds: list[float], best_rows: list[int]) -> None:
        self.most = most  # rows in a batch
        self.seconds = seconds  # by rows
        self.best_rows = best_rows  # by rows: up to that many, the number with the best rate


class Planner:
    """Finds the part of the best partition that contains a given size, in a few microseconds.

    Only items that could share a batch with that size, or with its neighbours, are considered: a
    batch's worth of rows on each side, in at most `_GROUPS` groups of neighbouring sizes.
    """

    def __init__(self, costs: Costs, limits: Limits) -> None:
        self._costs = costs
        self._limits = limits
        self._shapes: dict[int, Shape] = {}  # by size
        self._version = 0  # of the costs that they were drawn from

    def most_alone(self, size: int, rows: int) -> int | None:
        """How many rows leave together, if `rows` rows of one size suffice without others.

        None: mixing sizes may pay.
        """
        if self._version != self._costs.version or self._limits.fitting.limits:
            self._version = self._costs.version
            self._shapes.clear()
        shape = self._shape_of(size)
        if shape is None or rows <= shape.most:
            return None
        each, _ = _alone(rows, shape)
        return max(each, shape.best_rows[shape.most])

    def part_of(self, size: int, sizes: list[int], rows: list[int]) -> Part:
        """The part for `size`. `sizes`: of all waiting items, ascending; `rows`: of each size."""
        if self._limits.fitting.limits:
            self._shapes.clear()
        sizes, rows = _neighbours(size, sizes, rows, self._limits.max_rows)
        shapes: list[Shape] = []
        for each in sizes:
            shape = self._shape_of(each)
            if shape is None:  # too little is known yet
                shapes = _guessed_shapes(sizes, rows, self._limits)
                break
            shapes.append(shape)
        return plan(size, sizes, rows, shapes)

    def _shape_of(self, size: int) -> Shape | None:
        """The shape, kept once it is known, until the costs change."""
        shape = self._shapes.get(size)
        if shape is None:
            shape = shape_at(size, self._costs, self._limits)
            if shape is not None:
                self._shapes[size] = shape
        return shape


def shape_at(size: int, costs: Costs, limits: Limits) -> Shape | None:
    """None: too little is known yet."""
    curve = costs.planning_curve(size)
    if curve is None:
        return None
    seconds, best_rows = curve
    return Shape(max(1, min(limits.rows_at(size), len(seconds) - 1)), seconds, best_rows)


def _guessed_shapes(sizes: list[int], rows: list[int], limits: Limits) -> list[Shape]:
    """For a model that has not been timed: every padded row costs its size, and every batch as much
    in addition as one mean row."""
    in_all = sum(rows)
    most = min(limits.max_rows, in_all)
    mean = sum([size * rows[index] for index, size in enumerate(sizes)]) / in_all
    best_rows = list(range(most + 1))
    shapes: list[Shape] = []
    for size in sizes:
        seconds = [0.0, *[mean + each * size for each in best_rows[1:]]]
        shapes.append(Shape(max(1, min(limits.rows_at(size), most)), seconds, best_rows))
    return shapes


def _neighbours(
    size: int, sizes: list[int], rows: list[int], max_rows: int
) -> tuple[list[int], list[int]]:
    """The sizes around `size`, ascending, and the rows of each.

    On each side, more rows than a batch holds are enough. Many sizes are merged into groups.
    """
    low, last = 0, len(sizes)
    while low < last and sizes[low] < size:
        low += 1
    high = low + 1
    beside = 0
    while low > 0 and beside <= max_rows:
        low -= 1
        beside += rows[low]
    beside = 0
    while high < last and beside <= max_rows:
        beside += rows[high]
        high += 1
    if low > 0 or high < last:
        sizes, rows = sizes[low:high], rows[low:high]
    return (sizes, rows) if len(sizes) <= _GROUPS else _grouped(sizes, rows)


def _grouped(sizes: list[int], rows: list[int]) -> tuple[list[int], list[int]]:
    """Merge neighbouring sizes into groups of about equal rows, named by their largest size."""
    least = sum(rows) / _GROUPS
    last = len(sizes) - 1
    group_sizes: list[int] = []
    group_rows: list[int] = []
    before = up_to = 0
    for index, size in enumerate(sizes):
        up_to += rows[index]
        if index == last or up_to >= before + least:
            group_sizes.append(size)
            group_rows.append(up_to - before)
            before = up_to
    return group_sizes, group_rows


def plan(size: int, sizes: list[int], rows: list[int], shapes: list[Shape]) -> Part:
    """The part of the best partition that contains `size`, even if no item has that size.

    `sizes`: ascending; `rows`: the waiting rows of each.
    """
    rows_before, least_s = [0], [0.0]  # rows and least time of all smaller sizes, by index of size
    starts: list[int] = []  # by index: where the part that ends with this size best starts
    batches: list[int] = []  # by index: the rows of one batch of that part
    first = end = 0
    for index, shape in enumerate(shapes):
        most, seconds = shape.most, shape.seconds
        batch_rows = rows[index]
        end += batch_rows
        if batch_rows <= most and shape.best_rows[batch_rows] == batch_rows:
            best_s = seconds[batch_rows]
        else:
            batch_rows, best_s = _alone(batch_rows, shape)
        best = index
        best_s += least_s[index]
        while first < index and end - rows_before[first] > most:
            first += 1
        for start in range(first, index):
            together = end - rows_before[start]
            taken_s = least_s[start] + seconds[together]
            if taken_s < best_s:
                best, best_s, batch_rows = start, taken_s, together
        rows_before.append(end)
        least_s.append(best_s)
        starts.append(best)
        batches.append(batch_rows)
        first = best  # no later part starts before this one: it would waste more padding
    # Walk back from the largest size to the part that contains `size`.
    stop = len(sizes)
    while starts[stop - 1] > 0 and size <= sizes[starts[stop - 1] - 1]:
        stop = starts[stop - 1]
    start, high = starts[stop - 1], sizes[stop - 1]
    if size > high:
        return Part(high, size, 1)
    return Part(sizes[start - 1] if start else _BELOW_ALL, high, batches[stop - 1])


def sorted_chunk(size: int, sizes: list[int], rows: list[int], limits: Limits) -> Part:
    """The batch that contains `size`, if batches are filled one after the other by size."""
    low, last, chunk_rows = _BELOW_ALL, 0, 0
    for index, each in enumerate(sizes):
        if chunk_rows and chunk_rows + rows[index] > max(1, limits.rows_at(each)):
            if size <= last:
                break
            low, chunk_rows = last, 0
        last, chunk_rows = each, chunk_rows + rows[index]
    return Part(low, last, min(chunk_rows, max(1, limits.rows_at(last))))


def _alone(rows: int, shape: Shape) -> tuple[int, float]:
    """Rows of one size without others, in several batches if that is better.

    Returns the rows of each batch, and the time of all of them together.
    """
    most, seconds = shape.most, shape.seconds
    each = shape.best_rows[rows if rows < most else most]
    batches, rest = divmod(rows, each)
    several_s = batches * seconds[each] + seconds[rest]
    if rows <= most and seconds[rows] <= several_s:
        return rows, seconds[rows]
    return each, several_s
