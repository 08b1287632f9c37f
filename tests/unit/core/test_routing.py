"""Which replica gets the next request."""

import random

import pytest

from headway.core.routing import Pace, ReplicaView, Router, RoutingRule

FLAT = Pace(0.010, 0.0, 8)
LINEAR = Pace(0.010, 0.010, 4)


def draw(seed: int = 1) -> "random.Random":
    return random.Random(seed)


def test_an_idle_replica_answers_after_one_batch() -> None:
    assert ReplicaView(FLAT).finish_s(5.0) == pytest.approx(0.010)


def test_who_comes_while_a_batch_runs_is_in_the_next_one() -> None:
    view = ReplicaView(FLAT)
    view.sent(1, 0.0)
    assert view.finish_s(0.004) == pytest.approx(0.006 + 0.010)
    view.sent(2, 0.004)
    view.answered(1, 0.010)
    assert view.finish_s(0.010) == pytest.approx(0.020)
    view.answered(2, 0.020)
    assert view.finish_s(0.020) == pytest.approx(0.010)


def test_more_than_a_batch_holds_waits_for_another_one() -> None:
    view = ReplicaView(LINEAR)
    for number in range(9):
        view.sent(number, 0.0)
    # 10 ms of the running batch, 40 of four, 40 of four more, of which this is the last
    assert view.finish_s(0.0) == pytest.approx(0.010 + 0.040 + 0.040 + 0.010)


def test_a_batch_that_is_late_is_expected_to_be_later_still() -> None:
    view = ReplicaView(FLAT)
    view.sent(1, 0.0)
    assert view.finish_s(1.010) > view.finish_s(0.110) > view.finish_s(0.010)


def test_a_slow_replica_is_known_by_its_answers_and_tried_again_in_time() -> None:
    view, now = ReplicaView(FLAT), 0.0
    for number in range(50):
        view.sent(number, now)
        now += 0.030
        view.answered(number, now)
    assert view.finish_s(now) == pytest.approx(0.030, rel=0.02)
    assert view.finish_s(now + 60.0) == pytest.approx(0.010, rel=0.05)


def test_what_failed_says_nothing_of_the_pace_and_leaves_nothing() -> None:
    view = ReplicaView(FLAT)
    view.sent(1, 0.0)
    view.sent(2, 0.0)
    view.failed(1)
    view.failed(2)
    assert view.in_flight == 0
    assert view.finish_s(9.0) == pytest.approx(0.010)


def test_what_others_have_queued_is_known_from_reports_and_fades() -> None:
    view = ReplicaView()
    view.reported(1.0, pace=FLAT, queue_s=0.050)
    assert view.finish_s(1.0) == pytest.approx(0.060)
    assert view.finish_s(1.040) == pytest.approx(0.020)
    assert view.finish_s(2.0) == pytest.approx(0.010)
    view.sent(1, 2.0)
    view.reported(2.0, pace=None, queue_s=0.010)  # that is our own
    assert view.finish_s(2.0) == pytest.approx(0.020)


def busy(*counts: int) -> list[ReplicaView]:
    views = [ReplicaView(LINEAR) for _ in counts]
    for view, count in zip(views, counts, strict=True):
        for number in range(count):
            view.sent(number, 0.0)
    return views


def test_turns_and_chance_look_at_nothing() -> None:
    views = busy(9, 0, 0)
    turns = Router(RoutingRule.ROUND_ROBIN, draw().randrange)
    assert [turns.choose(views, 0.0) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    chance = Router(RoutingRule.RANDOM, draw().randrange)
    assert {chance.choose(views, 0.0) for _ in range(100)} == {0, 1, 2}


def test_finish_takes_the_first_to_answer_and_shares_among_equals() -> None:
    router = Router(RoutingRule.FINISH, draw().randrange)
    assert {router.choose(busy(9, 3, 1), 0.0) for _ in range(100)} == {2}
    assert {router.choose(busy(9, 0, 0), 0.0) for _ in range(100)} == {1, 2}
    assert router.choose(busy(9), 0.0) == 0


def test_of_two_choices_the_worst_of_all_is_never_taken() -> None:
    router = Router(RoutingRule.TWO_CHOICES, draw().randrange)
    chosen = [router.choose(busy(9, 3, 1), 0.0) for _ in range(300)]
    assert set(chosen) == {1, 2}
    assert chosen.count(2) > chosen.count(1)
