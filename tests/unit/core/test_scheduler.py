import math

import pytest

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable
from headway.core.items import Batch, FireReason, Item, Priority, RefusalReason, Refuse, Run, Wait
from headway.core.policy import Firing, Policy
from headway.errors import HeadwayError, QueueFull

FLAT = CostTable(rows=(1, 4), sizes=None, seconds=((0.010,), (0.010,)))


def fired(scheduler: Scheduler, now: float) -> Batch:
    action = scheduler.next_action(now)
    assert isinstance(action, Run), action
    return action.batch


# ---- deadlines


def test_what_has_expired_never_runs() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4))
    scheduler.submit(Item(0, 0.0, deadline=1.0))
    scheduler.submit(Item(1, 0.0))
    action = scheduler.next_action(1.0)
    assert isinstance(action, Refuse)
    assert [(each.item.id, each.reason) for each in action.refusals] == [
        (0, RefusalReason.DEADLINE)
    ]
    assert [item.id for item in fired(scheduler, 1.0).items] == [1]


def test_while_the_workers_are_busy_the_wait_names_the_next_deadline() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4))
    scheduler.submit(Item(0, 0.0))
    fired(scheduler, 0.0)
    scheduler.submit(Item(1, 0.0, deadline=2.0))
    scheduler.submit(Item(2, 0.0, deadline=1.0))
    assert scheduler.next_action(0.0) == Wait(1.0)
    assert isinstance(scheduler.next_action(1.0), Refuse)
    assert scheduler.next_action(1.0) == Wait(2.0)
    assert scheduler.cancel(1)
    assert scheduler.next_action(1.0) == Wait(math.inf)


# ---- coming and going


def test_a_cancelled_item_never_runs_and_is_told_nothing() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4))
    scheduler.submit(Item(0, 0.0))
    scheduler.submit(Item(1, 0.0))
    assert scheduler.cancel(0)
    assert not scheduler.cancel(0)
    assert [item.id for item in fired(scheduler, 0.0).items] == [1]


def test_to_cancel_what_runs_or_never_was_is_harmless() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4))
    scheduler.submit(Item(0, 0.0))
    batch = fired(scheduler, 0.0)
    assert not scheduler.cancel(0)
    assert not scheduler.cancel(99)
    scheduler.finish(batch, 0.01)
    assert scheduler.is_idle


def test_a_batch_finishes_once() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4))
    scheduler.submit(Item(0, 0.0))
    batch = fired(scheduler, 0.0)
    scheduler.finish(batch, 0.01)
    with pytest.raises(AssertionError):
        scheduler.finish(batch, 0.01)


def test_a_failed_batch_teaches_nothing_about_speed() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4), FLAT)
    scheduler.submit(Item(0, 0.0))
    scheduler.finish(fired(scheduler, 0.0), 5.0, ran_s=None)
    assert scheduler.costs.predict(1) == pytest.approx(0.010)


def test_a_finished_batch_teaches_its_speed() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4))
    for i in range(3):
        scheduler.submit(Item(i, float(i)))
        scheduler.finish(fired(scheduler, float(i)), i + 0.5, ran_s=0.25)
    assert scheduler.costs.predict(1) == pytest.approx(0.25)


def test_sizes_may_vary_in_any_way_without_a_table() -> None:
    """Pinned: `finish()` raised KeyError, the second time sizes 64 and 40 met a cold model."""
    scheduler = Scheduler(Policy(max_batch_size=4))
    for i, size in enumerate((0, 0, 0, 64, 64, 64, 40, 300, 17, 0)):
        scheduler.submit(Item(i, float(i), size=size))
        scheduler.finish(fired(scheduler, float(i)), i + 0.01, ran_s=0.01)
    assert scheduler.is_idle


@pytest.mark.parametrize("firing", list(Firing))
def test_a_draining_scheduler_waits_for_nobody(firing: Firing) -> None:
    wait_s = 10.0 if firing is Firing.WINDOW else None
    scheduler = Scheduler(Policy(firing=firing, max_wait_s=wait_s, max_batch_size=4), FLAT)
    for i in range(6):
        scheduler.submit(Item(i, 0.0, partition=i % 2))
    scheduler.drain()
    now = 0.0
    while scheduler.queued_items:
        batch = fired(scheduler, now)
        assert batch.reason is FireReason.DRAIN
        now += 0.01
        scheduler.finish(batch, now)
    assert scheduler.is_idle
    assert scheduler.next_action(now) == Wait(math.inf)


@pytest.mark.parametrize("bad", [{"rows": 0}, {"rows": -1}, {"deadline": math.nan}])
def test_an_item_that_makes_no_sense_is_refused_at_the_door(bad: dict[str, float]) -> None:
    """Pinned: of no rows it answered Refuse(()) for ever, and the driver would have spun."""
    scheduler = Scheduler(Policy(max_batch_size=4))
    with pytest.raises((HeadwayError, AssertionError)):
        scheduler.submit(Item(0, 0.0)._replace(**bad))  # type: ignore[arg-type]
    assert scheduler.queued_items == 0


def test_an_id_that_is_queued_already_is_refused_at_the_door() -> None:
    """Pinned: its rows were counted twice and never left; the queue filled up with nothing."""
    scheduler = Scheduler(Policy(max_batch_size=4))
    scheduler.submit(Item(0, 0.0))
    with pytest.raises((HeadwayError, AssertionError)):
        scheduler.submit(Item(0, 0.0))
    assert scheduler.queued_rows == 1


