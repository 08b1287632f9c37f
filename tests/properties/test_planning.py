"""The batch around the one who is next: within every limit, and part of the best cut there is."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batching.planning import (
    Limits,
    Planner,
    plan,
    shape_at,
)
from headway.core.batching.scheduler import Scheduler
from headway.core.costs import Costs, CostTable
from headway.core.items import Batch, Item, Priority, Refuse, Run, Wait
from headway.core.policy import Policy
from headway.core.queueing.priority import FLOOR
from headway.errors import QueueFull

ROWS = (1, 2, 4, 8, 16, 32, 64)
SIZES = (8, 16, 32, 64, 128, 256, 512)


def table(fixed_s: float, slot_s: float) -> CostTable:
    """A batch takes so long, and each padded slot of it so much more."""
    seconds = tuple(tuple(fixed_s + slot_s * rows * size for size in SIZES) for rows in ROWS)
    return CostTable(rows=ROWS, sizes=SIZES, seconds=seconds)


def limits(max_rows: int = 64, max_cost: float = math.inf) -> Limits:
    return Limits(max_rows, max_cost)


def items_of(*sizes: int) -> list[Item]:
    return [Item(number, float(number), 1, size) for number, size in enumerate(sizes)]


def first_of_its_kind(item: Item, items: list[Item]) -> Item:
    return next(each for each in items if (each.size, each.rows) == (item.size, item.rows))


def least_s(items: list[Item], costs: Costs) -> float:
    """What the items take in all, cut in the best of all ways."""
    if not items:
        return 0.0
    return min(
        batch_s(items[start:], costs) + least_s(items[:start], costs) for start in range(len(items))
    )


def batch_s(items: list[Item], costs: Costs) -> float:
    curve = costs.planning_curve(max(item.size for item in items))
    assert curve is not None
    return curve[0][sum(item.rows for item in items)]


def rows_of(items: list[Item]) -> dict[int, int]:
    return dict(Counter(item.size for item in items for _ in range(item.rows)))


def company_of(anchor: Item, items: list[Item], costs: Costs, limits: Limits) -> list[Item] | None:
    """Who leaves with the anchor, itself included, if all others leave room for it."""
    waiting = sorted(rows_of(items).items())
    shapes = [shape_at(size, costs, limits) for size, _ in waiting]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    part = plan(anchor.size, [size for size, _ in waiting], [rows for _, rows in waiting], known)
    inside = [item for item in items if part.low < item.size <= part.high]
    return inside[: part.rows]


waiting = st.lists(
    st.tuples(st.integers(1, 512), st.sampled_from([1, 1, 1, 2, 5])), min_size=1, max_size=40
)
tables = st.tuples(st.floats(1e-4, 1e-2), st.floats(1e-7, 1e-4))


@given(waiting, tables, st.integers(1, 64), st.integers(1, 16_384))
def test_the_batch_holds_whoever_is_next_and_keeps_within_the_limits(
    shapes: list[tuple[int, int]], costs: tuple[float, float], max_rows: int, max_cost: int
) -> None:
    policy = Policy(max_batch_size=max_rows, max_batch_cost=max_cost, max_wait_s=0.0)
    scheduler = Scheduler(policy, table(*costs))
    items = [Item(n, 0.0, min(rows, max_rows), size) for n, (size, rows) in enumerate(shapes)]
    for item in items:
        scheduler.submit(item)
    left: list[Item] = []
    while scheduler.queued_items:
        action = scheduler.next_action(0.0)
        assert isinstance(action, Run)
        batch = action.batch
        scheduler.finish(batch, 0.0)
        assert min(item for item in items if item not in left) in batch.items
        left += batch.items
        if len(batch.items) > 1:  # one alone always may
            assert batch.rows <= max_rows
            assert batch.rows * batch.size <= max_cost
    assert sorted(left) == items


@given(st.dictionaries(st.integers(1, 4096), st.integers(1, 200), min_size=1), tables, st.data())
def test_a_plan_of_any_queue_names_a_part_that_holds_the_size(
    rows: dict[int, int], shape: tuple[float, float], data: st.DataObject
) -> None:
    sizes = sorted(rows)
    size = data.draw(st.sampled_from(sizes))
    planner = Planner(Costs(64, table(*shape)), limits())
    part = planner.part_of(size, sizes, [rows[each] for each in sizes])
    assert part.low < size <= part.high
    assert part.rows >= 1


@given(st.lists(st.integers(1, 512), min_size=1, max_size=7), st.data(), tables)
def test_it_is_part_of_the_best_of_all_cuts(
    sizes: list[int], data: st.DataObject, shape: tuple[float, float]
) -> None:
    items, costs = items_of(*sizes), Costs(64, table(*shape))
    anchor = first_of_its_kind(data.draw(st.sampled_from(items)), items)
    chosen = company_of(anchor, items, costs, limits())
    assert chosen is not None
    chosen.sort(key=lambda item: (item.size, -item.id))
    ordered = sorted(items, key=lambda item: (item.size, -item.id))
    start = ordered.index(chosen[-1]) + 1 - len(chosen)
    before, after = ordered[:start], ordered[start + len(chosen) :]
    with_it = least_s(before, costs) + batch_s(chosen, costs) + least_s(after, costs)
    least = least_s(ordered, costs)
    assert least * (1 - 1e-9) <= with_it <= least * (1 + 1 / 16)  # sizes are taken in classes


def test_where_batching_does_not_pay_each_runs_alone() -> None:
    items = items_of(30, 200, 40, 31)
    chosen = company_of(items[0], items, Costs(64, table(1e-6, 1e-4)), limits())
    assert chosen == [items[0]]


def test_where_it_pays_those_of_like_size_run_together() -> None:
    items = items_of(8, 512, 9, 500, 10, 8)
    chosen = company_of(items[0], items, Costs(64, table(4e-3, 4e-6)), limits())
    assert chosen is not None
    assert sorted(item.size for item in chosen) == [8, 8, 9, 10]


def test_of_equal_sizes_the_oldest_leave_first() -> None:
    items = items_of(*[64] * 10)
    chosen = company_of(items[0], items, Costs(64, table(4e-3, 4e-6)), limits(max_rows=4))
    assert chosen is not None
    assert sorted(item.id for item in chosen) == [0, 1, 2, 3]


def test_nothing_is_planned_while_nothing_is_known() -> None:
    items = items_of(8, 9)
    assert company_of(items[0], items, Costs(64), limits()) is None


def test_low_priority_fills_what_would_be_padding() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8), table(4e-3, 4e-6))
    scheduler.submit(Item(1, 0.0, 1, 100))
    scheduler.submit(Item(2, 0.0, 1, 60, Priority.LOW))
    scheduler.submit(Item(3, 0.0, 1, 512, Priority.LOW))  # would make the batch longer
    action = scheduler.next_action(0.1)
    while isinstance(action, Wait):
        action = scheduler.next_action(action.until)
    assert isinstance(action, Run)
    assert {item.id for item in action.batch.items} == {1, 2}


class World:
    """One worker in virtual time."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(Policy(max_batch_size=16, max_queue=256), table(4e-3, 4e-6))
        self.now = 0.0
        self.running: Batch | None = None
        self.free_at = math.inf
        self.left: list[int] = []
        self.refused: list[int] = []

    def submit(self, item: Item) -> None:
        while self.free_at <= item.arrived_at:
            self.finish()
        self.now = item.arrived_at
        try:
            self.scheduler.submit(item)
        except QueueFull:
            self.refused.append(item.id)
        self.act()

    def finish(self) -> None:
        assert self.running is not None
        self.now = self.free_at
        self.scheduler.finish(self.running, self.now, ran_s=self.now - self.running.fired_at)
        self.running, self.free_at = None, math.inf
        self.act()

    def act(self) -> None:
        while not isinstance(action := self.scheduler.next_action(self.now), Wait):
            if isinstance(action, Refuse):
                self.refused += [refusal.item.id for refusal in action.refusals]
                continue
            self.running = batch = action.batch
            self.left += [item.id for item in batch.items]
            self.free_at = self.now + 4e-3 + 4e-6 * batch.rows * batch.size


