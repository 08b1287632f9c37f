"""Histograms take a whole batch at a time, and count as if they took one value at a time."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.observe.histogram import Histogram, bounds

BOUNDS = bounds(0.0, 0.5, 1.0, 2.0, 8.0)
ticks = st.integers(0, 160).map(lambda each: each / 16)  # exact, and often on a bound


def test_a_value_on_a_bound_is_within_it() -> None:
    histogram = Histogram(BOUNDS)
    for value in (0.0, 0.5, 0.6, 8.0, 9.0):
        histogram.add(value)
    assert histogram.counts == [1, 1, 1, 0, 1, 1]
    assert histogram.sum == pytest.approx(18.1)


def test_a_value_may_count_several_times() -> None:
    histogram = Histogram(BOUNDS)
    histogram.add(0.75, 3)
    assert histogram.counts == [0, 0, 3, 0, 0, 0]
    assert histogram.sum == 2.25


@given(moments=st.lists(ticks, min_size=1, max_size=30).map(sorted), later=ticks)
def test_ages_of_a_batch_count_as_one_by_one(moments: list[float], later: float) -> None:
    now = moments[-1] + later
    histogram = Histogram(BOUNDS)
    histogram.add_ages(moments, now, sum(moments))
    counts = [0] * 6
    for moment in moments:
        counts[bisect_left(BOUNDS.values, now - moment)] += 1
    assert histogram.counts == counts
    assert histogram.sum == pytest.approx(sum(now - moment for moment in moments))


def test_bounds_are_told_as_both_formats_want_them() -> None:
    assert bounds(1, 0.25).labels == ("1.0", "0.25", "+Inf")
