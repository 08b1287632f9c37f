"""Who goes with the one who is next, where sizes differ and everyone is padded to the longest.

Sorted by size, those who wait are cut into batches so that all of them together take least time
(a dynamic programme: the best cut before each item is known when its turn comes). The batch that
holds the *anchor*, whose turn it is, leaves; the rest is planned anew next time. So nobody starves,
the long do not wait for the short, and where batching does not pay, each runs alone.
"""

import bisect
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from headway.core.costs import Costs
from headway.core.fitting import Fitting
from headway.core.items import Item

NEIGHBOURS = 128  # at most, on either side of the anchor: who is further off matters little


class Limits(NamedTuple):
    max_rows: int
    max_cost: float  # rows × size, as run
    batch_sizes: tuple[int, ...] = ()  # the only ones the model runs at; empty: any
    fitting: Fitting | None = None

    def padded_rows(self, rows: int) -> int:
        """What the model runs for so many rows."""
        return next((size for size in self.batch_sizes if size >= rows), rows)

    def rows_at(self, size: int) -> int:
        """The most rows of a batch of that size; 0: even the smallest costs too much."""
        most = int(min(self.max_rows, self.max_cost // size)) if size else self.max_rows
        if self.fitting is not None and self.fitting.limits:
            most = min(most, self.fitting.rows_at(size))
        if not self.batch_sizes:
            return most
        return max((each for each in self.batch_sizes if each <= most), default=0)


def plan(items: Sequence[Item], anchor: Item, costs: Costs, limits: Limits) -> list[Item] | None:
    """The items that leave with the anchor, itself included. None: too little is known yet.

    `items`: who may leave, in their order; the anchor is before all others of its kind.
    """
    # Of equal sizes the newest first: a cut through them leaves the newest behind.
    ordered = sorted(items, key=lambda item: (item.size, -item.arrived_at, -item.id))
    at = ordered.index(anchor)
    reach = min(NEIGHBOURS, 2 * limits.max_rows)
    first = max(0, at - reach)
    ordered = ordered[first : at + reach + 1]
    starts = _cuts(ordered, costs, limits)
    if starts is None:
        return None
    stop = len(ordered)
    while starts[stop - 1] > at - first:
        stop = starts[stop - 1]
    return _oldest_alike(ordered[starts[stop - 1] : stop], items)


def _oldest_alike(chosen: Sequence[Item], items: Sequence[Item]) -> list[Item]:
    """As many of each kind, but nobody before those of his own kind who are before him."""
    kinds: dict[tuple[object, ...], deque[Item]] = {}
    for item in items:
        kinds.setdefault(_kind(item), deque()).append(item)
    return [kinds[_kind(item)].popleft() for item in chosen]


def _kind(item: Item) -> tuple[object, ...]:
    return item.size, item.rows, item.priority, item.tenant


def _cuts(ordered: Sequence[Item], costs: Costs, limits: Limits) -> list[int] | None:
    """For each item: where the batch that ends with it starts, if all before it are cut best."""
    import numpy

    rows = [0]
    for item in ordered:
        rows.append(rows[-1] + item.rows)
    rows_before = numpy.array(rows)
    least_s = numpy.zeros(len(ordered) + 1)  # for all before each item
    starts: list[int] = []
    for index, item in enumerate(ordered):
        seconds = costs.seconds_by_rows(item.size)
        if seconds is None:
            return None
        end = rows[index + 1]
        start = min(bisect.bisect_left(rows, end - limits.rows_at(item.size)), index)
        if item.rows >= len(seconds):  # more than a batch: alone
            start, taken = index, least_s[index : index + 1] + seconds[-1]
        else:
            taken = least_s[start : index + 1] + seconds[end - rows_before[start : index + 1]]
        best = int(taken.argmin())
        starts.append(start + best)
        least_s[index + 1] = taken[best]
    return starts


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
    elsewhere = costs.predict(limits.padded_rows(own), item.size)
    if before is None or after is None or elsewhere is None:
        return None
    return after if after - before <= elsewhere * item.rows / own else None
