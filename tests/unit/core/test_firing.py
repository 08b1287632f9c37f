import heapq
import itertools
import math
import random
from collections import Counter

import pytest

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable, probe_rows
from headway.core.items import Batch, FireReason, Item, Priority, Refuse, Run, Wait
from headway.core.policy import Firing, Policy

FLAT_10_MS = CostTable(rows=(1, 64), sizes=None, seconds=((0.010,), (0.010,)))


def window(max_batch_size: int = 4, workers: int = 1, max_queue: int = 4096) -> Scheduler:
    return Scheduler(
        Policy(
            firing=Firing.WINDOW,
            max_wait_s=0.005,
            max_batch_size=max_batch_size,
            workers=workers,
            max_queue=max_queue,
        )
    )


def static(table: CostTable | None = None, max_batch_size: int = 4) -> Scheduler:
    return Scheduler(Policy(firing=Firing.STATIC, max_batch_size=max_batch_size), table)


def fired(scheduler: Scheduler, now: float) -> Batch:
    action = scheduler.next_action(now)
    assert isinstance(action, Run), action
    return action.batch


def ids(batch: Batch) -> list[int]:
    return [item.id for item in batch.items]


# ---- window


def test_a_lone_item_waits_its_window_then_runs() -> None:
    scheduler = window()
    scheduler.submit(Item(0, 10.0))
    assert scheduler.next_action(10.0) == Wait(10.0 + 0.005)
    assert scheduler.next_action(10.0049) == Wait(10.0 + 0.005)
    batch = fired(scheduler, 10.0 + 0.005)
    assert (ids(batch), batch.reason, batch.linger_cap_s) == ([0], FireReason.WINDOW, 0.005)


def test_a_full_batch_leaves_at_once() -> None:
    scheduler = window()
    for i in range(4):
        assert scheduler.next_action(10.0) == Wait(10.005 if i else math.inf)
        scheduler.submit(Item(i, 10.0))
    batch = fired(scheduler, 10.0)
    assert (ids(batch), batch.reason) == ([0, 1, 2, 3], FireReason.FULL)


def test_later_arrivals_do_not_restart_the_window() -> None:
    scheduler = window()
    scheduler.submit(Item(0, 10.0))
    scheduler.submit(Item(1, 10.004))
    assert scheduler.next_action(10.004) == Wait(10.005)
    assert ids(fired(scheduler, 10.005)) == [0, 1]


def test_the_window_of_leftovers_started_with_the_oldest_of_them() -> None:
    scheduler = window(max_batch_size=2)
    for i in range(3):
        scheduler.submit(Item(i, 10.0 + i * 0.001))
    batch = fired(scheduler, 10.002)
    assert ids(batch) == [0, 1]
    scheduler.finish(batch, 10.003)
    assert scheduler.next_action(10.003) == Wait(10.002 + 0.005)
    assert ids(fired(scheduler, 10.002 + 0.005)) == [2]


def test_the_window_is_recomputed_when_the_oldest_is_cancelled() -> None:
    scheduler = window()
    scheduler.submit(Item(0, 10.0))
    scheduler.submit(Item(1, 10.003))
    assert scheduler.cancel(0)
    assert scheduler.next_action(10.003) == Wait(10.003 + 0.005)


def test_it_is_not_recomputed_when_another_is_cancelled() -> None:
    scheduler = window()
    scheduler.submit(Item(0, 10.0))
    scheduler.submit(Item(1, 10.003))
    assert scheduler.cancel(1)
    assert scheduler.next_action(10.003) == Wait(10.0 + 0.005)


def test_while_no_worker_is_free_the_batch_keeps_growing_up_to_its_limit() -> None:
    scheduler = window()
    scheduler.submit(Item(0, 10.0))
    first = fired(scheduler, 10.005)
    for i in range(1, 7):
        scheduler.submit(Item(i, 10.005 + i * 0.001))
        assert scheduler.next_action(10.005 + i * 0.001) == Wait(math.inf)
    scheduler.finish(first, 10.050)
    second = fired(scheduler, 10.050)
    assert (ids(second), second.reason) == ([1, 2, 3, 4], FireReason.FULL)
    scheduler.finish(second, 10.060)
    third = fired(scheduler, 10.060)
    assert (ids(third), third.reason) == ([5, 6], FireReason.WINDOW)


def test_each_partition_has_a_window_of_its_own() -> None:
    scheduler = window(workers=2)
    scheduler.submit(Item(0, 10.0, partition="a"))
    scheduler.submit(Item(1, 10.002, partition="b"))
    scheduler.submit(Item(2, 10.003, partition="a"))
    assert scheduler.next_action(10.003) == Wait(10.005)
    assert ids(fired(scheduler, 10.005)) == [0, 2]
    assert scheduler.next_action(10.005) == Wait(10.002 + 0.005)
    assert ids(fired(scheduler, 10.002 + 0.005)) == [1]


