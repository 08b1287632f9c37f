"""How many replicas the work needs, and what counts as work."""

import pytest

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable
from headway.core.items import Item, Run
from headway.core.lifecycle.scaling import (
    LOADING_WORK,
    SCALED_S,
    WorkRate,
    replicas_for,
    weight_percent,
)
from headway.core.policy import Policy

FLAT = CostTable((1, 2, 4, 8), None, ((0.010,), (0.010,), (0.010,), (0.010,)))
SIZED = CostTable((1, 4), (10, 100), ((0.001, 0.010), (0.004, 0.040)))


@pytest.mark.parametrize(
    ("load", "queued_s", "replicas"),
    [
        (0.0, 0.0, 0),
        (0.35, 0.0, 1),
        (0.7, 0.0, 1),
        (0.71, 0.0, 2),
        (2.8, 0.0, 4),
        (0.35, 0.4, 4),  # a burst: it waits four times as long as it may
        (2.8, 0.1, 4),
    ],
)
def test_load_keeps_the_capacity_and_the_queue_answers_bursts(
    load: float, queued_s: float, replicas: int
) -> None:
    assert replicas_for(load, queued_s, target_wait_s=0.1) == replicas


@pytest.mark.parametrize("load", [0.71, 1.2, 2.0, 4.3, 7.0, 13.9])
def test_replicas_that_start_ask_for_few_further_ones(load: float) -> None:
    """However long they take, and however often a scaler looks meanwhile."""
    needed, here = replicas_for(load, 0.0, target_wait_s=0.1), 1
    for _ in range(100):
        here = replicas_for(load + (here - 1) * LOADING_WORK, 0.0, target_wait_s=0.1)
    assert needed <= here <= 1.2 * needed + 1


def test_a_replica_that_loads_alone_is_wanted() -> None:
    assert replicas_for(LOADING_WORK, 0.0, target_wait_s=0.1) == 1


def test_the_load_of_a_minute_does_not_follow_the_luck_of_seconds() -> None:
    """Work comes in lumps of 15 seconds, twice as much in one as in the next."""
    shown, scaled = WorkRate(), WorkRate(SCALED_S)
    work_s, wanted = 0.0, []
    for tick in range(0, 600, 15):
        work_s += 15 * (4.0 if tick % 30 else 2.0)
        shown_load, load = shown.read(float(tick), work_s), scaled.read(float(tick), work_s)
        if tick > 60:
            assert shown_load in (2.0, 4.0)
            wanted.append(replicas_for(load, 0.0, target_wait_s=0.1))
    assert set(wanted) == {5}


def test_the_load_is_the_rate_of_the_last_seconds() -> None:
    rate = WorkRate()
    assert rate.read(100.0, 7.0) == 0.0
    for tick in range(1, 41):
        load = rate.read(100.0 + tick * 0.25, 7.0 + tick * 0.125)
        assert load == pytest.approx(0.5)
    assert rate.read(112.5, 12.0) == pytest.approx(0.25)
    assert rate.read(130.0, 12.0) == 0.0
    assert rate.read(130.0, 12.0) == 0.0  # twice at one moment


def run_all(scheduler: Scheduler, *items: Item) -> float:
    for item in items:
        scheduler.submit(item)
    work_s, now = 0.0, items[-1].arrived_at
    while isinstance(action := scheduler.next_action(now), Run):
        ran_s = action.batch.predicted_s or 0.010
        now += ran_s
        work_s += scheduler.finish(action.batch, now, ran_s=ran_s)
    return work_s


def test_one_row_in_a_batch_of_its_own_is_an_eighth_of_the_work_of_a_full_batch() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8), FLAT)
    assert run_all(scheduler, Item(1, 0.0)) == pytest.approx(0.010 / 8)
    assert run_all(scheduler, *(Item(n, 1.0) for n in range(8))) == pytest.approx(0.010)


def test_padding_is_no_work_and_a_long_item_is_more_than_a_short_one() -> None:
    items = [Item(1, 0.0, size=10), Item(2, 0.0, size=100)]
    assert run_all(Scheduler(Policy(max_batch_size=4), SIZED), *items) == pytest.approx(0.011)


def test_a_queue_of_long_items_is_more_work_than_one_of_short_items() -> None:
    def queued_s(size: int) -> float:
        scheduler = Scheduler(Policy(max_batch_size=4), SIZED)
        for number in range(12):
            scheduler.submit(Item(number, 0.0, size=size))
        return scheduler.queued_s

    assert queued_s(10) == pytest.approx(0.012)
    assert queued_s(100) == pytest.approx(0.120)


def test_the_work_of_a_model_that_was_never_timed_is_the_time_it_ran() -> None:
    assert run_all(Scheduler(Policy(max_batch_size=8)), Item(1, 0.0)) == pytest.approx(0.010)


def test_a_balancers_weight_falls_with_the_queue_and_never_to_nothing() -> None:
    assert [weight_percent(each) for each in (0.0, 0.05, 0.45, 1000.0)] == [100, 50, 10, 1]
