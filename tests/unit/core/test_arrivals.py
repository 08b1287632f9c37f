"""Who comes because of our answers."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batching.arrivals import Arrivals
from headway.core.queueing.running import Running


def watching(workers: int = 1) -> Arrivals:
    return Arrivals(Running(workers))


def test_the_callers_is_of_lately() -> None:
    arrivals = watching()
    for here in (1, 5, 3):
        arrivals.arrived(0.0, here)
    assert arrivals.callers == 5


def test_callers_who_left_are_forgotten_after_two_windows() -> None:
    arrivals = watching()
    arrivals.arrived(0.0, 100)
    for turn in range(32):
        arrivals.arrived(float(turn), 2)
        arrivals.completed(turn + 0.5, here=0)
    assert arrivals.callers == 2


def test_where_the_same_number_is_here_time_and_again_callers_wait_for_their_answers() -> None:
    arrivals = watching()
    for turn in range(8):
        for here in range(1, 9):
            arrivals.arrived(turn + here / 1000, here)
        arrivals.completed(turn + 0.5, here=0)
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
        arrivals.completed(turn + 0.5, here=0)
        closed += arrivals.is_closed
    assert closed <= 20


def test_one_client_that_asks_again_and_again_is_no_crowd() -> None:
    arrivals = watching()
    for turn in range(50):
        arrivals.arrived(turn + 0.1, 1)
        arrivals.completed(turn + 0.5, here=0)
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
        arrivals.completed(0.9, here=0)
    for number, time in enumerate(times, 1):
        one_by_one.arrived(time, here + number)
    together.arrived_together(times, here)
    for arrivals in (one_by_one, together):
        arrivals.completed(2.0, here=0)
        arrivals.completed(3.0, here=0)
    for arrivals in (one_by_one, together):
        arrivals.completed(4.0, here=0)
    assert one_by_one.callers == together.callers
    assert one_by_one.answered == together.answered
