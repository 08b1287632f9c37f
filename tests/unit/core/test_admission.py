import heapq
import math
import random
from contextlib import suppress

import pytest

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable
from headway.core.items import (
    Batch,
    Item,
    Priority,
    Refusal,
    RefusalReason,
    Refuse,
    Run,
    Wait,
)
from headway.core.policy import Firing, Policy
from headway.core.queueing.admission import refusal_error
from headway.errors import DeadlineExceeded, InputTooLarge, QueueFull, Shed

LINEAR = CostTable(rows=(1, 4), sizes=None, seconds=((0.010,), (0.040,)))
FLAT = CostTable(rows=(1, 4), sizes=None, seconds=((0.010,), (0.010,)))
STEADY = CostTable(rows=(1, 4), sizes=None, seconds=((0.034,), (0.040,)))


# ---- a bounded queue


def test_a_full_queue_refuses_at_once_and_says_its_limit_and_when_to_come_back() -> None:
    scheduler = Scheduler(Policy(max_queue=8, max_batch_size=4), FLAT)
    for i in range(8):
        scheduler.submit(Item(i, 0.0))
    with pytest.raises(QueueFull) as caught:
        scheduler.submit(Item(8, 0.0))
    assert caught.value.limit == 8
    assert caught.value.retry_after_s == pytest.approx(0.020)
    assert scheduler.queued_rows == 8


def test_what_no_queue_could_hold_is_too_large() -> None:
    scheduler = Scheduler(Policy(max_queue=8, max_batch_size=4))
    with pytest.raises(InputTooLarge) as caught:
        scheduler.submit(Item(0, 0.0, rows=9))
    assert caught.value.limit == 8


def test_whom_a_higher_class_pushed_out_is_told_so() -> None:
    scheduler = Scheduler(Policy(max_queue=4, max_batch_size=4))
    for i in range(4):
        scheduler.submit(Item(i, 0.0, priority=Priority.LOW))
    scheduler.submit(Item(4, 0.0, priority=Priority.HIGH))
    action = scheduler.next_action(0.0)
    assert isinstance(action, Refuse)
    assert [(each.item.id, each.reason) for each in action.refusals] == [
        (3, RefusalReason.QUEUE_FULL)
    ]
    assert scheduler.queued_rows == 4


def test_a_flooding_tenant_cannot_keep_out_or_push_out_a_quiet_one() -> None:
    scheduler = Scheduler(Policy(max_queue=100, max_batch_size=4))
    for i in range(100):
        scheduler.submit(Item(i, 0.0, tenant="flood"))
    for i in range(100, 110):
        scheduler.submit(Item(i, 0.1, tenant="quiet"))
    refused = scheduler.next_action(0.1)
    assert isinstance(refused, Refuse)
    assert {each.item.tenant for each in refused.refusals} == {"flood"}
    assert len(refused.refusals) == 10
    with pytest.raises(QueueFull):
        scheduler.submit(Item(200, 0.2, tenant="flood"))


def test_nobody_is_pushed_out_for_a_request_that_does_not_fit_anyway() -> None:
    scheduler = Scheduler(Policy(max_queue=4, max_batch_size=4))
    for i in range(3):
        scheduler.submit(Item(i, 0.0))
    scheduler.submit(Item(3, 0.0, priority=Priority.LOW))
    with pytest.raises(QueueFull):
        scheduler.submit(Item(4, 0.0, rows=2))
    action = scheduler.next_action(0.0)
    assert isinstance(action, Run)
    assert len(action.batch.items) == 4


# ---- hopeless work never enters


def test_a_deadline_that_has_passed_is_refused_at_the_door() -> None:
    for firing in (Policy(), Policy(firing=Firing.STATIC)):
        with pytest.raises(DeadlineExceeded):
            Scheduler(firing).submit(Item(0, 1.0, deadline=1.0))


def test_a_lone_item_runs_on_a_free_worker_however_short_its_deadline() -> None:
    """The estimate may be wrong. If it refused everyone, nobody would ever find out."""
    scheduler = Scheduler(Policy(max_batch_size=4), LINEAR)
    scheduler.submit(Item(0, 0.0, deadline=0.001))
    action = scheduler.next_action(0.0)
    assert isinstance(action, Run)
    with pytest.raises(DeadlineExceeded):
        scheduler.submit(Item(1, 0.0, deadline=0.001))  # now somebody is in front of it


def test_a_deadline_behind_the_queue_is_refused_at_the_door() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4), LINEAR)
    for i in range(8):
        scheduler.submit(Item(i, 0.0, deadline=0.085))
    with pytest.raises(DeadlineExceeded):
        scheduler.submit(Item(8, 0.0, deadline=0.089))
    scheduler.submit(Item(9, 0.0, deadline=0.091))


