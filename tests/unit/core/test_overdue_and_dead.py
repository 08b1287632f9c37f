"""What counts as stuck, and as dead."""

import pytest

from headway.core.lifecycle.health import (
    Health,
    RunningBatch,
    find_overdue,
    health_of,
    is_live,
    is_stuck,
)


def test_a_batch_is_overdue_when_its_limit_is_reached() -> None:
    running = [RunningBatch(1, since=0.0), RunningBatch(2, since=4.0), RunningBatch(3, since=2.5)]
    found = find_overdue(running, limit_s=3.0, now=3.0)
    assert found.batch_ids == {1}
    assert found.look_at == 5.5  # the next that could be
    assert find_overdue(running, limit_s=3.0, now=7.0).batch_ids == {1, 2, 3}
    assert find_overdue(running, limit_s=3.0, now=7.0).look_at is None
    assert find_overdue([], limit_s=3.0, now=7.0).look_at is None


@pytest.mark.parametrize(
    ("overdue", "workers", "stuck"), [(0, 1, False), (1, 1, True), (1, 2, False), (2, 2, True)]
)
def test_a_model_is_stuck_when_every_worker_is(overdue: int, workers: int, stuck: bool) -> None:
    assert is_stuck(overdue, workers) is stuck


def test_trouble_is_death_and_being_loaded_is_not() -> None:
    assert health_of(is_warm=True, is_open=True, is_in_trouble=False) is Health.READY
    assert health_of(is_warm=False, is_open=True, is_in_trouble=False) is Health.STARTING
    assert health_of(is_warm=True, is_open=False, is_in_trouble=False) is Health.STARTING
    assert health_of(is_warm=True, is_open=False, is_in_trouble=True) is Health.DEAD


def test_a_server_is_live_while_anything_can_complete() -> None:
    assert is_live([])
    assert is_live([Health.STARTING])
    assert is_live([Health.DEAD, Health.READY])
    assert is_live([Health.DEAD, Health.STARTING])
    assert not is_live([Health.DEAD, Health.DEAD])
