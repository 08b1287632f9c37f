import pytest

from headway.core.batching.buckets import LONGER, Buckets
from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable
from headway.core.faults.fitting import Misfit
from headway.core.items import Batch, FireReason, Item, Run, Wait
from headway.core.policy import Compose, Firing, Policy, read_buckets
from headway.errors import ConfigError

ROWS, SIZES = (1, 2, 4, 8), (8, 64, 512)
TABLE = CostTable(
    rows=ROWS,
    sizes=SIZES,
    seconds=tuple(tuple(4e-3 + 4e-6 * rows * size for size in SIZES) for rows in ROWS),
)


def fired(scheduler: Scheduler, now: float) -> Batch:
    action = scheduler.next_action(now)
    assert isinstance(action, Run), action
    return action.batch


def sizes_of(batch: Batch) -> list[int]:
    return sorted(item.size for item in batch.items)


# ---- which bucket


def test_sizes_fall_into_the_first_bucket_that_holds_them() -> None:
    buckets = Buckets((64, 128))
    assert [buckets.bucket_of(size) for size in (1, 64, 65, 128, 129)] == [64, 64, 128, 128, LONGER]


def test_powers_of_two_need_no_bounds() -> None:
    assert [Buckets().bucket_of(size) for size in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]


def test_quantiles_are_learned_from_what_comes() -> None:
    buckets = Buckets(quantiles=4)
    for number in range(1000):
        buckets.bucket_of(1 + number % 100)
    found = [buckets.bucket_of(size) for size in range(1, 101)]
    counts = {bound: found.count(bound) for bound in found}
    assert len(counts) == 4
    assert all(20 <= count <= 30 for count in counts.values()), counts


@pytest.mark.parametrize(
    ("text", "read"),
    [("pow2", ((), 0)), ("quantile:8", ((), 8)), ("64,128", ((64, 128), 0)), ("7", ((7,), 0))],
)
def test_buckets_are_typed_in_three_ways(text: str, read: tuple[tuple[int, ...], int]) -> None:
    assert read_buckets(text) == read


@pytest.mark.parametrize("text", ["", "pow3", "quantile", "quantile:1", "quantile:x", "64,x"])
def test_what_is_no_bucket_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="pow2"):
        read_buckets(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"buckets": (64, 32)},
        {"buckets": (0,)},
        {"buckets": (64,), "quantiles": 4},
        {"pad_sizes": (8, 8)},
    ],
)
def test_bounds_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Policy(**wrong)  # type: ignore[arg-type]


# ---- in the scheduler


def test_only_items_of_one_bucket_share_a_batch() -> None:
    scheduler = Scheduler(Policy(max_batch_size=8, compose=Compose.BUCKETS, buckets=(64, 512)))
    for number, size in enumerate((10, 400, 20, 500, 64, 65)):
        scheduler.submit(Item(number, 0.0, 1, size))
    batches = []
    for _ in range(2):
        batch = fired(scheduler, 0.0)
        batches.append(sizes_of(batch))
        scheduler.finish(batch, 0.0)
    assert batches == [[10, 20, 64], [65, 400, 500]]


def test_each_bucket_has_its_own_window() -> None:
    policy = Policy(
        firing=Firing.WINDOW, max_wait_s=0.010, compose=Compose.BUCKETS, buckets=(64, 512)
    )
    scheduler = Scheduler(policy)
    scheduler.submit(Item(0, 0.000, 1, 10))
    scheduler.submit(Item(1, 0.006, 1, 400))
    assert scheduler.next_action(0.006) == Wait(0.010)
    short = fired(scheduler, 0.010)
    assert (sizes_of(short), short.reason) == ([10], FireReason.WINDOW)
    scheduler.finish(short, 0.011)
    action = scheduler.next_action(0.011)
    assert isinstance(action, Wait)
    assert action.until == pytest.approx(0.016)
    assert sizes_of(fired(scheduler, 0.016)) == [400]


def test_a_full_bucket_leaves_before_its_window() -> None:
    policy = Policy(
        firing=Firing.WINDOW,
        max_wait_s=1.0,
        max_batch_size=2,
        compose=Compose.BUCKETS,
        buckets=(64, 512),
    )
    scheduler = Scheduler(policy)
    for number, size in enumerate((10, 400, 20)):
        scheduler.submit(Item(number, 0.0, 1, size))
    batch = fired(scheduler, 0.0)
    assert (sizes_of(batch), batch.reason) == ([10, 20], FireReason.FULL)


