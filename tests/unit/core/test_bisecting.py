"""Who broke the batch? Plain calls: groups out, verdicts in."""

import math
from collections.abc import Set as AbstractSet

import pytest

from headway.core.faults.bisecting import MAX_RERUNS, Bisection

FIRST = ValueError("the whole batch")


def bisect(
    units: int, bad: set[int], max_reruns: int = MAX_RERUNS
) -> tuple[Bisection, list[list[int]]]:
    """Run it to its end against a model that raises for the bad ones."""
    bisection = Bisection(units, FIRST, max_reruns)
    groups = []
    while (group := bisection.next_group()) is not None:
        groups.append(list(group))
        culprits = bad & set(group)
        if culprits:
            bisection.failed(ValueError(sorted(culprits)))
        else:
            bisection.succeeded()
    return bisection, groups


@pytest.mark.parametrize("units", [2, 3, 5, 8, 64, 100, 256])
def test_one_culprit_is_found_wherever_it_is(units: int) -> None:
    for culprit in {0, 1, units // 2, units - 1}:
        bisection, groups = bisect(units, {culprit})
        assert set(bisection.errors) == {culprit}
        assert str(bisection.errors[culprit]) == str(ValueError([culprit]))
        assert len(groups) <= 2 * math.ceil(math.log2(units))


def test_everyone_is_run_again_or_blamed() -> None:
    for bad in ({0}, {7}, {0, 7}, {2, 3}, set(range(8))):
        bisection, groups = bisect(8, bad, max_reruns=100)
        assert set(bisection.errors) == bad
        cleared = {unit for group in groups if not bad & set(group) for unit in group}
        assert cleared == set(range(8)) - bad


def test_no_group_is_run_twice() -> None:
    _, groups = bisect(64, {3, 40, 41}, max_reruns=1000)
    assert len(groups) == len({tuple(group) for group in groups})


@pytest.mark.parametrize("limit", [0, 1, 2, 5, 16])
def test_reruns_are_bounded_and_whoever_is_not_cleared_shares_the_error(limit: int) -> None:
    bisection, groups = bisect(64, set(range(64)), max_reruns=limit)
    assert len(groups) == limit
    assert set(bisection.errors) == set(range(64))


def test_past_the_bound_those_who_were_cleared_stay_cleared() -> None:
    bisection, groups = bisect(64, {63}, max_reruns=3)
    cleared = {unit for group in groups if 63 not in group for unit in group}
    assert cleared
    assert set(bisection.errors) == set(range(64)) - cleared


def test_a_lone_unit_is_its_own_culprit() -> None:
    bisection, groups = bisect(1, {0})
    assert groups == []
    assert bisection.errors == {0: FIRST}


def test_a_failure_that_does_not_come_back_blames_nobody() -> None:
    bisection, groups = bisect(8, set())
    assert bisection.errors == {}
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7]]


# ---- out of memory


def squeeze(
    units: int, *, fits: int, bad: AbstractSet[int] = frozenset(), after: int = 0
) -> list[int]:
    """Run it against a memory for so many units, from the rerun `after` on; the sizes it tried."""
    bisection = Bisection(units, FIRST, out_of_memory=not after)
    tried: list[int] = []
    cleared: set[int] = set()
    while (group := bisection.next_group()) is not None:
        tried.append(len(group))
        if len(group) > fits and len(tried) > after:
            bisection.failed(MemoryError(), out_of_memory=True)
        elif bad & set(group):
            bisection.failed(ValueError())
        else:
            bisection.succeeded()
            cleared |= set(group)
    assert set(bisection.errors) == bad
    assert cleared == set(range(units)) - bad
    return tried


def test_what_does_not_fit_is_halved_until_it_does_and_nobody_is_blamed() -> None:
    assert squeeze(64, fits=5) == [32, 16, 8, *[4] * 16]
    assert squeeze(7, fits=1) == [3, *[1] * 7]


def test_a_culprit_is_found_among_many_that_do_not_fit() -> None:
    for culprit in range(64):
        squeeze(64, fits=5, bad={culprit})


def test_memory_that_shrinks_during_the_search_for_a_culprit_costs_nobody_an_answer() -> None:
    for culprit in range(54):
        for after in range(1, 13):
            squeeze(54, fits=5, bad={culprit}, after=after)


def test_one_that_does_not_fit_alone_is_told_so_and_the_others_run_together_again() -> None:
    bisection = Bisection(64, FIRST, out_of_memory=True)
    groups = []
    while (group := bisection.next_group()) is not None:
        groups.append(len(group))
        if 9 in group:
            bisection.failed(MemoryError(), out_of_memory=True)
        else:
            bisection.succeeded()
    assert set(bisection.errors) == {9}
    assert len(groups) <= 12
    assert groups[-1] == 32