def test_a_deadline_is_not_behind_those_who_are_due_later() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4), LINEAR)
    for i in range(8):
        scheduler.submit(Item(i, 0.0, deadline=9.0 if i % 2 else math.inf))
    scheduler.submit(Item(8, 0.0, deadline=0.015))
    action = scheduler.next_action(0.0)
    assert isinstance(action, Run)
    assert 8 in {item.id for item in action.batch.items}


def test_a_higher_class_is_not_behind_the_queue() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4), LINEAR)
    for i in range(8):
        scheduler.submit(Item(i, 0.0))
    scheduler.submit(Item(8, 0.0, deadline=0.041, priority=Priority.HIGH))


def test_what_would_miss_the_slo_is_shed_at_the_door_with_a_time_to_come_back() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, slo_s=0.050), LINEAR)
    for i in range(4):
        scheduler.submit(Item(i, 0.0))
    scheduler.submit(Item(4, 0.0))
    for i in range(5, 8):
        scheduler.submit(Item(i, 0.0))
    with pytest.raises(Shed) as caught:
        scheduler.submit(Item(8, 0.0))
    assert caught.value.retry_after_s == pytest.approx(0.080)


def test_the_running_batch_counts_as_wait() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, slo_s=0.070), STEADY)
    for i in range(4):
        scheduler.submit(Item(i, 0.0))
    assert isinstance(scheduler.next_action(0.0), Run)
    with pytest.raises(Shed):
        scheduler.submit(Item(4, 0.001))  # 39 ms until the worker is free, then 34 ms
    scheduler.submit(Item(5, 0.006))


# 36 ms for a full batch of 32
SLEEPY = CostTable(rows=(1, 32), sizes=None, seconds=((0.0205,), (0.036,)))


def flooded(scheduler: Scheduler, *, gap_s: float, start: float, stop: float) -> tuple[int, int]:
    """One item every `gap_s`: how many were refused at the door, and how many after a wait."""
    arrivals = iter(range(int((stop - start) / gap_s)))
    at_door = later = 0
    running: tuple[float, Batch] | None = None
    next_at: float | None = start
    while next_at is not None or running is not None:
        if running is not None and (next_at is None or running[0] <= next_at):
            now, batch = running
            scheduler.finish(batch, now, ran_s=now - batch.fired_at)
            running = None
        else:
            assert next_at is not None
            now, number = next_at, next(arrivals, None)
            next_at = None if number is None else start + (number + 1) * gap_s
            if number is not None:
                try:
                    scheduler.submit(Item(round(start * 1e6) + number, now))
                except Shed:
                    at_door += 1
        while not isinstance(action := scheduler.next_action(now), Wait):
            if isinstance(action, Run):
                running = now + (action.batch.predicted_s or 0.0), action.batch
            else:
                later += len(action.refusals)
    return at_door, later


def test_in_a_rush_nobody_waits_only_to_be_dropped() -> None:
    scheduler = Scheduler(Policy(max_batch_size=32, slo_s=0.2), SLEEPY)
    at_door, later = flooded(scheduler, gap_s=0.036 / 96, start=0.0, stop=10.0)
    assert at_door > 17_000  # two in three
    assert later < 0.005 * at_door


def test_a_rush_is_forgotten_once_it_is_over() -> None:
    scheduler = Scheduler(Policy(max_batch_size=32, slo_s=0.2), SLEEPY)
    flooded(scheduler, gap_s=0.036 / 96, start=0.0, stop=2.0)
    for i in range(32 * 5):
        scheduler.submit(Item(10**9 + i, 5.0))  # the last 32 are in time, if only just
    fresh = Scheduler(Policy(max_batch_size=32, slo_s=0.2), SLEEPY)
    for i in range(32 * 5):
        fresh.submit(Item(i, 0.0))