def test_rows_of_different_partitions_do_not_make_a_full_batch() -> None:
    scheduler = window()
    for i in range(6):
        scheduler.submit(Item(i, 10.0, partition=i % 2))
    assert scheduler.next_action(10.0) == Wait(10.005)


def test_a_deadline_within_the_window_is_named() -> None:
    scheduler = window()
    scheduler.submit(Item(0, 10.0, deadline=10.003))
    assert scheduler.next_action(10.0) == Wait(10.003)


def test_a_window_of_nothing_never_waits() -> None:
    scheduler = Scheduler(Policy(firing=Firing.WINDOW, max_wait_s=0.0))
    scheduler.submit(Item(0, 10.0))
    assert ids(fired(scheduler, 10.0)) == [0]


def flood_served_before(scheduler: Scheduler, awaited: int) -> int:
    """Batches of partition `flood`, always full, that leave before the awaited item does."""
    numbers = itertools.count(1000)
    for turn in range(50):
        now = 10.1 + turn * 0.010
        while scheduler.queued_rows < 12:
            scheduler.submit(Item(next(numbers), now, partition="flood"))
        batch = fired(scheduler, now)
        if awaited in ids(batch):
            return turn
        scheduler.finish(batch, now + 0.010)
    return 50


def test_a_window_that_is_over_is_not_starved_by_a_partition_that_is_always_full() -> None:
    """Pinned: the partition that stayed full was always first, and the other never left."""
    scheduler = window()
    scheduler.submit(Item(0, 10.0, partition="quiet"))
    assert flood_served_before(scheduler, 0) <= 4


def test_a_full_partition_is_not_starved_by_one_that_is_always_full() -> None:
    scheduler = window()
    for i in range(100, 112):
        scheduler.submit(Item(i, 10.0, partition="flood"))
    for i in range(4):
        scheduler.submit(Item(i, 10.0, partition="quiet"))
    assert flood_served_before(scheduler, 0) <= 8


def test_a_high_item_of_another_partition_is_not_starved_by_one_that_is_always_full() -> None:
    scheduler = window()
    scheduler.submit(Item(0, 10.0, partition="quiet", priority=Priority.HIGH))
    assert flood_served_before(scheduler, 0) <= 1


# ---- static


def test_only_a_full_batch_leaves() -> None:
    scheduler = static()
    for i in range(3):
        scheduler.submit(Item(i, 0.0))
    assert scheduler.next_action(1000.0) == Wait(math.inf)
    scheduler.submit(Item(3, 1000.0))
    batch = fired(scheduler, 1000.0)
    assert (batch.rows, batch.reason) == (4, FireReason.FULL)


def test_a_rest_leaves_on_drain() -> None:
    scheduler = static()
    for i in range(5):
        scheduler.submit(Item(i, 0.0))
    scheduler.finish(fired(scheduler, 0.0), 0.01)
    assert scheduler.next_action(0.01) == Wait(math.inf)
    scheduler.drain()
    batch = fired(scheduler, 0.01)
    assert (ids(batch), batch.reason) == ([4], FireReason.DRAIN)


def test_a_rest_leaves_in_time_for_a_deadline() -> None:
    scheduler = static(FLAT_10_MS)
    scheduler.submit(Item(0, 0.0))
    scheduler.submit(Item(1, 0.0, deadline=1.0))
    assert scheduler.next_action(0.0) == Wait(1.0 - 0.010)
    batch = fired(scheduler, 0.990)
    assert (ids(batch), batch.reason) == ([0, 1], FireReason.DEADLINE)


def test_a_deadline_concerns_its_own_partition_only() -> None:
    scheduler = static(FLAT_10_MS)
    scheduler.submit(Item(0, 0.0, partition="a"))
    scheduler.submit(Item(1, 0.0, partition="b", deadline=1.0))
    batch = fired(scheduler, 0.990)
    assert ids(batch) == [1]
    scheduler.finish(batch, 1.0)
    assert scheduler.next_action(1.0) == Wait(math.inf)


def test_while_nothing_is_known_a_rest_still_leaves_before_its_deadline() -> None:
    """Pinned: it was held until the deadline itself, and then refused as expired."""
    scheduler = static()
    scheduler.submit(Item(0, 0.0, deadline=1.0))
    action = scheduler.next_action(0.0)
    if isinstance(action, Wait):
        assert action.until < 1.0
        action = scheduler.next_action(action.until)
    assert isinstance(action, Run)