def test_one_who_leaves_a_bucket_early_is_forgotten() -> None:
    scheduler = Scheduler(Policy(compose=Compose.BUCKETS))
    scheduler.submit(Item(0, 0.0, 1, 10))
    scheduler.submit(Item(1, 0.0, 1, 100))
    assert scheduler.cancel(0)
    assert sizes_of(fired(scheduler, 0.0)) == [100]
    assert not scheduler.queued_rows


def test_a_deadline_finds_its_bucket() -> None:
    policy = Policy(firing=Firing.STATIC, max_batch_size=8, compose=Compose.BUCKETS)
    scheduler = Scheduler(policy, TABLE)
    scheduler.submit(Item(0, 0.0, 1, 10))
    scheduler.submit(Item(1, 0.0, 1, 100, deadline=0.5))
    action = scheduler.next_action(0.0)
    assert isinstance(action, Wait)
    assert 0.4 < action.until < 0.5
    assert sizes_of(fired(scheduler, action.until)) == [100]


def test_a_packed_batch_costs_what_is_in_it() -> None:
    policy = Policy(max_batch_size=8, max_batch_cost=600, compose=Compose.PACKED)
    scheduler = Scheduler(policy, TABLE)
    for number, size in enumerate((500, 10, 20, 30, 100)):
        scheduler.submit(Item(number, 0.0, 1, size))
    batch = fired(scheduler, 0.0)
    assert sizes_of(batch) == [10, 20, 30, 500]
    assert (batch.size, batch.is_packed, batch.padding) == (140, True, 0.0)
    assert batch.predicted_s == pytest.approx(4e-3 + 4e-6 * 560, rel=0.02)


def test_sorted_batches_are_as_full_as_they_may_be() -> None:
    scheduler = Scheduler(Policy(max_batch_size=2, compose=Compose.SORT))
    for number, size in enumerate((10, 400, 20, 500)):
        scheduler.submit(Item(number, 0.0, 1, size))
    batch = fired(scheduler, 0.0)
    assert sizes_of(batch) == [10, 20]
    scheduler.finish(batch, 0.0)
    assert sizes_of(fired(scheduler, 0.0)) == [400, 500]


def test_in_order_means_whatever_the_padding() -> None:
    scheduler = Scheduler(Policy(max_batch_size=2, compose=Compose.FIFO), TABLE)
    for number, size in enumerate((10, 400, 20, 500)):
        scheduler.submit(Item(number, 0.0, 1, size))
    assert sizes_of(fired(scheduler, 0.0)) == [10, 400]


# ---- sizes that the model runs at


def test_a_batch_is_reckoned_at_the_size_it_runs_at() -> None:
    policy = Policy(max_batch_size=8, pad_sizes=(64, 512), max_batch_cost=128)
    scheduler = Scheduler(policy, TABLE)
    for number, size in enumerate((10, 20, 60)):
        scheduler.submit(Item(number, 0.0, 1, size))
    batch = fired(scheduler, 0.0)
    assert (batch.rows, batch.size, batch.reason) == (2, 64, FireReason.BUDGET)
    assert batch.predicted_s == pytest.approx(4e-3 + 4e-6 * 128)


def test_what_did_not_fit_is_known_by_the_size_that_it_ran_at() -> None:
    policy = Policy(max_batch_size=8, pad_sizes=(512,), compose=Compose.FIFO)
    scheduler = Scheduler(policy, TABLE)
    scheduler.does_not_fit(Misfit(8, 512))
    for number in range(8):
        scheduler.submit(Item(number, 0.0, 1, 200 + number % 2))
    batch = fired(scheduler, 0.0)
    assert (batch.rows, batch.reason) == (4, FireReason.BUDGET)


def test_what_is_longer_than_all_of_them_runs_as_it_is() -> None:
    scheduler = Scheduler(Policy(pad_sizes=(64,)), TABLE)
    scheduler.submit(Item(0, 0.0, 1, 100))
    assert fired(scheduler, 0.0).size == 100


@pytest.mark.parametrize("compose", [Compose.DP, Compose.SORT])
def test_items_without_a_size_go_together_beside_those_that_have_one(compose: Compose) -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, compose=compose), TABLE)
    for number in range(8):
        scheduler.submit(Item(number, 0.0, 1, 500 if number % 2 else 0))
    assert sizes_of(fired(scheduler, 0.0)) == [0] * 4
