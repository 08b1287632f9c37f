import pytest

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable
from headway.core.items import Batch, FireReason, Item, Priority, RefusalReason, Refuse, Run
from headway.core.policy import Compose, Firing, Order, Policy
from headway.errors import Shed

LINEAR = CostTable(rows=(1, 4), sizes=None, seconds=((0.010,), (0.040,)))


def fired(scheduler: Scheduler, now: float) -> Batch:
    action = scheduler.next_action(now)
    assert isinstance(action, Run), action
    return action.batch


def ids(batch: Batch) -> list[int]:
    return [item.id for item in batch.items]


def serve(scheduler: Scheduler, now: float, took_s: float) -> Batch:
    batch = fired(scheduler, now)
    scheduler.finish(batch, now + took_s)
    return batch


# ---- limits


def test_a_batch_holds_no_more_rows_than_allowed() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4))
    for i in range(3):
        scheduler.submit(Item(i, 0.0, rows=2))
    batch = serve(scheduler, 0.0, 0.01)
    assert (ids(batch), batch.rows, batch.reason) == ([0, 1], 4, FireReason.FULL)


def test_an_item_that_does_not_fit_keeps_its_place_and_its_class_waits() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4))
    for i, rows in enumerate((3, 2, 1)):
        scheduler.submit(Item(i, 0.0, rows=rows))
    assert ids(serve(scheduler, 0.0, 0.01)) == [0]
    assert ids(serve(scheduler, 0.1, 0.01)) == [1, 2]


def test_a_lower_class_fills_slots_that_would_be_empty() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4))
    scheduler.submit(Item(0, 0.0, rows=3))
    scheduler.submit(Item(1, 0.0, rows=2))
    scheduler.submit(Item(2, 0.0, priority=Priority.LOW))
    assert ids(serve(scheduler, 0.0, 0.01)) == [0, 2]


def test_one_item_larger_than_a_batch_runs_alone() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4))
    scheduler.submit(Item(0, 0.0, rows=6))
    scheduler.submit(Item(1, 0.0))
    assert ids(serve(scheduler, 0.0, 0.01)) == [0]


def test_a_batch_costs_no_more_than_its_budget() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8, max_batch_cost=100, max_wait_s=0.0))
    for i in range(5):
        scheduler.submit(Item(i, 0.0, size=30))
    batch = serve(scheduler, 0.0, 0.01)
    assert (ids(batch), batch.size, batch.reason) == ([0, 1, 2], 30, FireReason.BUDGET)


def test_a_long_item_counts_for_all_its_neighbours_because_they_are_padded() -> None:
    scheduler = Scheduler(
        Policy(max_batch_size=8, max_batch_cost=100, max_wait_s=0.0, compose=Compose.FIFO)
    )
    for i, size in enumerate((10, 10, 40, 10)):
        scheduler.submit(Item(i, 0.0, size=size))
    assert ids(serve(scheduler, 0.0, 0.01)) == [0, 1]
    assert ids(serve(scheduler, 0.1, 0.01)) == [2, 3]


def test_before_any_time_is_known_like_goes_with_like() -> None:
    scheduler = Scheduler(Policy(max_batch_size=64))
    sizes = (12, 250, 10, 20, 11, 255, 19, 9)
    for i, size in enumerate(sizes):
        scheduler.submit(Item(i, 0.0, size=size))
    batches = []
    while scheduler.queued_rows:
        batches.append(sorted(sizes[i] for i in ids(serve(scheduler, 0.0, 0.01))))
    assert batches == [[9, 10, 11, 12, 19, 20], [250, 255]]


def test_one_item_over_the_budget_runs_alone() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8, max_batch_cost=100))
    scheduler.submit(Item(0, 0.0, size=500))
    scheduler.submit(Item(1, 0.0, size=1))
    assert ids(serve(scheduler, 0.0, 0.01)) == [0]
    assert ids(serve(scheduler, 0.1, 0.01)) == [1]


