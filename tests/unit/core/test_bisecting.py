"""Who broke the batch? Plain calls: groups out, verdicts in."""

import math

import pytest

from headway.core.bisecting import MAX_RERUNS, Bisection

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
