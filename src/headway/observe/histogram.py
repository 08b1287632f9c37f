"""A histogram that takes a whole batch at a time. Plain lists; it knows no names and no clock."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Bounds(NamedTuple):
    """The upper bounds of a histogram's buckets; above the last there is one more."""

    values: tuple[float, ...]
    labels: tuple[str, ...]  # the bounds as `le` labels, the last one included


def bounds(*values: float) -> Bounds:
    return Bounds(values, (*(repr(float(value)) for value in values), "+Inf"))


class Histogram:
    """Counts values between bounds, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.counts = [0] * len(bounds.labels)
        self.sum: float = 0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds.values, value)] += times
        self.sum += value * times

    def add_zeros(self, times: int) -> None:
        """Add values of zero: they are all in the first bucket."""
        self.counts[0] += times

    def add_ages(self, moments: Sequence[float], now: float, total: float) -> None:
        """`now - moment` for each of these moments, which are sorted and sum up to `total`.

        The moments of one batch lie close together, so this looks for the few bounds among them
        instead of for the bucket of each.
        """
        values, counts = self.bounds.values, self.counts
        youngest = bisect_left(values, now - moments[-1])
        oldest = bisect_left(values, now - moments[0])
        left = len(moments)
        self.sum += left * now - total
        if youngest == oldest:
            counts[oldest] += left
            return
        for bucket in range(youngest, oldest):
            older = bisect_left(moments, now - values[bucket], 0, left)
            counts[bucket] += left - older
            left = older
        counts[oldest] += left
