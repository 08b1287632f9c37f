"""Tenants, partitions and items come and go for ever; what is kept is bounded by who waits.

Measured from outside, as everything the scheduler keeps alive, so that any table counts.
"""

import gc
import itertools
import types
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.batching.scheduler import Scheduler
from headway.core.items import Item, Priority, Run, Wait
from headway.core.policy import Firing, Policy

POLICIES = {
    "auto": Policy(max_batch_size=4),
    "window": Policy(firing=Firing.WINDOW, max_wait_s=0.005, max_batch_size=4),
    "static": Policy(firing=Firing.STATIC, max_batch_size=4),
}
ids = itertools.count()


def footprint(root: object) -> int:
    """How many objects `root` keeps alive."""
    seen, stack = {id(root)}, [root]
    while stack:
        for child in gc.get_referents(stack.pop()):
            is_code = isinstance(child, type | types.ModuleType | types.FunctionType)
            if not is_code and id(child) not in seen:
                seen.add(id(child))
                stack.append(child)
    return len(seen)


def serve(scheduler: Scheduler, now: float, most: int = 1) -> None:
    for _ in range(most):
        action = scheduler.next_action(now)
        if isinstance(action, Run):
            scheduler.finish(action.batch, now + 0.001, ran_s=0.001)
        elif isinstance(action, Wait):
            return


def keep_one_waiting(scheduler: Scheduler) -> None:
    """Somebody always waits, so that no table is cleared by the queue's running empty."""
    scheduler.submit(Item(next(ids), 0.0))


def come_and_go(scheduler: Scheduler, now: float) -> None:
    """A tenant and a partition never seen before, with an item that gives up at once."""
    number = next(ids)
    item = Item(number, now, tenant=f"t{number}", partition=number, deadline=now + 1e6)
    scheduler.submit(item)
    scheduler.cancel(item.id)


def new_tenants(scheduler: Scheduler, now: float) -> None:
    number = next(ids)
    scheduler.submit(Item(number, now, tenant=f"t{number}"))
    scheduler.cancel(number)


def far_deadlines(scheduler: Scheduler, now: float) -> None:
    number = next(ids)
    scheduler.submit(Item(number, now, deadline=now + 1e6))
    scheduler.cancel(number)


def served_before_their_deadlines(scheduler: Scheduler, now: float) -> None:
    """The earliest deadline is that of one who waits: behind it pile up those of the served."""
    while scheduler.queued_rows < 40:
        number = next(ids)
        if number % 5 == 0:
            scheduler.submit(Item(number, now, priority=Priority.LOW, deadline=now + 2.0))
        else:
            scheduler.submit(Item(number, now, deadline=now + 1e6))
    serve(scheduler, now, most=2)


def two_partitions(scheduler: Scheduler, now: float) -> None:
    for partition in ("x", "y"):
        number = next(ids)
        scheduler.submit(Item(number, now, partition=partition))
        scheduler.cancel(number)


def given_up_behind_a_flood(scheduler: Scheduler, now: float) -> None:
    """`high` fills every batch, so the end of the line of `low` is never reached."""
    while scheduler.queued_rows < 16:
        scheduler.submit(Item(next(ids), now, priority=Priority.HIGH))
    number = next(ids)
    scheduler.submit(Item(number, now, priority=Priority.LOW))
    serve(scheduler, now)
    scheduler.cancel(number)


def served_under_many_names(scheduler: Scheduler, now: float) -> None:
    for _ in range(4):
        number = next(ids)
        tenant, partition = f"t{number}", number % 5
        scheduler.submit(Item(number, now, tenant=tenant, partition=partition, size=number % 90))
    serve(scheduler, now, most=4)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    "happen",
    [
        come_and_go,
        new_tenants,
        far_deadlines,
        served_before_their_deadlines,
        two_partitions,
        given_up_behind_a_flood,
        served_under_many_names,
    ],
)
def test_no_table_grows_with_those_who_have_left(
    name: str, happen: Callable[[Scheduler, float], None]
) -> None:
    scheduler = Scheduler(POLICIES[name])
    keep_one_waiting(scheduler)
    if happen not in (given_up_behind_a_flood, served_under_many_names):
        scheduler.next_action(0.1)  # it runs (or not, under static), and then the next one waits
        keep_one_waiting(scheduler)
    for turn in range(300):
        happen(scheduler, turn * 0.01)
    early = footprint(scheduler)
    for turn in range(300, 2000):
        happen(scheduler, turn * 0.01)
    assert footprint(scheduler) <= 2 * early + 200


@settings(max_examples=20)
@given(
    name=st.sampled_from(sorted(POLICIES)),
    happenings=st.lists(
        st.sampled_from([come_and_go, new_tenants, far_deadlines, two_partitions]),
        min_size=1,
        max_size=4,
    ),
)
def test_an_empty_queue_remembers_nobody(
    name: str, happenings: list[Callable[[Scheduler, float], None]]
) -> None:
    scheduler = Scheduler(POLICIES[name])
    scheduler.next_action(0.0)
    fresh = footprint(scheduler)
    for turn in range(100):
        for happen in happenings:
            happen(scheduler, turn * 0.01)
    assert scheduler.queued_items == 0
    assert footprint(scheduler) <= fresh + 150