@pytest.mark.parametrize("load", [0.7, 3.0])
def test_everyone_leaves_once_and_nobody_starves(load: float) -> None:
    """Long and short, of three classes: items of the first half leave long before the end."""
    rng, world, now = random.Random(7), World(), 0.0
    rate = load * 16 / (4e-3 + 4e-6 * 16 * 100)
    for number in range(12_000):  # at three times the load, 2.6 s: the first have aged
        now += rng.expovariate(rate)
        size = max(1, min(512, round(rng.lognormvariate(4.1, 1.0))))
        priority = rng.choice((Priority.HIGH, Priority.NORMAL, Priority.LOW))
        world.submit(Item(number, now, 1, size, priority))
    assert {*world.left, *world.refused} >= set(range(1500))
    world.scheduler.drain()
    world.act()
    while world.running is not None:
        world.finish()
    assert sorted(world.left + world.refused) == list(range(12_000))


def test_who_cannot_be_in_time_is_dropped_and_the_rest_leave() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8, slo_s=0.05), table(4e-3, 4e-6))
    scheduler.submit(Item(1, 0.0, 1, 100))
    scheduler.submit(Item(2, 0.06, 1, 100))
    dropped, left = set(), set()
    while not isinstance(action := scheduler.next_action(0.07), Wait):
        if isinstance(action, Refuse):
            dropped |= {refusal.item.id for refusal in action.refusals}
        else:
            left |= {item.id for item in action.batch.items}
    assert (dropped, left) == ({1}, {2})