def test_in_a_rush_of_one_tenant_another_within_its_share_is_let_in() -> None:
    scheduler = Scheduler(Policy(max_batch_size=32, slo_s=0.2), SLEEPY)
    flooded(scheduler, gap_s=0.036 / 96, start=0.0, stop=2.0)
    for number in range(32 * 5):
        with suppress(Shed):
            scheduler.submit(Item(10**8 + number, 2.0, tenant="flood"))
    for number in range(12):
        scheduler.submit(Item(10**9 + number, 2.0, tenant="quiet"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("workers", [1, 2])
def test_a_refusal_that_is_remembered_is_the_one_that_would_be_reckoned(
    seed: int, workers: int
) -> None:
    """The same flood, of two tenants, with callers that leave: at one door with a memory, and at
    one that is made to forget before each item."""

    def story(*, forgets: bool) -> list[tuple[int, str]]:
        policy = Policy(max_batch_size=32, slo_s=0.2, workers=workers)
        scheduler, draw = Scheduler(policy, SLEEPY), random.Random(seed)
        told: list[tuple[int, str]] = []
        ends: list[tuple[float, int, Batch]] = []
        now = 0.0
        for number in range(4_000):
            now += draw.expovariate(workers * 32 / 0.036 * 3)
            while ends and ends[0][0] <= now:
                end, _, batch = heapq.heappop(ends)
                scheduler.finish(batch, end, ran_s=end - batch.fired_at)
                told += _obeyed(scheduler, end, ends)
            tenant = "loud" if draw.random() < 0.9 else "quiet"
            if draw.random() < 0.02:
                scheduler.cancel(number - draw.randrange(1, 50))
            if forgets:
                scheduler.weigh({})
            try:
                scheduler.submit(Item(number, now, tenant=tenant))
            except Shed as shed:
                told.append((number, str(shed)))
            told += _obeyed(scheduler, now, ends)
        return told

    remembered = story(forgets=False)
    assert remembered == story(forgets=True)
    assert len(remembered) > 1_000


def _obeyed(
    scheduler: Scheduler, now: float, ends: list[tuple[float, int, Batch]]
) -> list[tuple[int, str]]:
    """What is told to whom."""
    told: list[tuple[int, str]] = []
    while not isinstance(action := scheduler.next_action(now), Wait):
        if isinstance(action, Run):
            batch = action.batch
            heapq.heappush(ends, (now + (batch.predicted_s or 0.0), batch.id, batch))
            told += [(item.id, "runs") for item in batch.items]
        else:
            told += [(each.item.id, each.reason.value) for each in action.refusals]
    return told


def test_the_workers_never_run_out_of_work_for_a_strict_door() -> None:
    # So short an SLO that a strict door alone would keep the queue empty.
    scheduler = Scheduler(Policy(max_batch_size=32, slo_s=0.080), SLEEPY)
    at_door, later = flooded(scheduler, gap_s=0.036 / 96, start=0.0, stop=10.0)
    answered = 10.0 / (0.036 / 96) - at_door - later
    assert answered > 0.97 * 10.0 * 32 / 0.036


def test_an_slo_no_batch_can_meet_sheds_nobody_from_an_empty_queue() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, slo_s=0.005), LINEAR)
    scheduler.submit(Item(0, 0.0))


def test_a_cold_model_never_sheds() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, slo_s=0.001, max_queue=1000))
    for i in range(1000):
        scheduler.submit(Item(i, 0.0, deadline=100.0))
    served, now = 0, 0.0
    while scheduler.queued_items:
        action = scheduler.next_action(now)
        assert isinstance(action, Run)
        served += action.batch.rows
        now += 0.001
        scheduler.finish(action.batch, now)  # nothing is learned
    assert served == 1000


def test_only_auto_sheds() -> None:
    scheduler = Scheduler(Policy(firing=Firing.STATIC, max_batch_size=4, slo_s=0.001), LINEAR)
    for i in range(8):
        scheduler.submit(Item(i, 0.0, deadline=0.020))
    assert isinstance(scheduler.next_action(0.010), Run)


# ---- seconds of work


@pytest.mark.parametrize(("workers", "seconds"), [(1, 0.080), (2, 0.040)])
def test_queued_seconds_are_the_work_waiting_over_the_workers(workers: int, seconds: float) -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, workers=workers), LINEAR)
    assert scheduler.queued_s == 0.0
    for i in range(8):
        scheduler.submit(Item(i, 0.0))
    assert scheduler.queued_s == pytest.approx(seconds)


@pytest.mark.parametrize(("here", "seconds"), [(2, 0.040), (1, 0.080), (0, 0.080)])
def test_workers_that_are_away_do_not_count(here: int, seconds: float) -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, workers=2), LINEAR)
    scheduler.set_workers(here)
    for i in range(8):
        scheduler.submit(Item(i, 0.0, deadline=0.055))
    assert scheduler.queued_s == pytest.approx(seconds)  # where there are none, one will be back
    in_time = Item(8, 0.0, deadline=0.060)  # after one batch of 40 ms on each of two workers
    if here == 2:
        scheduler.submit(in_time)
    else:
        with pytest.raises(DeadlineExceeded):
            scheduler.submit(in_time)


def test_queued_seconds_of_a_cold_model_are_unknown_and_reported_as_none() -> None:
    scheduler = Scheduler(Policy())
    scheduler.submit(Item(0, 0.0))
    assert scheduler.queued_s == 0.0


# ---- errors


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (RefusalReason.QUEUE_FULL, QueueFull),
        (RefusalReason.SHED, Shed),
        (RefusalReason.DEADLINE, DeadlineExceeded),
    ],
)
def test_each_reason_has_its_error(reason: RefusalReason, error: type[Exception]) -> None:
    made = refusal_error(Refusal(Item(0, 0.0), reason, 0.25), Policy())
    assert type(made) is error
    if reason is not RefusalReason.DEADLINE:
        assert getattr(made, "retry_after_s", None) == 0.25
