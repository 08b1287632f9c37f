"""Any policy under any arrivals, cancellations, failures and delays: what always holds.

The machine is a faithful driver. It asks after events (not always after each), obeys, and wakes at
the moment it was told; what it was told and what it did are compared at every step.
"""

import gc
import itertools
import math
import types
from collections import Counter
from collections.abc import Iterable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable
from headway.core.faults.fitting import Misfit
from headway.core.items import (
    Batch,
    FireReason,
    Item,
    Priority,
    RefusalReason,
    Refuse,
    Run,
    Wait,
)
from headway.core.policy import Firing, Order, Policy
from headway.errors import DeadlineExceeded, InputTooLarge, QueueFull, Shed

TENANTS = ["", "a", "b", "c"]
PARTITIONS = [None, "x", "y", 3]
MOMENTS = st.sampled_from([0.0, 1e-6, 0.0001, 0.001, 0.004, 0.013, 0.05, 0.3, 1.1, 7.0])
BATCH_SIZES = {1: (1,), 2: (1, 2), 3: (3,), 4: (1, 4), 8: (2, 4, 8)}


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    firing = draw(st.sampled_from(Firing))
    waits = {
        Firing.AUTO: st.sampled_from([None, 0.0, 0.002]),
        Firing.WINDOW: st.sampled_from([0.0, 0.005, 0.1]),
        Firing.STATIC: st.none(),
    }
    rows = draw(st.sampled_from(sorted(BATCH_SIZES)))
    return Policy(
        firing=firing,
        max_wait_s=draw(waits[firing]),
        max_batch_size=rows,
        batch_sizes=draw(st.sampled_from([(), BATCH_SIZES[rows]])),
        max_batch_cost=draw(st.sampled_from([None, 1, 40, 200])),
        max_queue=draw(st.sampled_from([8, 20, 100])),
        slo_s=draw(st.sampled_from([None, 0.02, 0.5])),
        order=draw(st.sampled_from(Order)),
        workers=draw(st.integers(1, 3)),
        tenant_weights=draw(st.sampled_from([{}, {"a": 3.0, "b": 0.5}])),
        ageing_s=draw(st.sampled_from([0.01, 1.0])),
    )


