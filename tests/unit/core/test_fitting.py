"""How many rows fit: plain calls."""

import pytest

from headway.core.faults.fitting import PATIENCE, Fitting, Misfit


def ran(fitting: Fitting, rows: int, times: int, size: int = 0) -> None:
    for _ in range(times):
        fitting.ran(rows, size)


def test_nothing_is_limited_until_something_did_not_fit() -> None:
    fitting = Fitting(64)
    assert not fitting.limits
    assert fitting.rows_at(0) == fitting.rows_at(10_000) == 64


def test_half_of_what_did_not_fit_is_the_limit_of_that_size_and_all_larger_ones() -> None:
    fitting = Fitting(64)
    fitting.failed(Misfit(64, 100))
    assert [fitting.rows_at(size) for size in (0, 63, 64, 127, 128, 10_000)] == [
        *(64, 64),
        *(32, 32, 32, 32),
    ]


def test_more_is_tried_after_enough_batches_at_the_limit_only() -> None:
    fitting = Fitting(64)
    fitting.failed(Misfit(64, 0))
    ran(fitting, 31, 10 * PATIENCE)
    assert fitting.rows_at(0) == 32
    ran(fitting, 32, PATIENCE)
    assert fitting.rows_at(0) == 40


def test_a_try_that_fails_goes_back_to_what_was_known_and_waits_twice_as_long() -> None:
    fitting = Fitting(64)
    fitting.failed(Misfit(64, 0))
    ran(fitting, 32, PATIENCE)
    fitting.failed(Misfit(40, 0))
    assert fitting.rows_at(0) == 32
    ran(fitting, 32, 2 * PATIENCE - 1)
    assert fitting.rows_at(0) == 32
    ran(fitting, 32, 1)
    assert fitting.rows_at(0) == 40


def test_less_memory_than_before_lowers_what_was_known() -> None:
    fitting = Fitting(64)
    fitting.failed(Misfit(64, 0))
    ran(fitting, 32, PATIENCE)
    fitting.failed(Misfit(32, 0))
    assert fitting.rows_at(0) == 16


def test_a_limit_goes_when_full_batches_fit_again() -> None:
    fitting = Fitting(4)
    fitting.failed(Misfit(4, 0))
    for rows in (2, 3, 4):
        assert fitting.rows_at(0) == rows
        ran(fitting, rows, PATIENCE)
    assert not fitting.limits


def test_there_is_always_room_for_one() -> None:
    fitting = Fitting(64)
    for rows in (64, 32, 16, 8, 4, 2, 1, 1):
        fitting.failed(Misfit(rows, 0))
    assert fitting.rows_at(0) == 1


def test_what_was_over_the_limit_anyway_says_nothing_new() -> None:
    fitting = Fitting(64)
    fitting.failed(Misfit(16, 0))
    fitting.failed(Misfit(40, 0))
    assert fitting.rows_at(0) == 8


@pytest.mark.parametrize(("failed", "expected"), [(64, 32), (32, 16), (16, 8), (8, 8)])
def test_fixed_batch_sizes_are_the_only_steps(failed: int, expected: int) -> None:
    fitting = Fitting(64, [8, 16, 32, 64])
    fitting.failed(Misfit(failed, 0))
    assert fitting.rows_at(0) == expected
    ran(fitting, expected, PATIENCE)
    assert fitting.rows_at(0) == 2 * expected


def test_the_number_of_limits_is_bounded_by_the_sizes_bits() -> None:
    fitting = Fitting(64)
    for size in range(5_000):
        fitting.failed(Misfit(64, size))
    assert len(fitting.limits) == 14