def test_the_budget_holds_for_what_the_model_runs_after_padding_the_rows() -> None:
    """Pinned: 3 rows × 25 fit a budget of 80, but the model ran 4 × 25."""
    scheduler = Scheduler(
        Policy(max_batch_size=4, batch_sizes=(1, 2, 4), max_batch_cost=80, max_wait_s=0.0)
    )
    for i in range(3):
        scheduler.submit(Item(i, 0.0, size=25))
    batch = fired(scheduler, 0.0)
    assert batch.padded_rows * batch.size <= 80


def test_partitions_are_never_mixed() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8))
    for i in range(6):
        scheduler.submit(Item(i, 0.0, partition=i % 3))
    batches = [serve(scheduler, i * 0.1, 0.01) for i in range(3)]
    assert [ids(batch) for batch in batches] == [[0, 3], [1, 4], [2, 5]]


def test_where_singles_are_fastest_each_runs_alone() -> None:
    table = CostTable(
        rows=(1, 2, 4, 8), sizes=None, seconds=tuple((0.040 * b**1.1,) for b in (1, 2, 4, 8))
    )
    scheduler = Scheduler(Policy(max_batch_size=8), table)
    for i in range(3):
        scheduler.submit(Item(i, 0.0))
    for i in range(3):
        batch = serve(scheduler, i * 0.04, 0.04)
        assert (ids(batch), batch.reason, batch.batch_cap) == ([i], FireReason.KNEE, 1)


@pytest.mark.parametrize("firing", [Firing.WINDOW, Firing.STATIC])
@pytest.mark.parametrize("size", [0, 16])
def test_only_auto_looks_for_the_knee(firing: Firing, size: int) -> None:
    """Pinned: the textbook rule sent sized items off singly, because singles were faster."""
    table = CostTable(
        rows=(1, 2, 4), sizes=(16,), seconds=tuple((0.040 * b**1.1,) for b in (1, 2, 4))
    )
    wait_s = 0.01 if firing is Firing.WINDOW else None
    scheduler = Scheduler(Policy(firing=firing, max_wait_s=wait_s, max_batch_size=4), table)
    for i in range(4):
        scheduler.submit(Item(i, 0.0, size=size))
    batch = fired(scheduler, 0.0)
    assert (batch.rows, batch.reason) == (4, FireReason.FULL)


# ---- fixed batch sizes


def test_rows_are_padded_up_where_that_is_cheaper_for_each() -> None:
    table = CostTable(rows=(1, 4, 8), sizes=None, seconds=((0.010,), (0.020,), (0.030,)))
    scheduler = Scheduler(Policy(max_batch_size=8, batch_sizes=(1, 4, 8)), table)
    for i in range(3):
        scheduler.submit(Item(i, 0.0))
    batch = fired(scheduler, 0.0)
    assert (batch.rows, batch.padded_rows) == (3, 4)
    assert batch.padding == pytest.approx(0.25)
    assert batch.predicted_s == pytest.approx(0.020)


def test_fewer_rows_run_where_that_is_cheaper_for_each() -> None:
    table = CostTable(rows=(1, 4, 8), sizes=None, seconds=((0.030,), (0.039,), (0.078,)))
    scheduler = Scheduler(Policy(max_batch_size=8, batch_sizes=(1, 4, 8)), table)
    for i in range(6):
        scheduler.submit(Item(i, 0.0))  # 8 slots for 6 rows cost 13 ms each, 4 slots 9.75 ms
    batch = fired(scheduler, 0.0)
    assert (batch.rows, batch.padded_rows, batch.padding) == (4, 4, 0.0)


def test_rows_are_padded_up_while_nothing_is_known() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8, batch_sizes=(2, 8)))
    for i in range(3):
        scheduler.submit(Item(i, 0.0))
    batch = fired(scheduler, 0.0)
    assert (batch.rows, batch.padded_rows) == (3, 8)


# ---- early drop


# 40 ms for a full batch, and not much less for one item
FLAT = CostTable(rows=(1, 4), sizes=None, seconds=((0.034,), (0.040,)))