def test_a_deadline_is_not_starved_by_a_partition_that_is_always_full() -> None:
    scheduler = static(FLAT_10_MS)
    scheduler.submit(Item(0, 10.0, partition="quiet", deadline=10.2))
    assert flood_served_before(scheduler, 0) < 10  # and not refused at 10.2


# ---- auto


def auto(
    *, max_wait_s: float | None = None, workers: int = 1, table: CostTable | None = FLAT_10_MS
) -> Scheduler:
    return Scheduler(Policy(max_wait_s=max_wait_s, workers=workers), table)


def test_an_idle_worker_takes_the_first_item_at_once() -> None:
    for table in (None, FLAT_10_MS):
        scheduler = auto(table=table)
        scheduler.submit(Item(0, 10.0))
        assert ids(fired(scheduler, 10.0)) == [0]


def test_an_empty_queue_waits_for_ever() -> None:
    assert auto().next_action(10.0) == Wait(math.inf)


def test_no_more_batches_run_than_there_are_workers() -> None:
    scheduler = auto(workers=2, max_wait_s=0.0)
    batches = []
    for i in range(2):
        scheduler.submit(Item(i, 10.0))
        batches.append(fired(scheduler, 10.0))
    scheduler.submit(Item(2, 10.0))
    assert scheduler.next_action(10.0) == Wait(math.inf)
    scheduler.finish(batches[0], 10.01)
    assert ids(fired(scheduler, 10.01)) == [2]
    assert scheduler.running_batches == 2


def test_what_gathered_while_the_worker_was_busy_leaves_together() -> None:
    scheduler = auto()
    scheduler.submit(Item(0, 10.0))
    first = fired(scheduler, 10.0)
    for i in range(1, 6):
        scheduler.submit(Item(i, 10.0 + i * 0.001))
    scheduler.finish(first, 10.010, ran_s=0.010)
    assert ids(fired(scheduler, 10.010)) == [1, 2, 3, 4, 5]


class ClosedLoop:
    """Clients that ask again a moment after they are answered, in virtual time."""

    def __init__(
        self, scheduler: Scheduler, *, clients: int, think_s: float, seed: int = 1
    ) -> None:
        self.scheduler = scheduler
        self.answered = 0
        self.batches: list[Batch] = []
        self.longest_linger_s = 0.0
        self._think_s = think_s
        self._random = random.Random(seed)
        self._ids = itertools.count()
        self._events: list[tuple[float, int, Batch | None]] = []
        self._order = itertools.count()
        for _ in range(clients):
            self._come_back(0.0)

    def run(self, until: float) -> None:
        wake = math.inf
        while True:
            now = min(wake, self._events[0][0] if self._events else math.inf)
            if now > until:
                return
            while self._events and self._events[0][0] <= now:
                self._happen(*heapq.heappop(self._events))
            wake = self._obey(now)
            assert wake > now

    def _happen(self, now: float, _: int, batch: Batch | None) -> None:
        if batch is None:
            self.scheduler.submit(Item(next(self._ids), now))
            return
        self.scheduler.finish(batch, now, ran_s=seconds(batch.rows))
        self.answered += len(batch.items)
        for _item in batch.items:
            self._come_back(now)

    def _obey(self, now: float) -> float:
        while True:
            match self.scheduler.next_action(now):
                case Wait(until):
                    return until
                case Run(batch):
                    self.batches.append(batch)
                    lingered = max(batch.lingered_s(item) for item in batch.items)
                    self.longest_linger_s = max(self.longest_linger_s, lingered)
                    done = (now + seconds(batch.rows), next(self._order), batch)
                    heapq.heappush(self._events, done)
                case Refuse(refusals):
                    pytest.fail(f"nobody has a deadline here: {refusals}")

    def _come_back(self, now: float) -> None:
        at = now + self._random.uniform(0.0, self._think_s)
        heapq.heappush(self._events, (at, next(self._order), None))


def seconds(rows: int) -> float:
    return 0.005 + 0.00005 * rows


LOOP_TABLE = CostTable(
    rows=tuple(probe_rows(64)), sizes=None, seconds=tuple((seconds(r),) for r in probe_rows(64))
)


