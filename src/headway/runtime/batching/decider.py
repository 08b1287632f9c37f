"""Obeys the scheduler, driven by its shell: starts batches, takes them back, answers callers.

Callers that are not yet queued are handled in
`entrance.py`; what becomes of workers that are lost, in `losses.py`.
"""

import functools
import math
from collections import deque
from typing import NamedTuple

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable
from headway.core.items import Batch, Refusal, Refuse, Run
from headway.core.lifecycle.health import RunningBatch
from headway.core.queueing.admission import refusal_error
from headway.errors import Closed, HeadwayError, ModelFailed, NotReady, Poison
from headway.runtime.batching.call_queue import CallQueue, Refusals
from headway.runtime.batching.losses import Losses
from headway.runtime.batching.making import ModelJobs
from headway.runtime.batching.room import Room
from headway.runtime.batching.shell import Arrival, Shell
from headway.runtime.batching.worker_pool import WorkerPool
from headway.runtime.calling.faults import is_error, readable
from headway.runtime.driving.calls import Answerable
from headway.runtime.driving.event_loop import EventLoop, FloatingLoop
from headway.runtime.events import BatchFinished, BatchStarted, Observers, OutOfMemory, Statistics
from headway.runtime.jobs.jobs import BatchJob, Job
from headway.runtime.jobs.rerunning import unusable


class BatchDecision(NamedTuple):
    jobs: list[BatchJob]  # to start
    refusals: Refusals
    event_loop: EventLoop  # of the refused callers