def test_a_late_head_is_dropped_and_the_batch_stays_full() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, slo_s=0.050), FLAT)
    scheduler.submit(Item(0, 0.0))
    for i in range(1, 5):
        scheduler.submit(Item(i, 0.030))
    batch = fired(scheduler, 0.030)  # until 0.070: too late for the first, due at 0.050
    assert ids(batch) == [1, 2, 3, 4]
    refuse = scheduler.next_action(0.030)
    assert isinstance(refuse, Refuse)
    assert [(each.item.id, each.reason) for each in refuse.refusals] == [(0, RefusalReason.SHED)]


def test_without_observed_error_there_is_no_margin() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, slo_s=0.050), FLAT)
    for i in range(4):
        scheduler.submit(Item(i, 0.0))
    assert ids(fired(scheduler, 0.010)) == [0, 1, 2, 3]  # done at 0.050: just in time


def test_whose_own_deadline_is_missed_is_told_so() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, slo_s=0.050), FLAT)
    scheduler.submit(Item(0, 0.0, deadline=0.045))
    scheduler.submit(Item(1, 0.0))
    for i in range(2, 5):
        scheduler.submit(Item(i, 0.020))
    assert ids(fired(scheduler, 0.020)) == [2, 3, 4]
    refuse = scheduler.next_action(0.020)
    assert isinstance(refuse, Refuse)
    reasons = {each.item.id: each.reason for each in refuse.refusals}
    assert reasons == {0: RefusalReason.DEADLINE, 1: RefusalReason.SHED}


def test_a_burst_too_large_for_the_slo_loses_only_what_must_go() -> None:
    """Pinned: eight together are late, so all eight were dropped; four are in time."""
    table = CostTable(rows=(1, 8), sizes=None, seconds=((0.020,), (0.090,)))
    scheduler = Scheduler(Policy(max_batch_size=8, slo_s=0.055), table)
    for i in range(8):
        scheduler.submit(Item(i, 0.0))
    batch = fired(scheduler, 0.0)
    assert batch.rows >= 4


def test_under_overload_with_an_slo_shorter_than_a_full_batch_goodput_holds() -> None:
    table = CostTable(rows=(1, 64), sizes=None, seconds=((0.020,), (0.335,)))
    scheduler = Scheduler(Policy(max_batch_size=64, slo_s=0.100), table)
    best_rows_per_s = 10 / table_seconds(10)  # starts at once, or after a batch of the like
    in_time, now, arrived = 0, 0.0, 0
    running: Batch | None = None
    while now < 20.0:
        while arrived * 0.0025 <= now:  # 400 rows a second come
            try_submit(scheduler, Item(arrived, arrived * 0.0025))
            arrived += 1
        if running is not None:
            in_time += sum(now - item.arrived_at <= 0.100 + 1e-9 for item in running.items)
            scheduler.finish(running, now, ran_s=table_seconds(running.rows))
            running = None
        action = scheduler.next_action(now)
        while isinstance(action, Refuse):
            action = scheduler.next_action(now)
        if isinstance(action, Run):
            running = action.batch
            now += table_seconds(running.rows)
        else:
            now = min(action.until, arrived * 0.0025)
    assert in_time / 20.0 >= 0.5 * best_rows_per_s


def table_seconds(rows: int) -> float:
    return 0.015 + 0.005 * rows


def try_submit(scheduler: Scheduler, item: Item) -> None:
    try:
        scheduler.submit(item)
    except Shed:
        return


# ---- classes and age


def test_a_high_item_behind_a_thousand_normal_ones_leaves_with_the_next_batch() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8))
    for i in range(1000):
        scheduler.submit(Item(i, 0.0))
    scheduler.submit(Item(1000, 0.1, priority=Priority.HIGH))
    assert 1000 in ids(fired(scheduler, 0.1))


