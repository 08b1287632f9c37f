import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batching.linger import GapHistogram, Linger

ALWAYS_PAYS = {"batch_s": 0.010, "row_s": 0.0}


def best_wait(
    gaps: GapHistogram, items: int, *, cap_s: float, batch_s: float, row_s: float
) -> float:
    return gaps.best_wait(items, cap_s, batch_s, row_s, credit=0.5)


def histogram(*gaps_s: float) -> GapHistogram:
    made = GapHistogram()
    for gap_s in gaps_s:
        made.add(gap_s)
    return made


def test_without_any_gap_seen_it_does_not_wait() -> None:
    assert best_wait(GapHistogram(), 1, cap_s=0.010, **ALWAYS_PAYS) == 0.0


def test_it_waits_a_little_longer_than_the_gaps_it_has_seen() -> None:
    wait = best_wait(histogram(*[0.0005] * 50), 1, cap_s=0.010, **ALWAYS_PAYS)
    assert 0.0005 <= wait <= 0.0010


@pytest.mark.parametrize("gap_s", [0.00002, 0.0001, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0015])
def test_the_wait_outlasts_the_gap_it_was_learned_from(gap_s: float) -> None:
    """Pinned: the edges were those below each gap, so it gave up just before company came."""
    wait = best_wait(histogram(*[gap_s] * 50), 1, cap_s=0.010, **ALWAYS_PAYS)
    assert gap_s <= wait <= 2.0 * gap_s


def test_arrivals_at_the_same_moment_are_the_shortest_gap_there_is() -> None:
    """Pinned: a gap of nothing was filed as one of half a second."""
    assert 0.0 < best_wait(histogram(*[0.0] * 50), 1, cap_s=0.010, **ALWAYS_PAYS) <= 0.0001


def test_it_does_not_wait_for_what_comes_too_late() -> None:
    assert best_wait(histogram(*[1.0] * 50), 1, cap_s=0.010, **ALWAYS_PAYS) == 0.0


def test_it_never_waits_longer_than_its_cap() -> None:
    assert best_wait(histogram(*[0.0005] * 50), 1, cap_s=0.0004, **ALWAYS_PAYS) <= 0.0004


def test_it_does_not_wait_where_a_larger_batch_saves_nothing() -> None:
    gaps = histogram(*[0.0005] * 50)
    assert best_wait(gaps, 1, cap_s=0.010, batch_s=0.010, row_s=0.010) == 0.0


def test_the_more_wait_the_less_it_pays() -> None:
    gaps = histogram(*[0.002] * 50)
    assert best_wait(gaps, 1, cap_s=0.010, **ALWAYS_PAYS) > 0.0
    assert best_wait(gaps, 40, cap_s=0.010, **ALWAYS_PAYS) == 0.0


def test_old_gaps_fade() -> None:
    gaps = histogram(*[0.0005] * 1000, *[1.0] * 1000)
    assert best_wait(gaps, 1, cap_s=0.010, **ALWAYS_PAYS) == 0.0


def test_a_million_gaps_overflow_nothing() -> None:
    gaps = histogram(*[0.0005] * 20_000, 0.0, -1.0, 1e9)
    assert gaps.total < 1e15
    assert best_wait(gaps, 1, cap_s=0.010, **ALWAYS_PAYS) > 0.0


def test_gaps_after_completions_and_after_arrivals_are_told_apart() -> None:
    """Answered clients come back after 0.5 ms; nobody follows within the next second."""
    linger = Linger()
    for turn in range(100):
        linger.completed(turn * 1.0, ran_s=0.01)
        linger.arrived(turn * 1.0 + 0.0005, 1)
    assert linger.best_wait(1, cap_s=0.010, **ALWAYS_PAYS) == 0.0, "after an arrival: nobody"
    linger.completed(100.0, ran_s=0.01)
    assert linger.best_wait(1, cap_s=0.010, **ALWAYS_PAYS) >= 0.0005, "after a completion: soon"


def test_everyone_is_the_most_seen_at_once_lately() -> None:
    linger = Linger()
    for here in (1, 5, 3):
        linger.arrived(0.0, here)
    assert linger.everyone == 5


def test_callers_who_left_are_forgotten_after_two_windows() -> None:
    linger = Linger()
    linger.arrived(0.0, 100)
    for turn in range(32):
        linger.arrived(float(turn), 2)
        linger.completed(turn + 0.5, ran_s=0.01)
    assert linger.everyone == 2


def test_callers_that_come_back_together_are_worth_a_longer_wait() -> None:
    """Twenty are answered and return as one, 1 ms later: too late for one, not for twenty."""

    def wait_for(clump: int) -> float:
        linger = Linger()
        for turn in range(50):
            linger.completed(turn * 0.011, ran_s=0.010)
            for _ in range(clump):
                linger.arrived(turn * 0.011 + 0.001, 30)
        linger.completed(50 * 0.011, ran_s=0.010)
        return linger.best_wait(20, cap_s=0.003, batch_s=0.010, row_s=0.0)

    assert wait_for(1) == 0.0
    assert wait_for(20) >= 0.001


@given(
    gaps=st.lists(st.floats(0.0, 0.02), min_size=1, max_size=20),
    here=st.integers(0, 30),
    seen=st.integers(0, 40),
)
def test_several_at_once_teach_the_same_as_one_by_one(
    gaps: list[float], here: int, seen: int
) -> None:
    times = [1.0 + sum(gaps[: i + 1]) for i in range(len(gaps))]
    one_by_one, together = Linger(), Linger()
    for linger in (one_by_one, together):
        linger.arrived(0.5, seen)
        linger.completed(0.9, ran_s=0.01)
    for number, time in enumerate(times, 1):
        one_by_one.arrived(time, here + number)
    together.arrived_together(times, here)
    for items in (1, 4, 16):
        waits = [
            linger.best_wait(items, cap_s=1.0, batch_s=0.01, row_s=0.0)
            for linger in (one_by_one, together)
        ]
        assert waits[0] == waits[1]
    assert one_by_one.everyone == together.everyone
