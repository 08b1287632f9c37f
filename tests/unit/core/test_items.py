import itertools

import pytest

from headway.core.batching.scheduler import Scheduler
from headway.core.items import Item, Run, split
from headway.core.policy import Compose, Firing, Policy


@pytest.mark.parametrize(
    ("rows", "limit", "parts"),
    [
        (1, 64, [1]),
        (64, 64, [64]),
        (65, 64, [33, 32]),
        (128, 64, [64, 64]),
        (129, 64, [43, 43, 43]),
        (10, 4, [4, 3, 3]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_many_rows_are_split_into_near_equal_parts(rows: int, limit: int, parts: list[int]) -> None:
    split_up = split(Item(7, 1.5, rows=rows, size=9, tenant="a"), limit, itertools.count(100))
    assert [part.rows for part in split_up] == parts


def test_parts_carry_the_id_of_their_request_and_all_else_of_their_item() -> None:
    whole = Item(7, 1.5, rows=5, size=9, tenant="a", deadline=3.0, partition="p")
    parts = split(whole, 2, itertools.count(100))
    assert [part.id for part in parts] == [7, 100, 101]
    assert all(part.request == 7 for part in parts)
    assert {part._replace(id=7, rows=5, request=None) for part in parts} == {whole}


def test_queued_and_lingered_time_add_up_to_the_wait_of_each_item() -> None:
    """Busy until 10.010, then held before a free worker until the window closes at 10.014."""
    scheduler = Scheduler(Policy(firing=Firing.WINDOW, max_wait_s=0.010, max_batch_size=4))
    scheduler.submit(Item(0, 9.9))
    first = scheduler.next_action(10.0)
    assert isinstance(first, Run)
    scheduler.submit(Item(1, 10.004))
    scheduler.next_action(10.004)
    scheduler.finish(first.batch, 10.010)
    scheduler.next_action(10.010)
    scheduler.submit(Item(2, 10.012))
    scheduler.next_action(10.012)

    second = scheduler.next_action(10.014)

    assert isinstance(second, Run)
    early, late = second.batch.items
    assert second.batch.queued_s(early) == pytest.approx(0.006)
    assert second.batch.lingered_s(early) == pytest.approx(0.004)
    assert second.batch.queued_s(late) == 0.0
    assert second.batch.lingered_s(late) == pytest.approx(0.002)
    for item in second.batch.items:
        waited_s = second.batch.fired_at - item.arrived_at
        explained_s = second.batch.queued_s(item) + second.batch.lingered_s(item)
        assert explained_s == pytest.approx(waited_s)


def test_padding_is_the_share_of_slots_without_data() -> None:
    scheduler = Scheduler(Policy(max_batch_size=4, max_wait_s=0.0, compose=Compose.FIFO))
    for id_, size in enumerate((10, 20, 40)):
        scheduler.submit(Item(id_, 0.0, size=size))
    action = scheduler.next_action(0.0)
    assert isinstance(action, Run)
    assert action.batch.size == 40
    assert action.batch.padding == pytest.approx(1 - 70 / 120)
