"""How soon callers are back, and with how many of them a batch starts best."""

import math
import random

import pytest

from headway.core.batching.returns import Away, Returns, best_of, starts, together


def seen(draws: list[list[float]], *, thinking: int, until: float) -> Away:
    """After every answer, those came of so many that were away, until the next one."""
    returns = Returns()
    for turn, gaps in enumerate(draws):
        at = 100.0 * turn
        came = [at + gap for gap in gaps if gap <= until]
        returns.learn(came, at, at + until, thinking)
    away = returns.away()
    assert away is not None
    return away


def exponential(think_s: float, callers: int, until: float, seed: int = 5) -> Away:
    draw = random.Random(seed)
    draws = [[draw.expovariate(1 / think_s) for _ in range(callers)] for _ in range(32)]
    return seen(draws, thinking=callers, until=until)


def line(first_s: float, row_s: float, most: int) -> list[float]:
    return [0.0, *(first_s + row_s * items for items in range(1, most + 1))]


def test_before_anybody_has_come_back_nothing_is_known() -> None:
    returns = Returns()
    assert returns.away() is None
    returns.learn([], 0.0, 1.0, 8)
    assert returns.away() is None


@pytest.mark.parametrize("until", [math.inf, 0.004, 0.001])
def test_who_is_not_back_by_the_next_answer_does_not_count_as_gone(until: float) -> None:
    away = exponential(0.002, 24, until if until < math.inf else 1.0)
    for seconds in (0.0005, 0.002, 0.006):
        assert away.at(seconds) == pytest.approx(math.exp(-seconds / 0.002), abs=0.08)


def test_all_are_away_at_first() -> None:
    assert exponential(0.002, 8, 1.0).at(-1e-9) == 1.0


def test_where_callers_think_long_a_wait_brings_next_to_nothing() -> None:
    seconds = line(0.005, 0.00005, 48)
    found = starts(exponential(0.010, 48, 1.0), 48, seconds, 48)
    assert best_of(found, 48).rate_rps <= 1.02 * found[0].rate_rps


def test_callers_that_all_think_alike_are_in_step() -> None:
    constant = seen([[0.006] * 24] * 8, thinking=24, until=1.0)
    assert constant.is_in_step(0.005)
    assert not exponential(0.0005, 24, 1.0).is_in_step(0.005)


def test_callers_in_step_are_best_served_in_two_parts() -> None:
    """One is served while the other thinks: 24 callers, 6 ms, and 5 + 0.05 b for a batch."""
    away = seen([[0.006] * 24] * 8, thinking=24, until=1.0)
    seconds = line(0.005, 0.00005, 24)
    parts = best_of([each for each in starts(away, 24, seconds, 24) if each.items <= 12], 24)
    assert parts.items == pytest.approx(12, abs=0.5)
    assert parts.rate_rps == pytest.approx(12 / 0.0058, rel=0.02)
    assert together(away, 24, seconds, 24).rate_rps == pytest.approx(24 / 0.0122, rel=0.01)


def test_callers_that_do_not_think_at_all_are_all_waited_for() -> None:
    away = seen([[0.0] * 8] * 4, thinking=8, until=0.0)
    seconds = line(0.005, 0.00005, 8)
    assert away.at(0.0) == 0.0
    assert best_of(starts(away, 8, seconds, 8), 8).items == 8
