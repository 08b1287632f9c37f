"""Decide which queued items run together, and when.

Pure: no I/O, no asyncio, no clock. Time comes in as `now`; decisions go out as values. The
runtime obeys them in real time, the simulator in virtual time.
"""

import math
from collections.abc import Mapping, Sequence

from headway.core.batching.arrivals import Arrivals
from headway.core.batching.batch_size import BatchSize
from headway.core.batching.buckets import Buckets
from headway.core.batching.composing import MOST_DROPPED, Composer, Composition, needs_shelves
from headway.core.batching.firing import AutoRule, Fire, HoldUntil, rule_for
from headway.core.batching.gathering import Gathering
from headway.core.batching.planning import shelf_of
from headway.core.batching.pool import Pool
from headway.core.batching.rehearsal import Rehearsal
from headway.core.costs import Costs, CostTable
from headway.core.faults.fitting import Fitting, Misfit
from headway.core.faults.suspects import Suspects
from headway.core.items import (
    Action,
    Batch,
    FireReason,
    Item,
    Refusal,
    RefusalReason,
    Refuse,
    Run,
    Wait,
    new_batch,
)
from headway.core.policy import Compose, Firing, Policy
from headway.core.queueing.admission import Admission
from headway.core.queueing.queue import FairLane, Lane, PlainLane, Queue
from headway.core.queueing.running import Running
from headway.errors import HeadwayError, InvalidInput

_NOTHING_TO_DO = Wait(math.inf)