class BatchDecider:
    """Unless a method says otherwise, the shell calls it under the shell's lock, where no user code
    may run. An error that it raises there ends the shell as a crash."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        maker: ModelJobs,
        observers: Observers,
        floating: FloatingLoop | None = None,
    ) -> None:
        self.name = name
        self.queue = CallQueue(scheduler)
        self.pool = WorkerPool()
        self.jobs: dict[int, BatchJob] = {}
        self.takes_plain = False  # calls need no checks: the hot path is open
        self._maker = maker
        self._observers = observers
        self._free_workers, self._away = self.pool.free, self.pool.away
        self.shell = Shell(name, self, observers, floating)
        self.room = Room(self.shell, self.queue)
        self.losses = Losses(self.shell, self.queue, self.pool, self.jobs, self.entry_changed)

    def statistics(self) -> Statistics:
        """The state at this moment. Without the lock."""
        shell, scheduler = self.shell, self.queue.scheduler
        with shell.lock:
            shell.take_in()
            now = shell.event_loop.clock() if shell.event_loop is not None else 0.0
            ages = (now - job.batch.fired_at for job in self.jobs.values())
            return Statistics(
                is_open=shell.takes_calls,
                crashed=shell.crash,
                queued_items=scheduler.queued_items,
                queued_rows=scheduler.queued_rows,
                queued_s=scheduler.queued_s,
                running_batches=scheduler.running_batches,
                running_items=scheduler.running_items,
                oldest_batch_s=max(ages, default=0.0),
                pace=scheduler.pace,
                away_workers=len(self.pool.away),
            )

    # ---- called by the shell

    @property
    def is_idle(self) -> bool:
        return self.queue.is_idle

    @property
    def is_drained(self) -> bool:
        """Does no caller wait? A batch that ran too long may still run."""
        return not self.queue.calls and all(job.is_abandoned for job in self.jobs.values())

    def start(self, event_loop: EventLoop) -> None:
        """Raises NotReady if no threads can be started; nothing has changed then."""
        self.pool.fill(self._maker.make_workers(event_loop, self.shell.current_loop))
        self.queue.scheduler.set_workers(self.pool.numbers_present)

    def accept(self, inbox: deque[Arrival]) -> None:
        """Queue the whole inbox; others append meanwhile. Each caller is among `unanswered` before
        anything can fail."""
        event_loop, is_elsewhere = self.shell.current_loop(), None
        if self.shell.floating is not None:  # it may have moved since a call was put into the inbox
            loop = event_loop.loop
            is_elsewhere = lambda call: call.future.get_loop() is not loop  # noqa: E731
        for call, error in self.queue.accept(inbox, is_elsewhere):
            refused = functools.partial(self._tell_refused_at_door, call, error)
            self.shell.post(event_loop, refused)  # later: no user code under the lock

    def decide(self, now: float) -> tuple[BatchDecision, float]:
        """The jobs and refusals of this moment, and when to ask again; infinite: after an event."""
        scheduler, event_loop = self.queue.scheduler, self.shell.current_loop()
        jobs: list[BatchJob] = []
        refused: list[Refusal] = []
        while True:
            action = scheduler.next_action(now)
            if isinstance(action, Run):
                jobs.append(self._make_job(action.batch, event_loop))
                if not self._free_workers and not refused and not scheduler.may_refuse:
                    # the answer would be: wait
                    return BatchDecision(jobs, [], event_loop), math.inf
            elif isinstance(action, Refuse):
                refused += action.refusals
            else:
                # last: after a crash above, their callers must still be among the calls
                refusals = self.queue.take_refused(refused) if refused else []
                return BatchDecision(jobs, refusals, event_loop), action.until

    def act(self, decision: BatchDecision) -> None:
        """Carry out a decision, without the lock, in the thread that made it."""
        self._start(decision.jobs)
        if decision.refusals:
            tell = functools.partial(self._tell_refused, decision.refusals)
            self.shell.run_in(decision.event_loop, tell)

    def unanswered(self) -> list[Answerable]:
        """All unanswered calls, queued or running."""
        running = [call for job in self.jobs.values() for call in job.calls]
        return [*self.queue.calls.values(), *running]

    def forget(self) -> None:
        """End: the shell answers all callers. Results of running batches are dropped."""
        if self.shell.crash is None:  # after a crash, the scheduler may be broken
            self.queue.cancel_all()
        self.queue.calls.clear()

    def drain(self) -> None:
        """No more calls will arrive: do not wait for more items."""
        self.queue.scheduler.drain()

    def stop(self) -> None:
        """Release the workers. Without the lock."""
        with self.shell.lock:
            workers = self.pool.fill(())
        for worker in workers:
            worker.stop()

    def entry_changed(self) -> None:
        """The shell has opened or closed, or whether calls need checks has changed."""
        self.takes_plain = self.shell.takes_calls and not self.losses.poison
        if self.room.is_awaited:
            self.room.look()

    def drop_lost(self) -> None:
        """Answer calls that run in an event loop that was closed: they never come back."""
        for job in [job for job in self.jobs.values() if job.worker.is_lost]:
            del self.jobs[job.batch.id]
            self.queue.scheduler.finish(job.batch, self.shell.now())
            self._free_workers.append(job.worker)
            for call in job.calls:
                call.detach()
                call.fail(self._lost_batch())

    def move(self, event_loop: EventLoop) -> None:
        """Switch between virtual and real time: there are threads in real time only."""
        if self.jobs:
            return
        old = self.pool.workers
        self.start(event_loop)
        for worker in old:
            worker.stop()

    # ---- batches start

    def _make_job(self, batch: Batch, event_loop: EventLoop) -> BatchJob:
        """Start a batch. If this raises, its callers are still among the calls or the jobs."""
        calls: list[Answerable] = []
        try:
            self.queue.take(batch, calls)
            job = self._maker.make_job(
                batch, calls, self.pool.take(batch.worker), event_loop, self.finished
            )
        except Exception:
            self.queue.put_back(batch, calls)
            raise
        self.jobs[batch.id] = job
        self.room.starts += 1
        return job

    def _start(self, jobs: list[BatchJob]) -> None:
        for job in jobs:
            if self._observers:
                self.shell.report(BatchStarted(self.name, job.batch))
            job.worker.start(job)
        if self.room.is_awaited:
            self.room.look()

    def start_probe(self, job: Job) -> None:
        """Run this on a worker, past the queue. Raises Closed."""
        with self.shell.lock:
            self.shell.check_open()
            worker = self.pool.first_present()
        if worker is None:
            raise NotReady(f"{self.name} has no worker now")
        worker.start(job)

    # ---- and come back

    def finished(self, job: BatchJob) -> None:
        """A worker is done: in its thread, start the next batch, then send the answers."""
        stepped = self.shell.step(functools.partial(self._take_back, job))
        if stepped is None:
            return  # it was answered as lost
        event_loop, decision = stepped
        refusals: Refusals = []
        if decision is not None:
            self._start(decision.jobs)
            refusals = decision.refusals
        deliver = self._deliver if job.lost is None else self._tell_lost
        self.shell.run_in(event_loop, lambda: deliver(job, refusals))

    def _take_back(self, job: BatchJob, event_loop: EventLoop) -> bool:
        if self.jobs.pop(job.batch.id, None) is None:
            return False
        job.finished_at = event_loop.clock()
        if job.lost is not None:
            self.losses.requeue(job, job.lost)
            return True
        scheduler = self.queue.scheduler
        if job.misfit is not None:
            scheduler.does_not_fit(job.misfit)
        job.work_s = scheduler.finish(job.batch, job.finished_at, ran_s=job.model_s)
        if not self.shell.is_over and job.worker not in self._away:
            self._free_workers.append(job.worker)
        return True

    def _deliver(self, job: BatchJob, refusals: Refusals) -> None:
        """Answer all callers of a finished batch: the one place where results reach callers."""
        batch, failed = job.batch, 0
        ran = ((batch, job.ran_s),)
        if not job.results:
            job.results = [self._lost_batch() for _ in job.calls]
        for call, result in zip(job.calls, job.results, strict=True):
            call.ran = ran
            try:
                if is_error(result):  # the item's own error
                    failed += 1
                    call.fail(readable(result))
                else:
                    call.succeed(result)
            except BaseException as error:  # noqa: BLE001  a result that cannot be read, parts that do not join
                failed += 1
                call.fail(unusable(self.name, error))
        if refusals:
            self._tell_refused(refusals)
        if self._observers:
            self._tell_finished(job, failed)
        self.shell.check_drained()

    def _tell_finished(self, job: BatchJob, failed: int) -> None:
        batch = job.batch
        if job.ran_out_of_memory:
            limit_rows = self.queue.scheduler.part_rows(batch.size)
            self._observers.emit(OutOfMemory(self.name, batch, limit_rows))
        times = (job.finished_at, job.ran_s)
        self._observers.emit(
            BatchFinished(self.name, batch, *times, job.reruns, failed, work_s=job.work_s)
        )

    def _tell_lost(self, job: BatchJob, refusals: Refusals) -> None:
        self.losses.report_lost(job, refusals)
        self._tell_refused(refusals)
        self.shell.check_drained()

    def _lost_batch(self) -> Closed:
        return Closed(f"{self.name}: the event loop that ran this batch has ended")

    # ---- refusals

    def _tell_refused(self, refusals: Refusals) -> None:
        for refusal, call in refusals:
            error = refusal_error(refusal, self.queue.scheduler.policy)
            if isinstance(error, Poison):
                self.losses.remember_poison(call, refusal.item.partition)
            if not isinstance(error, ModelFailed):  # a failed call was not refused
                self.shell.report_refusal(error)
            call.fail(error)

    def _tell_refused_at_door(self, call: Answerable, error: HeadwayError) -> None:
        self.shell.report_refusal(error)
        call.fail(error)

    # ---- batches that run too long, or without callers

    def running(self) -> list[RunningBatch]:
        with self.shell.lock:
            return [RunningBatch(batch_id, job.active_at) for batch_id, job in self.jobs.items()]

    def abandon(self, batch_id: int, error: HeadwayError) -> None:
        """Answer the callers of a running batch with an error. Its results are dropped, and its
        worker is busy until they come. In the event loop."""
        with self.shell.lock:
            job = self.jobs.get(batch_id)
            if job is None:
                return
            job.is_abandoned = True
        for call in job.calls:
            call.fail(error)
        self.shell.check_drained()

    def tell_unwanted(self) -> None:
        """Notify models, if they take a token, that all callers of a running batch have left."""
        with self.shell.lock:
            tokens = [job.cancel for job in self.jobs.values() if job.cancel is not None]
        for token in tokens:
            token.check()

    # ---- its scheduler

    def learn(self, table: CostTable) -> None:
        with self.shell.lock:
            self.queue.scheduler.learn(table)

    def adopt(self, scheduler: Scheduler) -> None:
        """Use this scheduler from now on. Under the lock, while no item is queued or running."""
        scheduler.set_workers(self.pool.numbers_present)
        self.queue.scheduler = scheduler