@st.composite
def tables(draw: st.DrawFn) -> CostTable:
    rows = draw(st.sampled_from([(1,), (1, 4), (1, 2, 4, 8), (2, 16)]))
    sizes = draw(st.sampled_from([None, (8,), (4, 16, 64)]))
    base, per_row, power = draw(
        st.sampled_from(
            [(0.01, 0.0001, 1.0), (0.0, 0.005, 1.0), (0.0, 0.004, 1.2), (0.03, 0.01, 1)]
        )
    )
    seconds = tuple(
        tuple((base + per_row * r**power) * (1 + s / 64) for s in sizes or (0,)) for r in rows
    )
    return CostTable(rows=rows, sizes=sizes, seconds=seconds)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(policy=policies(), table=st.none() | tables())
    def start(self, policy: Policy, table: CostTable | None) -> None:
        self.policy = policy
        self.scheduler = Scheduler(policy, table)
        self.now = 100.0
        self.ids = itertools.count()
        self.waiting: dict[int, Item] = {}
        self.ended: dict[int, str] = {}
        self.running: list[Batch] = []
        self.last_run: dict[tuple[object, ...], int] = {}
        self.wake: float | None = None  # None: something happened since we asked
        self.workers = policy.workers
        self.lost: set[int] = set()  # who was on a worker that was lost
        self.losses_alone: Counter[int] = Counter()
        self.draining = False

    # ---- what happens

    @rule(
        rows=st.sampled_from([1, 1, 1, 2, 3, 5, 9]),
        size=st.sampled_from([0, 0, 1, 7, 33, 64, 300]),
        priority=st.sampled_from(Priority),
        tenant=st.sampled_from(TENANTS),
        partition=st.sampled_from(PARTITIONS),
        patience=st.sampled_from([math.inf, math.inf, 0.0, 0.003, 0.05, 2.0]),
        count=st.integers(1, 4),
        ask=st.booleans(),
    )
    def submit(
        self,
        rows: int,
        size: int,
        priority: Priority,
        tenant: str,
        partition: object,
        patience: float,
        count: int,
        *,
        ask: bool,
    ) -> None:
        for _ in range(count):
            whole = Item(
                id=next(self.ids),
                arrived_at=self.now,
                rows=rows,
                size=size,
                priority=priority,
                tenant=tenant,
                deadline=self.now + patience,
                partition=partition,
            )
            self._submit(whole)
        self._happened(ask=ask)

    def _submit(self, whole: Item) -> None:
        limit = self.policy.max_batch_size
        for start in range(0, whole.rows, limit):
            part = whole if not start else whole._replace(id=next(self.ids))
            part = part._replace(rows=min(limit, whole.rows - start))
            try:
                self.scheduler.submit(part)
            except (DeadlineExceeded, InputTooLarge, QueueFull, Shed) as refusal:
                self._end(part, f"refused at the door: {refusal.code}")
            else:
                self.waiting[part.id] = part

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), ask=st.booleans())
    def cancel(self, data: st.DataObject, *, ask: bool) -> None:
        item_id = data.draw(st.sampled_from(sorted(self.waiting)))
        if self.scheduler.cancel(item_id):  # else its refusal is on the way
            self._end(self.waiting.pop(item_id), "cancelled")
        self._happened(ask=ask)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def cancel_what_has_ended(self, data: st.DataObject) -> None:
        assert not self.scheduler.cancel(data.draw(st.sampled_from(sorted(self.ended))))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), after=MOMENTS, failed=st.booleans(), ask=st.booleans())
    def finish(self, data: st.DataObject, after: float, *, failed: bool, ask: bool) -> None:
        self._advance(self.now + after)
        place = data.draw(st.integers(0, len(self.running) - 1))
        self._finish(self.running.pop(place), failed=failed)
        self._happened(ask=ask)

    def _finish(self, batch: Batch, *, failed: bool) -> None:
        ran_s = None if failed else self.now - batch.fired_at
        self.scheduler.finish(batch, self.now, ran_s=ran_s)

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        max_losses=st.sampled_from([0, 2, 16]),
        out_of_memory=st.booleans(),
        ask=st.booleans(),
    )
    def lose(self, data: st.DataObject, max_losses: int, *, out_of_memory: bool, ask: bool) -> None:
        """A worker dies with its batch; some of those in it are gone by then."""
        batch = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        gone = data.draw(st.sets(st.sampled_from([item.id for item in batch.items])))
        gone &= data.draw(st.sampled_from([set(), gone]))
        waiting = [item for item in batch.items if item.id not in gone]
        for item in waiting:
            del self.ended[item.id]
            self.waiting[item.id] = item
            self.lost.add(item.id)
        if len(batch.items) == 1:
            self.losses_alone.update(item.id for item in batch.items)
        self.scheduler.lost(
            batch, waiting, max_losses=max_losses, reason="killed", out_of_memory=out_of_memory
        )
        self._happened(ask=ask)

    @rule(data=st.data())
    def workers_come_and_go(self, data: st.DataObject) -> None:
        self.workers = data.draw(st.integers(0, self.policy.workers))
        self.scheduler.set_workers(self.workers)
        self._happened(ask=True)

    @rule(rows=st.integers(2, 8), size=st.sampled_from([0, 1, 7, 33, 300]))
    def something_does_not_fit(self, rows: int, size: int) -> None:
        self.scheduler.does_not_fit(Misfit(rows, size))
        self._happened(ask=True)

    @rule(by=MOMENTS)
    def time_passes(self, by: float) -> None:
        self._advance(self.now + by)

    @rule()
    def sleep_until_told(self) -> None:
        if self.wake is None:
            self._ask()
        assert self.wake is not None
        if self.wake < math.inf:
            self._advance(self.wake)

    @precondition(lambda self: not self.draining)
    @rule(really=st.integers(0, 9).map(lambda n: n == 0))
    def drain(self, *, really: bool) -> None:
        if really:
            self.scheduler.drain()
            self.draining = True
            self._happened(ask=True)

    # ---- the driver

    def _happened(self, *, ask: bool) -> None:
        self.wake = None
        if ask:
            self._ask()

    def _advance(self, target: float) -> None:
        """Let time pass as a driver would: waking whenever it was told to."""
        if self.wake is None:
            self._ask()
        assert self.wake is not None
        while self.wake <= target:
            self.now, before = self.wake, self.wake
            did_something = self._ask()
            assert did_something or self.wake > before, "woken for nothing"
        self.now = max(self.now, target)

    def _ask(self) -> bool:
        """Ask until told to wait. True if there was anything to do."""
        for turn in range(len(self.waiting) + self.policy.workers + 3):
            match self.scheduler.next_action(self.now):
                case Run(batch):
                    self._run(batch)
                case Refuse(refusals):
                    assert refusals
                    for refusal in refusals:
                        self._end(self.waiting.pop(refusal.item.id), refusal.reason)
                        if refusal.reason is RefusalReason.POISON:
                            assert self.losses_alone[refusal.item.id] >= 2, "blamed on suspicion"
                case Wait(until):
                    self._wait(until)
                    return turn > 0
        raise AssertionError("it does not stop finding something to do")

    def _wait(self, until: float) -> None:
        self.wake = until
        assert until > self.now, "a wait for a moment already past"
        is_free = len(self.running) < self.workers
        others = self.waiting.keys() - self.lost  # those may wait for one of their own batch
        if (others or (self.waiting and not self.running)) and is_free:
            assert not self.draining, "draining, but it waits"
            if self.policy.firing is not Firing.STATIC:
                assert until < math.inf, "work, a free worker, and nothing to wake for"
        deadlines = (item.deadline for item in self.waiting.values())
        assert until <= min(deadlines, default=math.inf)

    def _run(self, batch: Batch) -> None:
        assert len(self.running) < self.workers
        self.running.append(batch)
        self._check_limits(batch)
        is_retry = batch.reason is FireReason.RETRY
        assert batch.fired_at == self.now
        for item in batch.items:
            assert item.deadline > self.now, "expired, but it runs"
            assert self.waiting.pop(item.id) == item
            self._end(item, "run")
            assert is_retry == (item.id in self.lost), "exposed to those who lost a worker"
            if not is_retry:
                self._check_order(item)
            self._check_explanation(batch, item)

    def _check_limits(self, batch: Batch) -> None:
        policy, items = self.policy, batch.items
        assert batch.rows == sum(item.rows for item in items) > 0
        assert batch.size == max(item.size for item in items)
        assert len({item.partition for item in items}) == 1
        assert batch.padded_rows >= batch.rows
        assert batch.rows <= policy.max_batch_size  # larger ones were split
        if policy.batch_sizes:
            assert batch.padded_rows in policy.batch_sizes
        if len(items) > 1:
            assert batch.rows * batch.size <= (policy.max_batch_cost or math.inf)
        if len(items) > 1 and batch.reason is not FireReason.RETRY:
            fits = self.scheduler._fitting.rows_at(batch.size)
            assert batch.rows <= fits, "more than fits into memory"

    def _check_order(self, item: Item) -> None:
        if self.policy.order is Order.FIFO:
            line: tuple[object, ...] = (item.priority, item.tenant, item.partition)
            if self.policy.firing is Firing.AUTO:  # those of other sizes may be planned before
                line = (*line, item.size, item.rows)
            assert item.id > self.last_run.get(line, -1), "overtaken"
            self.last_run[line] = item.id

    def _check_explanation(self, batch: Batch, item: Item) -> None:
        queued_s, lingered_s = batch.queued_s(item), batch.lingered_s(item)
        assert queued_s >= 0.0
        assert lingered_s >= 0.0
        assert math.isclose(queued_s + lingered_s, self.now - item.arrived_at, abs_tol=1e-9)
        if self.policy.firing is Firing.AUTO and self.policy.max_wait_s is not None:
            assert lingered_s <= self.policy.max_wait_s + 1e-9, "lingered longer than it may"

    def _end(self, item: Item, how: str) -> None:
        assert item.id not in self.ended, f"{self.ended[item.id]}, and then {how}"
        self.ended[item.id] = how

    # ---- what holds at every step

    @invariant()
    def the_queue_is_bounded(self) -> None:
        if hasattr(self, "scheduler"):
            lost = (item.rows for item in self.waiting.values() if item.id in self.lost)
            assert self.scheduler.queued_rows <= self.policy.max_queue + sum(lost)

    @invariant()
    def the_figures_agree(self) -> None:
        if hasattr(self, "scheduler") and self.wake is not None:  # no refusal is on the way
            assert self.scheduler.queued_items == len(self.waiting)
            assert self.scheduler.queued_rows == sum(i.rows for i in self.waiting.values())
            assert self.scheduler.running_batches == len(self.running)
            assert self.scheduler.queued_s >= 0.0

    def teardown(self) -> None:
        """Everybody is answered when it is drained, and nothing is left behind."""
        if not hasattr(self, "scheduler"):
            return
        self.workers = self.policy.workers
        self.scheduler.set_workers(self.workers)
        self.scheduler.drain()
        self.draining = True
        self._ask()
        for _ in range(2 * len(self.waiting) + len(self.running) + 1):
            if self.running:
                self.now += 0.001
                self._finish(self.running.pop(), failed=False)
                self._ask()
        assert not self.waiting, "left waiting for ever"
        assert self.scheduler.is_idle
        assert self.scheduler.next_action(self.now) == Wait(math.inf)
        assert list(reachable(self.scheduler, Item)) == [], "an item is remembered for ever"


def reachable(root: object, kind: type) -> Iterable[object]:
    """Every object of that kind that `root` keeps alive, however it is stored."""
    seen, stack = {id(root)}, [root]
    while stack:
        each = stack.pop()
        if isinstance(each, kind):
            yield each
        for child in gc.get_referents(each):
            is_code = isinstance(child, type | types.ModuleType | types.FunctionType)
            if not is_code and id(child) not in seen:
                seen.add(id(child))
                stack.append(child)


def test_any_policy_under_any_events() -> None:
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=max(150, settings().max_examples),
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