def test_in_a_closed_loop_it_learns_to_wait_for_everyone() -> None:
    loop = ClosedLoop(auto(table=LOOP_TABLE), clients=8, think_s=0.0005)
    loop.run(until=1.0)
    learned = loop.batches[len(loop.batches) // 2 :]
    assert sum(batch.rows for batch in learned) / len(learned) >= 7.5
    reasons = Counter(batch.reason for batch in learned)
    assert reasons.most_common(1)[0][0] is FireReason.ALL_HERE


def test_in_a_closed_loop_waiting_answers_nearly_twice_as_many() -> None:
    waiting = ClosedLoop(auto(table=LOOP_TABLE), clients=8, think_s=0.0005)
    never = ClosedLoop(auto(table=LOOP_TABLE, max_wait_s=0.0), clients=8, think_s=0.0005)
    waiting.run(until=2.0)
    never.run(until=2.0)
    assert waiting.answered >= 1.7 * never.answered
    assert waiting.answered >= 0.95 * 2.0 * 8 / (seconds(8) + 0.0005)


def test_it_learns_without_a_table_too() -> None:
    loop = ClosedLoop(auto(table=None), clients=8, think_s=0.0005)
    loop.run(until=2.0)
    learned = loop.batches[len(loop.batches) // 2 :]
    assert sum(batch.rows for batch in learned) / len(learned) >= 7.5


def test_with_a_longest_wait_of_nothing_it_never_lingers() -> None:
    loop = ClosedLoop(auto(table=LOOP_TABLE, max_wait_s=0.0), clients=8, think_s=0.0005)
    loop.run(until=0.5)
    assert loop.longest_linger_s == 0.0
    assert {batch.linger_cap_s for batch in loop.batches} == {0.0}
    assert FireReason.LINGER not in {batch.reason for batch in loop.batches}


@pytest.mark.parametrize("max_wait_s", [0.0001, 0.0003])
def test_it_never_lingers_longer_than_it_may(max_wait_s: float) -> None:
    loop = ClosedLoop(
        auto(table=LOOP_TABLE, max_wait_s=max_wait_s), clients=8, think_s=0.6 * max_wait_s
    )
    loop.run(until=0.5)
    assert 0.0 < loop.longest_linger_s <= max_wait_s + 1e-9


def test_it_never_lingers_longer_than_one_item_takes_alone() -> None:
    loop = ClosedLoop(auto(table=LOOP_TABLE), clients=8, think_s=0.020)
    loop.run(until=1.0)
    assert loop.longest_linger_s <= seconds(1) + 1e-9


def test_several_workers_serve_a_closed_loop_without_losing_anyone() -> None:
    loop = ClosedLoop(auto(table=LOOP_TABLE, workers=2), clients=8, think_s=0.0005)
    loop.run(until=1.0)
    assert loop.answered >= 0.9 * 8 / (seconds(8) + 0.0005)


def test_a_lone_client_is_never_kept_waiting() -> None:
    loop = ClosedLoop(auto(table=LOOP_TABLE), clients=1, think_s=0.010)
    loop.run(until=1.0)
    assert loop.longest_linger_s == 0.0


def test_where_singles_are_fastest_a_closed_loop_is_served_singly() -> None:
    table = CostTable(
        rows=tuple(probe_rows(64)),
        sizes=None,
        seconds=tuple((0.040 * rows**1.1,) for rows in probe_rows(64)),
    )
    scheduler = Scheduler(Policy(), table)
    for i in range(5):
        scheduler.submit(Item(i, 0.0))
    for i in range(5):
        batch = fired(scheduler, i * 0.040)
        assert (batch.rows, batch.reason) == (1, FireReason.KNEE)
        scheduler.finish(batch, (i + 1) * 0.040, ran_s=0.040)


def test_nobody_lingers_past_a_deadline() -> None:
    """A pair is awaited, but the one who is here would be late for it."""
    scheduler = auto()
    now = teach_pairs(scheduler, 100, now=0.0)
    scheduler.submit(Item(10_000, now, deadline=now + 0.0105))
    action = scheduler.next_action(now)
    if isinstance(action, Wait):
        assert action.until <= now + 0.0005 + 1e-9
        action = scheduler.next_action(action.until)
    assert isinstance(action, Run)


def teach_pairs(scheduler: Scheduler, pairs: int, *, now: float, took_s: float = 0.010) -> float:
    """Items come in pairs, 1 ms apart, every 100 ms. Returns the time of the next pair."""
    numbers = itertools.count(int(now * 1e6) * 1000)
    for _ in range(pairs):
        running = []
        for offset in (0.0, 0.001):
            scheduler.submit(Item(next(numbers), now + offset))
            action = scheduler.next_action(now + offset)
            if isinstance(action, Run):
                running.append(action.batch)
        for batch in running:
            scheduler.finish(batch, now + took_s, ran_s=0.010)
        action = scheduler.next_action(now + took_s)
        if isinstance(action, Run):
            scheduler.finish(action.batch, now + 2 * took_s, ran_s=0.010)
        now += 0.100 + 2 * took_s
    return now