# ---- what a batch explains


def test_a_batch_says_why_and_under_which_caps_it_left() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4), FLAT)
    for i in range(6):
        scheduler.submit(Item(i, 0.0))
    batch = fired(scheduler, 0.5)
    assert batch.reason is FireReason.FULL
    assert (batch.rows, batch.padded_rows, batch.batch_cap) == (4, 4, 4)
    assert (batch.fired_at, batch.idle_since) == (0.5, 0.5)
    assert batch.predicted_s == pytest.approx(0.010)
    assert batch.padding == 0.0


def test_batches_are_numbered() -> None:
    scheduler = Scheduler(Policy(max_batch_size=1, workers=3))
    for i in range(3):
        scheduler.submit(Item(i, 0.0))
    numbers = [fired(scheduler, 0.0).id for _ in range(3)]
    assert len(set(numbers)) == 3


def test_figures_follow_the_queue() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4))
    scheduler.submit(Item(0, 0.0, rows=3))
    scheduler.submit(Item(1, 0.0, rows=2))
    assert (scheduler.queued_items, scheduler.queued_rows, scheduler.running_batches) == (2, 5, 0)
    batch = fired(scheduler, 0.0)
    assert (scheduler.queued_items, scheduler.queued_rows, scheduler.running_batches) == (1, 2, 1)
    assert not scheduler.is_idle
    scheduler.finish(batch, 0.01)
    scheduler.finish(fired(scheduler, 0.01), 0.02)
    assert scheduler.is_idle


def test_a_slow_spell_does_not_cost_capacity_for_ever() -> None:
    """Five times slower for two seconds, with a full queue all along: the cap comes through it."""
    table = CostTable((1, 2, 4, 8), None, ((0.005,), (0.0051,), (0.0052,), (0.0054,)))
    scheduler = Scheduler(Policy(max_batch_size=8, max_queue=10_000), table)
    ids, now, caps = iter(range(10**6)), 0.0, []
    while now < 8.0:
        while scheduler.queued_items < 32:
            scheduler.submit(Item(next(ids), now))
        action = scheduler.next_action(now)
        assert isinstance(action, Run)
        slow = 5.0 if 2.0 < now < 4.0 else 1.0
        ran_s = slow * (0.005 + 0.00005 * action.batch.rows)
        now += ran_s
        scheduler.finish(action.batch, now, ran_s=ran_s)
        caps.append(action.batch.rows)
    assert min(caps) == 8


def test_a_model_that_was_slow_is_not_locked_out_by_deadlines() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8))
    now = 0.0
    for number in range(300):
        scheduler.submit(Item(number, now, deadline=now + 0.050))
        action = scheduler.next_action(now)
        assert isinstance(action, Run), "a free worker, and time left: it runs"
        ran_s = 0.500 if number < 10 else 0.005
        scheduler.finish(action.batch, now + ran_s, ran_s=ran_s)
        now += 1.0


def test_a_batch_that_leaves_somebody_behind_says_which_limit_it_was() -> None:
    table = CostTable((1, 8, 32), None, ((0.00081,), (0.0064,), (0.0256,)))
    scheduler = Scheduler(Policy(max_batch_size=32), table)
    for number in range(25):
        scheduler.submit(Item(number, 0.0))
    action = scheduler.next_action(0.0)
    assert isinstance(action, Run)
    assert action.batch.rows == action.batch.batch_cap < 25
    assert action.batch.reason is FireReason.KNEE


def test_static_moves_on_when_nobody_else_fits_into_the_queue() -> None:
    scheduler = Scheduler(Policy(firing=Firing.STATIC, max_batch_size=8, max_queue=8))
    scheduler.submit(Item(0, 0.0, rows=3))
    scheduler.submit(Item(1, 0.0, rows=3))
    assert isinstance(scheduler.next_action(0.0), Wait)
    with pytest.raises(QueueFull):
        scheduler.submit(Item(2, 0.0, rows=3))
    assert isinstance(scheduler.next_action(0.0), Run)


def test_aged_items_are_not_counted_twice_when_late_ones_are_dropped() -> None:
    table = CostTable((1, 8), None, ((0.010,), (0.010,)))
    scheduler = Scheduler(Policy(max_batch_size=8, ageing_s=0.5), table)
    scheduler.submit(Item(0, 0.0, priority=Priority.LOW))
    for number in range(1, 8):
        scheduler.submit(Item(number, 0.1, deadline=1.0 if number == 1 else 99.0))
    action = scheduler.next_action(0.995)  # too late for item 1, and 0 has aged
    if isinstance(action, Refuse):
        action = scheduler.next_action(0.995)
    assert isinstance(action, Run)
    assert {item.id for item in action.batch.items} == {0, 2, 3, 4, 5, 6, 7}


def test_an_aged_item_with_a_size_keeps_its_batch_within_the_budget() -> None:
    """Pinned: once it was taken, nobody left had a size, and the budget was forgotten."""
    policy = Policy(firing=Firing.STATIC, max_batch_size=4, max_batch_cost=4, ageing_s=0.01)
    scheduler = Scheduler(policy)
    scheduler.submit(Item(0, 0.0, size=4, priority=Priority.LOW))
    for number in range(1, 4):
        scheduler.submit(Item(number, 1.0, priority=Priority.HIGH))
    action = scheduler.next_action(1.0)
    assert isinstance(action, Run)
    assert action.batch.rows * action.batch.size <= 4