def test_fixed_batch_sizes_count_as_they_are_run() -> None:
    fixed = Limits(64, 2000, (8, 64))
    assert (fixed.rows_at(100), fixed.rows_at(10), fixed.rows_at(1000)) == (8, 64, 0)
    items = items_of(*[100] * 10, *[90] * 10)
    chosen = company_of(items[0], items, Costs(64, table(4e-3, 4e-6), batch_sizes=(8, 64)), fixed)
    assert chosen is not None
    assert len(chosen) <= 8


def test_the_aged_have_their_turn_whatever_keeps_coming() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8, max_queue=4096), table(4e-3, 4e-6))
    low = set(range(400))
    for number in low:
        scheduler.submit(Item(number, 0.0, 1, 100 + number % 7, Priority.LOW))
    now, number, served = 2.0, 1000, 0
    for _ in range(400):
        while scheduler.queued_rows < len(low) - served + 16:
            number += 1
            scheduler.submit(Item(number, now, 1, 30 + number % 5, Priority.HIGH))
        action = scheduler.next_action(now)
        assert isinstance(action, Run)
        served += len(low & {item.id for item in action.batch.items})
        now += 0.01
        scheduler.finish(action.batch, now, ran_s=0.01)
    assert 400 * 8 // FLOOR - 8 <= served <= 400 * 8 // FLOOR + 16  # its floor, and no more


def test_one_too_long_for_the_slo_runs_all_the_same_while_it_can() -> None:
    """The estimate may be wrong; and whether it runs must not depend on its company."""
    scheduler = Scheduler(Policy(max_batch_size=64, slo_s=0.05), table(1e-3, 1e-4))
    scheduler.submit(Item(1, 0.0, 1, 512))  # 52 ms
    for number in range(2, 6):
        scheduler.submit(Item(number, 0.0, 1, 8))
    left: set[int] = set()
    now = 0.0
    while not scheduler.is_idle:
        action = scheduler.next_action(now)
        assert not isinstance(action, Refuse)
        if isinstance(action, Wait):
            now = action.until
            continue
        left |= {item.id for item in action.batch.items}
        now += 1e-3 + 1e-4 * action.batch.rows * action.batch.size
        scheduler.finish(action.batch, now, ran_s=now - action.batch.fired_at)
        if 1 in left:
            break
    assert 1 in left


def test_filling_makes_nobody_late() -> None:
    scheduler = Scheduler(Policy(max_batch_size=64), table(1e-6, 1e-4))
    scheduler.submit(Item(0, 0.0, 1, 100, Priority.HIGH, deadline=0.1))
    for number in range(1, 60):
        scheduler.submit(Item(number, 0.0, 1, 90, Priority.LOW))
    action = scheduler.next_action(0.0)
    assert isinstance(action, Run)
    assert 0 in {item.id for item in action.batch.items}
    assert (action.batch.predicted_s or 0.0) <= 0.1
