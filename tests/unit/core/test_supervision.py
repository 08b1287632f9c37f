"""When a worker is started again, and when it is given up."""

import math

import pytest

from headway.core.faults.supervision import RestartPolicy, StartWorker, Supervision, WorkerState
from headway.core.items import Wait

POLICY = RestartPolicy(max_restarts=5, patience=2, first_wait_s=1.0, longest_wait_s=3.0)


def started(policy: RestartPolicy = POLICY) -> Supervision:
    worker = Supervision(policy)
    assert worker.next_action(0.0) == StartWorker()
    return worker


def ready(now: float = 0.0) -> Supervision:
    worker = started()
    worker.ready(now)
    return worker


def test_it_starts_once_and_then_waits() -> None:
    worker = started()
    assert worker.next_action(0.0) == Wait(math.inf)
    worker.ready(1.0)
    assert worker.next_action(1.0) == Wait(math.inf)
    assert (worker.state, worker.restarts) == (WorkerState.READY, 0)


def test_one_that_is_lost_while_it_serves_starts_again_at_once() -> None:
    worker = ready()
    worker.ended(10.0, "was killed", has_answered=True)
    assert (worker.state, worker.last_error) == (WorkerState.WAITING, "was killed")
    assert worker.next_action(10.0) == StartWorker()
    assert worker.restarts == 1


def test_one_that_cannot_start_waits_longer_each_time_but_the_first() -> None:
    worker = started()
    now, waits = 0.0, []
    for _ in range(5):
        worker.ended(now, "no weights", has_answered=False)
        action = worker.next_action(now)
        waits.append(action.until - now if isinstance(action, Wait) else 0.0)
        now += waits[-1]
        if waits[-1]:
            assert worker.next_action(now) == StartWorker()
    assert waits == [0.0, 1.0, 2.0, 3.0, 3.0]


def test_lost_again_and_again_without_an_answer_it_is_given_up() -> None:
    worker = ready()
    for now in range(5):
        worker.ended(now * 100.0, "crash", has_answered=False)
        assert worker.next_action(now * 100.0 + 50.0) == StartWorker()
        worker.ready(now * 100.0 + 50.0)
    worker.ended(500.0, "crash", has_answered=False)
    assert worker.state is WorkerState.FAILED
    assert worker.next_action(10_000.0) == Wait(math.inf)


def test_patience_is_longer_with_one_that_was_ready() -> None:
    worker = ready()
    waits = []
    for _ in range(4):
        worker.ended(0.0, "crash", has_answered=False)
        action = worker.next_action(0.0)
        waits.append(action.until if isinstance(action, Wait) else 0.0)
        worker.next_action(waits[-1])
        worker.ready(0.0)
    assert waits == [0.0, 0.0, 1.0, 2.0]


@pytest.mark.parametrize(("ready_s", "answered"), [(0.0, True), (60.0, False)])
def test_an_answer_or_a_quiet_while_forgives_everything(ready_s: float, answered: bool) -> None:
    worker = ready()
    for _ in range(20):
        worker.ended(ready_s, "crash", has_answered=answered)
        assert worker.next_action(ready_s) == StartWorker()
        worker.ready(0.0)
    assert worker.restarts == 20


def test_one_that_is_given_up_at_once_stays_so() -> None:
    worker = ready()
    worker.fail("broke")
    worker.stop()
    assert (worker.state, worker.last_error) == (WorkerState.FAILED, "broke")
    assert worker.next_action(100.0) == Wait(math.inf)


def test_one_that_was_stopped_stays_so() -> None:
    worker = ready()
    worker.stop()
    worker.ended(1.0, "was stopped", has_answered=True)
    assert worker.state is WorkerState.STOPPED
    assert worker.next_action(2.0) == Wait(math.inf)