class Scheduler:
    """One model's queue and the rules that empty it."""

    def __init__(self, policy: Policy | None = None, table: CostTable | None = None) -> None:
        policy = policy or Policy()
        self.policy = policy
        self.costs = _costs_for(policy, table)
        self._queue = _queue_for(policy)
        self._fitting = Fitting(policy.max_batch_size, policy.batch_sizes)
        self._running = Running(policy.workers)
        self._rehearsal = Rehearsal(policy, self.costs, self._running)
        self._arrivals = Arrivals(policy.workers, self._rehearsal.arrived)
        gathering = Gathering(self.costs, self._arrivals, self._running, policy.max_batch_size)
        self._batch_size = BatchSize(
            policy,
            self.costs,
            arrivals=self._arrivals,
            gathering=gathering,
            rehearsal=self._rehearsal,
            fitting=self._fitting,
            running=self._running,
        )
        self._admission = Admission(policy, self.costs, self._queue, self._running)
        self._composer = Composer(policy, self.costs, self._queue, self._fitting)
        self._is_packed = policy.compose is Compose.PACKED
        # Does a batch run at other figures than its rows and its largest size?
        self._is_padded = self._is_packed or bool(policy.batch_sizes or policy.pad_sizes)
        self._buckets: Buckets | None = None
        if policy.compose is Compose.BUCKETS:
            self._buckets = Buckets(policy.buckets, quantiles=policy.quantiles)
        self._suspects = Suspects()
        self._pool = Pool(self._running, self.costs)
        auto = AutoRule(
            policy,
            self.costs,
            arrivals=self._arrivals,
            gathering=gathering,
            rehearsal=self._rehearsal,
            batch_size=self._batch_size,
            pool=self._pool,
            running=self._running,
        )
        self._rule = rule_for(policy, self.costs, auto)
        self._refused: list[Refusal] = []
        self._idle_since: float | None = None
        self._batches = 0
        self._draining = False
        self._max_queue = policy.max_queue
        self._learns = self._rule is auto  # the others wait as they are told
        self._slo_s = math.inf if policy.slo_s is None else policy.slo_s
        self._may_shed = policy.slo_s is not None and policy.firing is Firing.AUTO

    # ---- what happens

    def submit(self, item: Item) -> None:
        """Queue an item, or raise why not."""
        queue = self._queue
        # Like all waiting items: nothing to check or to weigh.
        if queue.rows >= self._max_queue or not queue.push_alike(item):
            self._submit_carefully(item)
        if self._learns:
            self._arrivals.arrived(item.arrived_at, queue.items + self._running.items)

    def submit_alike(self, items: Sequence[Item]) -> list[tuple[Item, HeadwayError]]:
        """Queue several items that differ only in id and time; returns the refused, and why."""
        if len(items) == 1:
            return self._try_submit(items[0])
        queue = self._queue
        here = queue.items + self._running.items
        if queue.rows + len(items) <= self._max_queue and queue.push_many_alike(items):
            if self._learns:
                self._arrivals.arrived_together([item.arrived_at for item in items], here)
            return []
        return self.submit_each(items)

    def submit_each(self, items: Sequence[Item]) -> list[tuple[Item, HeadwayError]]:
        """Queue several items, each on its own; returns the refused, and why."""
        return [refused for item in items for refused in self._try_submit(item)]

    def _try_submit(self, item: Item) -> list[tuple[Item, HeadwayError]]:
        try:
            self.submit(item)
        except HeadwayError as error:
            return [(item, error)]
        return []

    def _submit_carefully(self, item: Item) -> None:
        if item.rows < 1 or item.deadline != item.deadline:
            raise InvalidInput(f"needs at least one row and a deadline in time: {item}")
        full = self._queue.rows + item.rows > self._max_queue
        if full or self._may_shed or item.deadline != math.inf:
            self._refused += self._admission.admit(item, item.rows, self.cap_rows)
        if item.size and self._buckets is not None:
            item = item._replace(bucket=self._buckets.bucket_of(item.size))
        self._queue.push(item, min(item.deadline, item.arrived_at + self._slo_s))

    def cancel(self, item_id: int) -> bool:
        """Forget a queued item. False, and harmless, once it has started."""
        if self._queue.remove(item_id) is not None:
            return True
        return bool(self._suspects.cases) and self._suspects.remove(item_id)

    def finish(self, batch: Batch, now: float, *, ran_s: float | None = None) -> None:
        """The batch has left its worker. `ran_s`: what the model took; None if that says nothing
        about its speed (it failed, or was cut short)."""
        self._leave_worker(batch)
        if ran_s is not None:
            self._observe(batch, ran_s)
            if self._fitting.limits:
                self._fitting.ran(batch.padded_rows, batch.size)
        if self._suspects.cases:
            self._clear(batch)
        if self._learns:
            self._arrivals.completed(now, self._queue.items + self._running.items)

    def _observe(self, batch: Batch, ran_s: float) -> None:
        if self._running.workers > 1:
            if self._pool.observe(batch, ran_s):
                self._rehearsal.start_over()
            self._running.speeds = self._pool.speeds
            ran_s /= self._pool.times(batch.worker)
        self.costs.observe(batch.padded_rows, batch.size, ran_s)

    def lost(
        self,
        batch: Batch,
        waiting: Sequence[Item],
        *,
        max_losses: int,
        reason: str = "",
        out_of_memory: bool = False,
    ) -> None:
        """The batch's worker was lost, and with it what it computed.

        Those of it whose callers are still `waiting` run again, by themselves, for as long as that
        costs no more than `max_losses` further workers; the others are refused.
        """
        self._leave_worker(batch)
        verdict = self._suspects.lost(
            batch, waiting, max_losses=max_losses, out_of_memory=out_of_memory
        )
        for item in verdict.blamed:
            self._refused.append(Refusal(item, RefusalReason.POISON, detail=reason))
        for item in verdict.given_up:
            self._refused.append(Refusal(item, RefusalReason.WORKER_LOST, detail=reason))

    def does_not_fit(self, misfit: Misfit) -> None:
        """A batch ran out of memory: make none like it for a while."""
        self._fitting.failed(misfit)

    def _clear(self, batch: Batch) -> None:
        misfit = self._suspects.cleared(batch)
        if misfit is not None:
            self._fitting.failed(misfit)

    def _leave_worker(self, batch: Batch) -> None:
        self._running.leave(batch)
        self._admission.left(batch)

    def set_workers(self, workers: int | Sequence[int]) -> None:
        """So many there are now, or these, by number. With none, everything waits; the queue stays
        bounded."""
        self._running.set_workers(range(workers) if isinstance(workers, int) else workers)
        self._arrivals.workers = self._running.workers
        self._admission.reconsider()

    def drain(self) -> None:
        """From now on wait for nobody: whatever is queued leaves as soon as a worker is free."""
        self._draining = True

    def learn(self, table: CostTable) -> None:
        """Warm-up is over: from now on this is what batches cost."""
        self.costs.adopt(table)
        self._admission.reconsider()

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Tenants share by these from now on; absent: 1."""
        self._queue.weigh(weights)
        self._admission.reconsider()

    # ---- what to do

    def _next_lane(self, now: float) -> Lane:
        lane = self._queue.lead(now, aged_turn=self._queue.has_aged(now))
        assert lane is not None, "nobody waits"
        return lane

    def next_action(self, now: float) -> Action:
        """Call until it answers `Wait`, after every event and at the moment it names."""
        queue = self._queue
        if self._refused or queue.has_expired(now):
            return self._refuse(now)
        if self._suspects.cases:
            action = self._retry(now)
            if action is not None:
                return action
        if not queue.items or self._running.free <= 0:
            return self._nothing_to_start(now)
        if self._idle_since is None:
            self._idle_since = now
        verdict = self._decide(now)
        if not isinstance(verdict, Fire):
            return Wait(min(verdict.until, self._next_deadline()))
        return self._fire(verdict, now)

    def _nothing_to_start(self, now: float) -> Wait:
        self._idle_since = None
        if self._learns:
            self._rehearsal.step(now)
        deadline = self._next_deadline()
        return _NOTHING_TO_DO if deadline == math.inf else Wait(deadline)

    def _retry(self, now: float) -> Run | Refuse | None:
        """Items of a lost worker keep their place: before all but higher classes."""
        suspects = self._suspects
        if suspects.next_deadline() <= now:
            return self._refuse(now)
        first = suspects.first()
        if first is None or self._running.free <= 0:
            return None
        lane = self._queue.lead(now, aged_turn=False)
        is_aged = now - first.arrived_at > self.policy.ageing_s
        if lane is not None and not is_aged and lane.priority < first.priority:
            return None
        self._idle_since = now  # nobody waits on purpose here
        items = suspects.take(first)
        rows, size = sum(item.rows for item in items), max(item.size for item in items)
        run = self._start(items, rows, size, FireReason.RETRY, self.cap_rows, now)
        suspects.started(run.batch)
        return run

    def _decide(self, now: float) -> Fire | HoldUntil:
        if self._draining:
            return Fire(self._next_lane(now), FireReason.DRAIN)
        aged_turn = self._queue.has_aged(now)
        assert self._idle_since is not None
        return self._rule.decide(self._queue, now, idle_since=self._idle_since, aged_turn=aged_turn)

    def _fire(self, fire: Fire, now: float) -> Action:
        lane, reason = fire.lane, fire.reason
        cap_rows = self._batch_size.rows_now(lane)
        if isinstance(lane, PlainLane):
            if cap_rows < lane.rows:
                reason = self._batch_size.why_cut(cap_rows)
            items = self._queue.take_alike(lane, cap_rows)
            return self._start(items, len(items), 0, reason, cap_rows, now)
        assert isinstance(lane, FairLane)
        is_flooded = self._admission.is_flooded(now, self._batch_size.most_rows)
        made = self._composer.compose(lane, now, cap_rows=cap_rows, is_flooded=is_flooded)
        if made.late:
            self._note_late(made, now)
        if not made.items:
            return self._refuse(now)
        if made.stopped_by is not None:
            reason = made.stopped_by
        elif made.rows == cap_rows and made.left_rows:
            reason = self._batch_size.why_cut(cap_rows)
        return self._start(made.items, made.rows, made.size, reason, cap_rows, now)

    def _start(
        self,
        items: Sequence[Item],
        rows: int,
        size: int,
        reason: FireReason,
        cap_rows: int,
        now: float,
    ) -> Run:
        self._batches += 1
        padded_rows = rows
        if self._is_padded:
            padded_rows = self._composer.padded_rows(rows)
            if size:
                size = self._composer.run_size(items, rows, size)
        assert self._idle_since is not None
        predicted_s = self.costs.predict(padded_rows, size)
        worker = self._pool.next_worker()
        if predicted_s is not None and self._running.workers > 1:
            predicted_s *= self._pool.times(worker)
        batch = new_batch(
            (
                self._batches,
                tuple(items),
                rows,
                size,
                padded_rows,
                reason,
                now,
                self._idle_since,
                cap_rows,
                self._rule.linger_cap_s,
                predicted_s,
                self._is_packed,
                worker,
            )
        )
        self._running.start(batch)
        self._admission.started(batch)
        self._idle_since = None
        return Run(batch)

    # ---- refusals

    def _refuse(self, now: float) -> Refuse:
        for item in (
            *self._queue.pop_expired(now, MOST_DROPPED),
            *self._suspects.pop_expired(now),
        ):
            self._refused.append(Refusal(item, RefusalReason.DEADLINE))
        refusals = tuple(self._refused)
        self._refused.clear()
        return Refuse(refusals)

    def _note_late(self, made: Composition, now: float) -> None:
        retry_after_s = self.queued_s
        slo_s = self.policy.slo_s or math.inf
        shed = []
        for item in made.late:
            if item.deadline <= item.arrived_at + slo_s:
                reason = RefusalReason.DEADLINE
            else:
                reason = RefusalReason.SHED
                shed.append(item.arrived_at)
            self._refused.append(Refusal(item, reason, retry_after_s))
        if shed:
            self._admission.saw_late(shed, now, made.late_before)

    def _next_deadline(self) -> float:
        deadline = self._queue.next_deadline()
        return min(deadline, self._suspects.next_deadline()) if self._suspects.cases else deadline

    # ---- caps and figures

    @property
    def cap_rows(self) -> int:
        """The most rows that pay in one batch, as far as is known."""
        return self._batch_size.most_rows

    def part_rows(self, size: int) -> int:
        """The most rows of one item; a larger request is to be split."""
        return self._batch_size.part_rows(size)

    @property
    def queued_items(self) -> int:
        return len(self._queue) + len(self._suspects)

    def waiting_items(self) -> list[Item]:
        """All items that are queued, or wait to run again."""
        return [*self._queue, *self._suspects.items()]

    @property
    def queued_rows(self) -> int:
        return self._queue.rows + self._suspects.rows

    @property
    def queued_s(self) -> float:
        """Seconds of work waiting."""
        return self._admission.queued_s(self.cap_rows)

    @property
    def may_refuse(self) -> bool:
        """Is somebody to be refused now, or may have to be before the next event?"""
        return self._queue.has_deadlines or bool(self._refused) or bool(self._suspects.cases)

    @property
    def running_batches(self) -> int:
        return len(self._running.batches)

    @property
    def is_idle(self) -> bool:
        return not (self._running.batches or self._queue or self._suspects.cases or self._refused)


def _costs_for(policy: Policy, table: CostTable | None) -> Costs:
    return Costs(
        policy.max_batch_size,
        table,
        error_percentile=policy.slo_percentile,
        batch_sizes=policy.batch_sizes,
    )


def _queue_for(policy: Policy) -> Queue:
    return Queue(
        order=policy.order,
        weights=policy.tenant_weights,
        full_rows=policy.max_batch_size,
        ageing_s=policy.ageing_s,
        # An SLO asks of each item whether it is late, fixed sizes how many there are to be.
        may_be_plain=policy.slo_s is None and not policy.batch_sizes,
        shelf_of=shelf_of(policy.pad_sizes) if needs_shelves(policy) else None,
    )