def test_it_does_so_when_the_thousand_have_aged() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8, ageing_s=1.0))
    for i in range(1000):
        scheduler.submit(Item(i, 0.0))
    scheduler.submit(Item(1000, 5.0, priority=Priority.HIGH))
    assert 1000 in ids(fired(scheduler, 5.0))


def test_a_high_item_as_large_as_a_batch_is_not_kept_out_by_the_aged() -> None:
    """Pinned: the share of the aged left no room for it, batch after batch, 13 times."""
    scheduler = Scheduler(Policy(max_batch_size=8, ageing_s=1.0))
    for i in range(100):
        scheduler.submit(Item(i, 0.0))
    scheduler.submit(Item(1000, 2.0, rows=8, priority=Priority.HIGH))
    batches = [ids(serve(scheduler, 2.0 + i * 0.01, 0.01)) for i in range(4)]
    assert any(1000 in batch for batch in batches)


@pytest.mark.parametrize("max_batch_size", [1, 2, 3, 4, 8])
def test_low_is_served_under_a_permanent_flood_of_high(max_batch_size: int) -> None:
    scheduler = Scheduler(Policy(max_batch_size=max_batch_size, ageing_s=1.0))
    scheduler.submit(Item(0, 0.0, priority=Priority.LOW))
    numbers, now = iter(range(1, 10_000)), 0.0
    while now < 3.0:
        while scheduler.queued_rows < 3 * max_batch_size:
            scheduler.submit(Item(next(numbers), now, priority=Priority.HIGH))
        if 0 in ids(serve(scheduler, now, 0.1)):
            break
        now += 0.1
    assert 1.0 <= now <= 1.6


def test_ageing_leaves_most_of_the_batch_to_the_classes() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8, ageing_s=1.0))
    for i in range(100):
        scheduler.submit(Item(i, 0.0, priority=Priority.LOW))
    for i in range(100, 200):
        scheduler.submit(Item(i, 1.9, priority=Priority.HIGH))
    batch = fired(scheduler, 2.0)
    assert sum(item.priority is Priority.LOW for item in batch.items) == 1
    assert sum(item.priority is Priority.HIGH for item in batch.items) == 7


def test_the_aged_of_a_quiet_partition_are_served_under_a_flood_of_another() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, ageing_s=1.0))
    scheduler.submit(Item(0, 0.0, partition="quiet", priority=Priority.LOW))
    numbers, now = iter(range(1, 10_000)), 0.0
    while now < 3.0:
        while scheduler.queued_rows < 20:
            scheduler.submit(Item(next(numbers), now, partition="flood"))
        if 0 in ids(serve(scheduler, now, 0.1)):
            break
        now += 0.1
    assert now <= 1.6


# ---- tenants and order


def test_backlogged_tenants_share_the_rows_by_weight() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, tenant_weights={"b": 3.0}))
    for i in range(200):
        scheduler.submit(Item(i, 0.0, tenant="a"))
    for i in range(200, 400):
        scheduler.submit(Item(i, 0.0, tenant="b"))
    served = [item for i in range(25) for item in serve(scheduler, i * 0.01, 0.01).items]
    assert sum(item.tenant == "a" for item in served) == pytest.approx(25, abs=1)


def test_shortest_first_takes_the_short_ones_and_lets_the_long_one_through_in_time() -> None:
    scheduler = Scheduler(Policy(max_batch_size=1, order=Order.SHORTEST, ageing_s=1000.0))
    scheduler.submit(Item(0, 0.0, size=100))
    numbers, place = iter(range(1, 10_000)), 0
    while True:
        scheduler.submit(Item(next(numbers), place * 0.001, size=1))
        if ids(serve(scheduler, place * 0.001, 0.001)) == [0]:
            break
        place += 1
    assert 0 < place <= 256


def test_first_come_first_served_is_the_default() -> None:
    scheduler = Scheduler(Policy(max_batch_size=1))
    for i, size in enumerate((100, 1, 50)):
        scheduler.submit(Item(i, 0.0, size=size))
    assert [ids(serve(scheduler, i * 0.1, 0.1)) for i in range(3)] == [[0], [1], [2]]
