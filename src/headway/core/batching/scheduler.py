"""Decide which queued items run together, and when.

Pure: no I/O, no asyncio, no clock. Time comes in as `now`; decisions go out as values. The
runtime obeys them in real time, the simulator in virtual time.
"""

import math
from collections.abc import Mapping, Sequence

from headway.core.batching.buckets import Buckets
from headway.core.batching.composing import Composer, queue_for
from headway.core.batching.firing import AutoRule, Fire, HoldUntil, rule_for
from headway.core.batching.pool import Pool
from headway.core.batching.refusals import Refusals
from headway.core.costs import Costs, CostTable
from headway.core.costs.full_batches import pace_of, work_of
from headway.core.faults.fitting import Fitting, Misfit
from headway.core.faults.suspects import Suspects
from headway.core.items import Action, Batch, FireReason, Item, Refuse, Run, Wait, new_batch
from headway.core.policy import Compose, Firing, Policy
from headway.core.queueing.admission import Admission
from headway.core.queueing.queue import FairLane, PlainLane
from headway.core.queueing.running import Running
from headway.core.routing import Pace
from headway.errors import HeadwayError, InvalidInput


class Scheduler:
    """One model's queue and the rules that empty it."""

    def __init__(self, policy: Policy | None = None, table: CostTable | None = None) -> None:
        policy = policy or Policy()
        self.policy = policy
        self.costs = Costs(
            policy.max_batch_size,
            table,
            error_percentile=policy.slo_percentile,
            batch_sizes=policy.batch_sizes,
        )
        self._queue = queue_for(policy)
        self._fitting = Fitting(policy.max_batch_size, policy.batch_sizes)
        self._running = Running(policy.workers)
        self._admission = Admission(policy, self.costs, self._queue, self._running)
        self._composer = Composer(policy, self.costs, self._queue, self._fitting)
        self._is_packed = policy.compose is Compose.PACKED
        self._buckets: Buckets | None = None
        if policy.compose is Compose.BUCKETS:
            self._buckets = Buckets(policy.buckets, quantiles=policy.quantiles)
        self._suspects = Suspects()
        self._pool = Pool(self._running, self.costs)
        auto = AutoRule(policy, self.costs, self._running, self._fitting, self._pool)
        self._arrivals, self._rehearsal = auto.arrivals, auto.rehearsal
        self._rule = rule_for(policy, self.costs, auto)
        self._refusals = Refusals(policy, self._queue, self._suspects)
        self._idle_since: float | None = None
        self._batches = 0
        self._last_size = 0
        self._draining = False
        self._max_queue = policy.max_queue
        self._learns = self._rule is auto  # the other rules use given waits
        self._slo_s = math.inf if policy.slo_s is None else policy.slo_s
        self._may_shed = policy.slo_s is not None and policy.firing is Firing.AUTO

    # ---- what happens

    def submit(self, item: Item) -> None:
        """Queue an item, or raise the reason for refusing it."""
        queue = self._queue
        # An item like all waiting ones needs no checks.
        if queue.rows >= self._max_queue or not queue.push_alike(item):
            self._submit_carefully(item)
        if self._learns:
            self._arrivals.arrived(item.arrived_at, queue.items + self._running.items)

    def submit_alike(self, items: Sequence[Item]) -> list[tuple[Item, HeadwayError]]:
        """Queue items that differ only in id and time. Returns refused items and the reasons."""
        queue = self._queue
        here = queue.items + self._running.items
        is_room = queue.rows + len(items) <= self._max_queue
        if len(items) == 1 or not is_room or not queue.push_many_alike(items):
            return self.submit_each(items)
        if self._learns:
            self._arrivals.arrived_together([item.arrived_at for item in items], here)
        return []

    def submit_each(self, items: Sequence[Item]) -> list[tuple[Item, HeadwayError]]:
        """Queue items, each on its own. Returns refused items and the reasons."""
        refused: list[tuple[Item, HeadwayError]] = []
        for item in items:
            try:
                self.submit(item)
            except HeadwayError as error:
                refused.append((item, error))
        return refused

    def _submit_carefully(self, item: Item) -> None:
        if item.rows < 1 or item.deadline != item.deadline:
            raise InvalidInput(f"needs at least one row and a deadline in time: {item}")
        full = self._queue.rows + item.rows > self._max_queue
        if full or self._may_shed or item.deadline != math.inf:
            self._refusals.add(self._admission.admit(item, item.rows, self.cap_rows))
        if item.size and self._buckets is not None:
            item = item._replace(bucket=self._buckets.bucket_of(item.size))
        self._queue.push(item, min(item.deadline, item.arrived_at + self._slo_s))

    def cancel(self, item_id: int) -> bool:
        """Forget a queued item. False, and harmless, once it has started."""
        if self._queue.remove(item_id) is not None:
            return True
        return bool(self._suspects.cases) and self._suspects.remove(item_id)

    def finish(self, batch: Batch, now: float, *, ran_s: float | None = None) -> float:
        """The batch has left its worker. Returns the work that was in it, in seconds.

        `ran_s`: the model's time; None if that is no measure of its speed (the batch failed, or
        was cut short).
        """
        self._leave_worker(batch)
        work_s = work_of(self.costs, batch)
        if ran_s is not None:
            self._observe(batch, ran_s)
            if self._fitting.limits:
                self._fitting.ran(batch.padded_rows, batch.size)
        if self._suspects.cases:
            misfit = self._suspects.cleared(batch)
            if misfit is not None:
                self._fitting.failed(misfit)
        if self._learns:
            self._arrivals.completed(now, self._queue.items + self._running.items)
        return (ran_s or 0.0) if work_s is None else work_s

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
        """The batch's worker was lost, and with it the results.

        The items in `waiting`, whose callers are still there, run again without others, until that
        has cost `max_losses` further workers. The remaining items are refused.
        """
        self._leave_worker(batch)
        verdict = self._suspects.lost(
            batch, waiting, max_losses=max_losses, out_of_memory=out_of_memory
        )
        self._refusals.lost(verdict, reason)

    def does_not_fit(self, misfit: Misfit) -> None:
        """A batch ran out of memory: compose none as large for a while."""
        self._fitting.failed(misfit)

    def _leave_worker(self, batch: Batch) -> None:
        self._running.leave(batch)
        self._admission.left(batch)

    def set_workers(self, workers: int | Sequence[int]) -> None:
        """Set the number of workers, or the numbers of those that are up.

        Without workers all items wait; the queue stays bounded.
        """
        self._running.set_workers(range(workers) if isinstance(workers, int) else workers)
        self._admission.reconsider()

    def drain(self) -> None:
        """From now on queued items leave as soon as a worker is free, without a wait."""
        self._draining = True

    def learn(self, table: CostTable) -> None:
        """Use this cost table from now on: the warm-up is over."""
        self.costs.adopt(table)
        self._admission.reconsider()

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Use these weights of tenants from now on; a tenant that is absent has 1."""
        self._queue.weigh(weights)
        self._admission.reconsider()

    # ---- what to do

    def next_action(self, now: float) -> Action:
        """Call until it returns `Wait`, after every event and at the moment that `Wait` names."""
        queue = self._queue
        if self._refusals or queue.has_expired(now):
            return self._refusals.take(now)
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
            return Wait(min(verdict.until, self._refusals.next_deadline()))
        return self._fire(verdict, now)

    def _nothing_to_start(self, now: float) -> Wait:
        self._idle_since = None
        if self._learns:
            self._rehearsal.step(now)
        return Wait(self._refusals.next_deadline())

    def _retry(self, now: float) -> Run | Refuse | None:
        """Items of a lost worker keep their place: before all but higher classes."""
        suspects = self._suspects
        if suspects.next_deadline() <= now:
            return self._refusals.take(now)
        first = suspects.first()
        if first is None or self._running.free <= 0:
            return None
        lane = self._queue.lead(now, aged_turn=False)
        is_aged = now - first.arrived_at > self.policy.ageing_s
        if lane is not None and not is_aged and lane.priority < first.priority:
            return None
        self._idle_since = now  # these items do not linger
        items = suspects.take(first)
        rows, size = sum(item.rows for item in items), max(item.size for item in items)
        run = self._start(items, rows, size, FireReason.RETRY, self.cap_rows, now)
        suspects.started(run.batch)
        return run

    def _decide(self, now: float) -> Fire | HoldUntil:
        aged_turn = self._queue.has_aged(now)
        if self._draining:
            lane = self._queue.lead(now, aged_turn=aged_turn)
            assert lane is not None, "draining, but no item waits"
            return Fire(lane, FireReason.DRAIN)
        assert self._idle_since is not None
        return self._rule.decide(self._queue, now, idle_since=self._idle_since, aged_turn=aged_turn)

    def _fire(self, fire: Fire, now: float) -> Action:
        lane, reason = fire.lane, fire.reason
        cap_rows = self._rule.rows_now(lane)
        if self._fitting.limits:
            cap_rows = min(cap_rows, self._fitting.rows_at(0))  # a size: see the composer
        if isinstance(lane, PlainLane):
            if cap_rows < lane.rows:
                reason = self._why_cut(cap_rows)
            items = self._queue.take_alike(lane, cap_rows)
            return self._start(items, len(items), 0, reason, cap_rows, now)
        assert isinstance(lane, FairLane)
        is_flooded = self._admission.is_flooded(now, self.cap_rows)
        made = self._composer.compose(lane, now, cap_rows=cap_rows, is_flooded=is_flooded)
        shed = self._refusals.late(made, self.queued_s) if made.late else None
        if shed:
            self._admission.saw_late(shed, now, made.late_before)
        if not made.items:
            return self._refusals.take(now)
        if made.stopped_by is not None:
            reason = made.stopped_by
        elif made.rows == cap_rows and made.left_rows:
            reason = self._why_cut(cap_rows)
        return self._start(made.items, made.rows, made.size, reason, cap_rows, now)

    def _why_cut(self, rows: int) -> FireReason:
        """Why a batch of `rows` rows leaves some of the waiting items behind."""
        if rows >= self.policy.max_batch_size:
            return FireReason.FULL
        return FireReason.KNEE if rows < self._fitting.rows_at(0) else FireReason.BUDGET

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
        self._last_size = size
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

    # ---- caps and figures

    @property
    def cap_rows(self) -> int:
        """The most rows that pay in one batch, as far as is known."""
        return self._rule.most_rows

    def part_rows(self, size: int) -> int:
        """The most rows of one item; a larger request is to be split."""
        return min(self.cap_rows, self._fitting.rows_at(size))

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
        """The seconds until the workers have done all that waits now, in full batches."""
        costs, lanes = self.costs, self._queue.lanes.values()
        waiting_s = [lane.rows * (costs.full_row_s(lane.mean_size) or 0.0) for lane in lanes]
        return sum(waiting_s) / self._running.workers

    @property
    def pace(self) -> Pace | None:
        """How long batches take, of items like those of the last one; None: unknown."""
        return pace_of(self.costs, self._last_size, self.cap_rows)

    @property
    def running_items(self) -> int:
        return self._running.items

    @property
    def may_refuse(self) -> bool:
        """May an item have to be refused before the next event?"""
        return self._queue.has_deadlines or bool(self._refusals) or bool(self._suspects.cases)

    @property
    def running_batches(self) -> int:
        return len(self._running.batches)

    @property
    def is_idle(self) -> bool:
        return not (self._running.batches or self._queue or self._suspects.cases or self._refusals)
