"""How large batches may be where their times vary."""

import random
from itertools import accumulate

import pytest

from headway.core.batching.steadying import Coming, Steadying, measure_coming
from headway.core.costs import Costs, CostTable

# Rows and what they serve a second, where a batch takes 1 + 0.8 ms a row.
SIZES = [(rows, 1e3 * rows / (1 + 0.8 * rows)) for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)]
HALF = Coming(mean_rps=600.0, busy_rps=700.0, bunched=1.0)


def test_steady_batches_may_have_any_size() -> None:
    assert Steadying(SIZES, 0.02, HALF).most_rows(100) is None


def test_where_some_batches_take_ten_times_as_long_they_are_small() -> None:
    rows = Steadying(SIZES, 1.0, HALF).most_rows(32)
    assert rows is not None
    assert 3 <= rows <= 8


def test_the_more_comes_the_larger_they_are() -> None:
    sizes = [
        Steadying(SIZES, 0.1, Coming(rps, rps, 1.0)).most_rows(1) or 32
        for rps in (200.0, 600.0, 900.0, 1050.0, 1150.0)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < 8 < sizes[-1]


def test_of_a_long_queue_the_rate_counts() -> None:
    steadying = Steadying(SIZES, 0.1, HALF)
    taken = [steadying.most_rows(waiting) or 0 for waiting in (1, 32, 1_000, 100_000)]
    assert taken == sorted(taken)
    assert taken[-1] == 32


def test_bursts_that_no_size_serves_are_served_at_the_best_rate() -> None:
    assert Steadying(SIZES, 1.0, HALF._replace(busy_rps=1_500.0)).most_rows(32) is None


def test_more_than_the_worker_serves_is_served_at_the_best_rate() -> None:
    assert Steadying(SIZES, 1.0, Coming(1_250.0, 1_250.0, 1.0)).most_rows(32) is None


def test_a_size_that_does_not_keep_up_with_the_mean_is_not_chosen() -> None:
    """Pinned: nearly all came in one burst, so that hardly a span was busy, and a queue that grows
    for ever counted as negative."""
    times = arrivals([10.0] * 148 + [0.01] * 1_900)
    coming = measure_coming(times)
    assert coming is not None
    assert coming.busy_rps < 1.0 < coming.mean_rps
    slow = [(rows, rows / (0.5 + 0.5 * rows)) for rows in (1, 2, 4, 8)]
    rows = Steadying(slow, 1.0, coming).most_rows(3)
    assert rows is None or rows >= 4


def test_where_a_row_costs_little_batches_stay_large() -> None:
    cheap = [(rows, 1e3 * rows / (5 + 0.05 * rows)) for rows in (1, 2, 4, 8, 16, 32, 64)]
    rows = Steadying(cheap, 0.1, Coming(4_000.0, 4_500.0, 1.0)).most_rows(64)
    assert rows is None or rows >= 48


def test_nothing_is_said_without_sizes_or_before_there_are_arrivals() -> None:
    assert Steadying().most_rows(5) is None
    assert Steadying(SIZES, 1.0, None).most_rows(5) is None


# ---- what comes


def arrivals(gaps_s: list[float]) -> list[float]:
    return list(accumulate(gaps_s))


def test_few_arrivals_say_nothing() -> None:
    assert measure_coming(arrivals([0.001] * 2047)) is None
    assert measure_coming([1.0] * 2048) is None


def test_arrivals_that_know_nothing_of_each_other_are_not_bunched() -> None:
    rng = random.Random(1)
    coming = measure_coming(arrivals([rng.expovariate(1_000.0) for _ in range(2048)]))
    assert coming is not None
    assert coming.mean_rps == pytest.approx(1_000.0, rel=0.1)
    assert coming.busy_rps == pytest.approx(1_100.0, rel=0.1)
    assert coming.bunched < 3.0


def test_bursts_are_seen() -> None:
    coming = measure_coming(arrivals(([0.0005] * 200 + [0.002] * 200) * 6))
    assert coming is not None
    assert coming.bunched > 10.0
    assert coming.busy_rps > 1.3 * coming.mean_rps


def test_items_of_several_rows_come_in_rows() -> None:
    times = arrivals([0.001] * 2048)
    one, four = measure_coming(times), measure_coming(times, item_rows=4.0)
    assert one is not None
    assert four == Coming(4 * one.mean_rps, 4 * one.busy_rps, 4 * one.bunched)


# ---- how much batch times vary


def costs_after(ratios: list[float]) -> Costs:
    costs = Costs(max_rows=8, table=CostTable((1, 8), None, ((0.010,), (0.010,))))
    for ratio in ratios:
        costs.observe(8, 0, 0.010 * ratio)
    return costs


def test_batches_that_take_the_same_do_not_vary() -> None:
    assert costs_after([1.0] * 200).variation == pytest.approx(0.0, abs=1e-6)


def test_before_enough_batches_have_run_none_varies() -> None:
    assert costs_after([1.0, 9.0] * 16).variation == 0.0


def test_one_slow_batch_in_fifty_is_most_of_the_variance() -> None:
    assert costs_after(([1.0] * 49 + [10.0]) * 40).variation == pytest.approx(1.1, rel=0.3)


def test_the_first_batches_do_not_count() -> None:
    assert costs_after([100.0] * 3 + [1.0] * 500).variation < 0.02
