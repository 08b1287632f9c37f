import pytest

from headway.core.batching.scheduler import Scheduler
from headway.core.items import Item, Run
from headway.core.policy import Compose, Firing, Policy


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
