"""Who comes because of our answers, and how long to hold a batch for them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batching.arrivals import Arrivals
from headway.core.batching.returns import Held, Returns


def watching(workers: int = 1) -> Arrivals:
    return Arrivals(workers)


def returns(*delays_s: float, batches: int = 20) -> Returns:
    """After every batch, so many callers came back so much later."""
    made = Returns()
    for turn in range(batches):
        made.learn(float(turn), [turn + delay_s for delay_s in delays_s])
    return made


def best_wait(
    made: Returns,
    *,
    since_s: float = 0.0,
    items: int = 1,
    missing: int = 1,
    most_s: float = 0.010,
    patient_s: float = 0.010,
    saved_s: float = 0.010,
) -> float:
    return made.best_wait(since_s, Held(items, missing, most_s, patient_s, saved_s))


def test_before_anybody_has_come_back_it_does_not_wait() -> None:
    assert best_wait(Returns()) == 0.0


@pytest.mark.parametrize("delay_s", [0.00002, 0.0001, 0.0003, 0.0005, 0.001, 0.0015])
def test_the_wait_outlasts_the_returns_it_was_learned_from(delay_s: float) -> None:
    assert delay_s <= best_wait(returns(delay_s)) <= 2.0 * delay_s


def test_callers_who_are_back_at_once_are_waited_for_a_moment() -> None:
    assert 0.0 < best_wait(returns(0.0)) <= 0.0001


def test_nobody_is_waited_for_who_comes_too_late() -> None:
    assert best_wait(returns(1.0)) == 0.0


def test_it_never_waits_longer_than_it_may() -> None:
    assert best_wait(returns(0.0005), most_s=0.0004, patient_s=0.0004) <= 0.0004


def test_for_the_last_of_many_it_waits_if_all_are_here_soon() -> None:
    made = returns(*[0.0001 * number for number in range(1, 21)])
    wait = best_wait(made, since_s=0.0015, items=19, saved_s=0.002)
    assert wait >= 0.0005


def test_where_not_all_will_be_here_in_time_those_who_are_here_count() -> None:
    made = returns(*[0.002 * number for number in range(1, 21)])
    assert best_wait(made, items=10, missing=10, saved_s=0.0005) == 0.0


def test_old_returns_fade() -> None:
    made = returns(0.0005, batches=500)
    for turn in range(300):
        made.learn(1000.0 + turn, [1001.0 + turn])
    assert best_wait(made) == 0.0


def test_many_batches_overflow_nothing() -> None:
    made = returns(0.0005, batches=5_000)
    made.learn(1e6, [1e6, 1e6 - 1.0, 1e9])
    assert 0.0005 <= best_wait(made) <= 0.001


def test_the_most_at_once_is_of_lately() -> None:
    arrivals = watching()
    for here in (1, 5, 3):
        arrivals.arrived(0.0, here)
    assert arrivals.most_at_once == 5


def test_callers_who_left_are_forgotten_after_two_windows() -> None:
    arrivals = watching()
    arrivals.arrived(0.0, 100)
    for turn in range(32):
        arrivals.arrived(float(turn), 2)
        arrivals.completed(turn + 0.5, ran_s=0.01)
    assert arrivals.most_at_once == 2


def test_where_the_same_number_is_here_time_and_again_callers_wait_for_their_answers() -> None:
    arrivals = watching()
    for turn in range(8):
        for here in range(1, 9):
            arrivals.arrived(turn + here / 1000, here)
        arrivals.completed(turn + 0.5, ran_s=0.01)
    assert arrivals.is_closed


@pytest.mark.parametrize("mean", [1.2, 5.0, 30.0])
@pytest.mark.parametrize("workers", [1, 4])
def test_independent_arrivals_are_not_taken_for_a_closed_loop(mean: float, workers: int) -> None:
    draw, arrivals = random.Random(7), watching(workers)
    closed = 0
    for turn in range(1_000):
        here = sum(draw.random() < mean / 100 for _ in range(100))  # as good as Poisson
        for number in range(1, here + 1):
            arrivals.arrived(turn + number / 1000, number)
        arrivals.completed(turn + 0.5, ran_s=0.01)
        closed += arrivals.is_closed
    assert closed <= 20


def test_one_client_that_asks_again_and_again_is_no_crowd() -> None:
    arrivals = watching()
    for turn in range(50):
        arrivals.arrived(turn + 0.1, 1)
        arrivals.completed(turn + 0.5, ran_s=0.01)
    assert not arrivals.is_closed


@given(
    gaps=st.lists(st.floats(0.0, 0.02), min_size=1, max_size=20),
    here=st.integers(0, 30),
    seen=st.integers(0, 40),
)
def test_several_at_once_teach_the_same_as_one_by_one(
    gaps: list[float], here: int, seen: int
) -> None:
    times = [1.0 + sum(gaps[: i + 1]) for i in range(len(gaps))]
    one_by_one, together = watching(), watching()
    for arrivals in (one_by_one, together):
        arrivals.arrived(0.5, seen)
        arrivals.completed(0.9, ran_s=0.01)
    for number, time in enumerate(times, 1):
        one_by_one.arrived(time, here + number)
    together.arrived_together(times, here)
    for arrivals in (one_by_one, together):
        arrivals.completed(2.0, ran_s=0.01)
        arrivals.completed(3.0, ran_s=0.01)
    waits = [
        arrivals.return_wait(3.0, Held(4, 2, most_s=1.0, patient_s=1.0, saved_s=0.01))
        for arrivals in (one_by_one, together)
    ]
    assert waits[0] == waits[1]
    assert one_by_one.most_at_once == together.most_at_once
    assert one_by_one.rate_rps == together.rate_rps
