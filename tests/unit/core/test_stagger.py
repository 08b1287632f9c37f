"""Callers that come back in step are served in groups, if that lets them come back apart."""

import pytest

from headway.core.batching.stagger import Stagger
from headway.core.costs import Costs, CostTable, probe_rows


def batch_s(rows: int) -> float:
    return 0.001 + 0.0008 * rows


def new_stagger(max_rows: int = 32) -> Stagger:
    rows = probe_rows(max_rows)
    table = CostTable(tuple(rows), None, tuple((batch_s(each),) for each in rows))
    return Stagger(Costs(max_rows, table), max_rows)


def rounds(
    stagger: Stagger, count: int, *, callers: int = 4, think_s: float = 0.006, apart_s: float = 0.0
) -> float:
    """All callers come together, are answered together, and think. When they come next."""
    at = 1.0
    for _ in range(count):
        stagger.arrived([at + number * apart_s / callers for number in range(callers)])
        at += batch_s(callers)
        stagger.answered(at, callers)
        at += think_s
    stagger.arrived([at + number * apart_s / callers for number in range(callers)])
    return at


def test_nobody_is_known_to_be_in_step_at_first() -> None:
    stagger = new_stagger()
    rounds(stagger, 1)
    assert stagger.group(4) == 0


@pytest.mark.parametrize(
    ("callers", "think_s", "group"),
    [
        (4, 0.006, 1),  # 4 · 1.8 ms are less than a batch and a pause
        (4, 0.002, 2),
        (4, 0.0001, 0),  # the second group would wait for two batches
        (24, 0.006, 12),
    ],
)
def test_callers_in_step_are_served_in_the_groups_that_answer_soonest(
    callers: int, think_s: float, group: int
) -> None:
    stagger = new_stagger()
    rounds(stagger, 2, callers=callers, think_s=think_s)
    assert stagger.group(callers) == group


def test_callers_that_come_back_at_any_time_are_left_alone() -> None:
    stagger = new_stagger()
    rounds(stagger, 40, apart_s=0.001)
    assert stagger.group(4) == 0


def test_callers_that_are_nearly_in_step_are_left_alone_for_longer() -> None:
    stagger = new_stagger()
    rounds(stagger, 10, apart_s=0.00006)
    assert stagger.group(4) == 0
    rounds(stagger, 40, apart_s=0.00006)
    assert stagger.group(4) == 1


def test_groups_that_come_back_apart_stay_apart() -> None:
    stagger = new_stagger()
    at = rounds(stagger, 2, callers=4, think_s=0.002)
    assert stagger.group(4) == 2
    ends = [at + batch_s(2), at + 2 * batch_s(2)]
    for turn in range(100):
        stagger.answered(ends[turn % 2], 2)
        stagger.arrived([ends[turn % 2] + 0.002] * 2)
        ends[turn % 2] = ends[1 - turn % 2] + batch_s(2)
        assert stagger.group(4) == 2


def test_groups_that_come_back_together_are_given_up_and_tried_ever_more_rarely() -> None:
    """Callers that wait for each other."""
    stagger = new_stagger()
    at = rounds(stagger, 2, think_s=0.002)
    tried = 0
    for _ in range(1_000):
        group = stagger.group(4)
        tried += group > 0
        for _ in range(4 // (group or 4)):
            at += batch_s(group or 4)
            stagger.answered(at, group or 4)
        at += 0.002
        stagger.arrived([at] * 4)
    assert 2 <= tried <= 4


def test_callers_that_go_away_are_forgotten() -> None:
    stagger = new_stagger()
    rounds(stagger, 5, callers=8)
    rounds(stagger, 5, callers=3)
    assert stagger.group(3) == 1
