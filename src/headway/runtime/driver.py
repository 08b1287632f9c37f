"""Drives one scheduler in real time: waits, starts batches, answers callers. Decides nothing.

No task runs while nothing happens. Submitting, finishing and timers each ask the scheduler what to
do (`_advance`), under one lock, from whatever thread they are in: a worker thread that comes back
starts the next batch itself, however busy the event loop is. Answers, refusals and events are
delivered in the home loop, and there only.
"""

import asyncio
import concurrent.futures
import functools
import itertools
import logging
import math
import operator
import threading
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from enum import Enum
from typing import Any, Protocol

from headway.core import (
    Batch,
    Item,
    Priority,
    Refusal,
    RefusalReason,
    Refuse,
    Run,
    Scheduler,
    new_item,
    refusal_error,
    split,
)
from headway.errors import Closed, HeadwayError, InvalidInput, ModelFailed, NotReady, Poison
from headway.runtime.calls import (
    Answerable,
    Call,
    DirectCall,
    PartCall,
    SplitCall,
    StreamCall,
    ThreadCall,
    content_of,
)
from headway.runtime.events import (
    BatchFinished,
    BatchLost,
    BatchStarted,
    Cancelled,
    Crashed,
    Event,
    Observers,
    OutOfMemory,
    Refused,
    Stopped,
)
from headway.runtime.faults import WorkerLost
from headway.runtime.home import FloatingHome, Home
from headway.runtime.jobs import BatchJob, Job, Worker
from headway.runtime.poisons import Poisons

_log = logging.getLogger(__name__)
_PLAIN_FIELDS = Item(0, 0.0)[2:]  # of an item whose caller wished for nothing special
_item_id = operator.itemgetter(0)


class State(Enum):
    NEW = "has not been started: use `async with`"
    OPENING = "is still loading"
    OPEN = "is open"
    CLOSING = "is closing"
    CLOSED = "is closed"
    CRASHED = "has crashed"


class JobFactory(Protocol):
    """What the driver asks of its owner: workers, and jobs for them."""

    def make_workers(self, home: Home, current_home: Callable[[], Home]) -> list[Worker]: ...

    def make_job(self, batch: Batch, calls: list[Any], worker: Worker, home: Home) -> BatchJob: ...

    def cut(self, value: Any, start: int, stop: int) -> Any: ...

    def join(self, results: list[Any]) -> Any: ...


class Driver:
    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        factory: JobFactory,
        observers: Observers,
        floating: FloatingHome | None,
    ) -> None:
        self.name = name
        # Guards all below; user code never runs under it. Reentrant: whoever finds the home closed
        # moves it at once.
        self.lock = threading.RLock()
        self.scheduler = scheduler
        self._state = State.NEW
        self._takes_plain = False  # the state once more: comparing with an Enum's member is slow
        self._is_closing = False
        self._is_over = False
        self.crash: BaseException | None = None
        self.home: Home | None = None
        self.jobs: dict[int, BatchJob] = {}
        self.workers: list[Worker] = []
        self._factory = factory
        self._observers = observers
        self._floating = floating
        self._ids = itertools.count(1)
        self._calls: dict[int, Answerable] = {}  # queued; those of running batches are in `jobs`
        self._inbox: deque[tuple[Item, Any]] = deque()  # see enqueue_plain
        self._free_workers: list[Worker] = []
        self._away: set[Worker] = set()  # workers that cannot take a batch now
        self._given_up: NotReady | None = None
        self._poisons = Poisons()
        self._drive_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._drained: list[asyncio.Future[None]] = []  # whoever waits for the last answer
        self._is_released = False

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self._open_doors()
        self._is_closing = state is State.CLOSING
        self._is_over = state in (State.CLOSED, State.CRASHED)

    @property
    def takes_calls(self) -> bool:
        """Open, and with a worker that is there or will be."""
        return self._state is State.OPEN and self._given_up is None

    def _open_doors(self) -> None:
        """The hot path is for when nothing needs a look: all else goes through `enqueue`."""
        self._takes_plain = (
            self._state is State.OPEN and self._given_up is None and not self._poisons
        )

    # ---- life

    def open(self, home: Home) -> None:
        self.home = home
        self._make_workers(home)
        self.state = State.OPEN

    def _make_workers(self, home: Home) -> None:
        self.workers = self._factory.make_workers(home, self.current_home)
        self._free_workers = list(self.workers)
        self._away.clear()
        self.scheduler.set_workers(len(self.workers))

    async def close(self, drain_s: float) -> None:
        """Refuse, drain for so long, answer the rest with `Closed`, release the workers."""
        drained = asyncio.get_running_loop().create_future()
        with self.lock:
            if self.state in (State.NEW, State.OPENING, State.CLOSED):
                self.state = State.CLOSED  # whoever is loading finds it so afterwards
                return
            if self.state is State.OPEN:
                self.take_in()
                self.state = State.CLOSING
                self.scheduler.drain()
            if self.state is State.CLOSING:
                self._drained.append(drained)
            else:  # crashed: everyone has been answered
                drained.set_result(None)
        self._in_home(self._drive)
        try:
            async with asyncio.timeout(drain_s):
                await drained
        except TimeoutError:
            pass
        finally:  # also when closing itself is cancelled
            self._release()

    def _release(self) -> None:
        with self.lock:
            if self._is_released:
                return
            self._is_released = True
            if self.state is State.CLOSING:
                self.state = State.CLOSED
                for item_id in self._calls:
                    self.scheduler.cancel(item_id)
            left = self._take_unanswered()
            workers, self.workers, self._free_workers = self.workers, [], []
            self._away.clear()
            drained, self._drained = self._drained, []
        for worker in workers:
            worker.stop()
        self._in_home(lambda: self._tell_stopped(left))
        _wake(drained)  # whoever else is closing

    def _take_unanswered(self) -> list[Answerable]:
        """Under the lock: everyone who still waits, queued, running or in the inbox."""
        unanswered = [*self._empty_inbox(), *self._waiting()]
        self._calls.clear()
        return unanswered

    def _empty_inbox(self) -> list[Answerable]:
        calls: list[Answerable] = []
        with suppress(IndexError):
            while True:  # one by one: others append meanwhile
                calls.append(self._inbox.popleft()[1])
        return calls

    def _waiting(self) -> list[Answerable]:
        running = [call for job in self.jobs.values() for call in job.calls]
        return [*self._calls.values(), *running]

    def _tell_stopped(self, left: list[Answerable]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in left:
            call.fail(Closed(f"{self.name} stopped before this was answered"))
        self._observers.emit(Stopped(self.name, len(left)))
        if self._floating is not None:
            self._floating.close()

    def _turn_away(self) -> None:
        """The end came between a look at the state and the append in `enqueue_plain`."""
        for call in self._empty_inbox():
            error = self.closed()
            if not isinstance(call, DirectCall):
                call.detach()  # its own loop is certain to run; the home may have ended
            call.fail(error)
            self.report_refusal(error)

    # ---- coming in

    def enqueue_plain(self, value: Any, loop: asyncio.AbstractEventLoop) -> Call | None:
        """The hot path: a value with no wishes, from the home loop. None: take the other way.

        It is noted without a lock and handed to the scheduler with its neighbours, when the event
        loop comes to `_drive`. (The append comes before the look at the flag, and `_drive` clears
        the flag before it looks at the inbox: whatever thread it is in, nothing is overlooked.)
        """
        home = self.home
        if home is None or home.loop is not loop or not self._takes_plain:
            return None
        item_id = next(self._ids)
        call = Call(item_id, value, loop.create_future())
        self._inbox.append((new_item((item_id, home.clock(), *_PLAIN_FIELDS)), call))
        if not self._drive_is_due:
            self._drive_is_due = True
            loop.call_soon(self._drive)
        return call

    def enqueue_direct(self, call: DirectCall) -> bool:
        """The same for a call without a future, in a batcher that never moves from its loop.

        False: take the other way. (That we are in that loop is the caller's word: to ask costs a
        system call.)
        """
        home = self.home
        if home is None or not self._takes_plain or self._floating is not None:
            return False
        item_id = next(self._ids)
        call.item_ids = (item_id,)
        item = new_item((item_id, home.clock(), *_PLAIN_FIELDS))
        if call.tenant:
            item = item._replace(tenant=call.tenant)
        self._inbox.append((item, call))
        if not self._drive_is_due:
            self._drive_is_due = True
            home.loop.call_soon(self._drive)
        return True

    def take_in(self) -> None:
        """Under the lock: hand the inbox to the scheduler. Before anything else looks at it."""
        inbox, calls = self._inbox, self._calls
        if not inbox or self._is_over:  # then `_drive` turns them away
            return
        items, home, is_mixed = [], self.current_home(), False
        while inbox:
            item, call = inbox.popleft()
            if item[5]:
                is_mixed = True  # a tenant's; the others may be nobody's
            if self._floating is not None and call.future.get_loop() is not home.loop:
                call.detach()  # the home moved while it was being noted
            calls[item[0]] = call
            items.append(item)
        try:
            if is_mixed:
                refusals = self.scheduler.submit_each(items)
            else:
                refusals = self.scheduler.submit_alike(items)
        except Exception as bug:
            # Ours. Not every way here leads through `_drive`, and these callers wait.
            self._post(home, functools.partial(self._crashed, bug))
            raise
        for item, error in refusals:
            refused = functools.partial(self._tell_refused_at_door, calls.pop(item.id), error)
            self._post(home, refused)  # later: no user code under the lock

    def _tell_refused_at_door(self, call: Answerable, error: HeadwayError) -> None:
        self.report_refusal(error)
        call.fail(error)

    def enqueue(
        self,
        value: Any,
        loop: asyncio.AbstractEventLoop,
        *,
        rows: int,
        size: int,
        priority: Priority,
        tenant: str,
        deadline_ms: float | None,
        entered_at: float | None,
        partition: Hashable,
        stream: bool = False,
    ) -> Any:
        """Queue one value, or raise why not: its `Call`, or its `StreamCall`."""
        try:
            if self._poisons:
                self._refuse_poison(value, partition)
            with self.lock:
                home = self.choose_home()
                now = home.clock()
                deadline = _deadline(now, entered_at, deadline_ms)
                item_id = next(self._ids)
                item = Item(item_id, now, rows, size, priority, tenant, deadline, partition)
                call: Any
                if stream:
                    call = StreamCall(item_id, value, loop)
                elif home.loop is loop:
                    call = Call(item_id, value, loop.create_future())
                else:
                    call = ThreadCall(item_id, value, concurrent.futures.Future())
                if rows > 1 and rows > self.scheduler.part_rows(size):
                    self._submit_parts(item, call)
                else:
                    self.scheduler.submit(item)
                    self._calls[item_id] = call
                self._order_drive(home, call)
        except HeadwayError as error:
            self.report_refusal(error)
            self._drive_soon()  # a full queue may be a reason to start a batch that waits
            raise
        return call

    def follow(self, follower: Callable[[tuple[int, ...]], None]) -> None:
        """Tell `follower` the ids of each call's items, in its caller's context. The ways in are
        replaced by ones that tell: where nobody follows, nothing is asked."""
        enqueue, enqueue_plain = self.enqueue, self.enqueue_plain

        def followed(value: Any, loop: asyncio.AbstractEventLoop, **options: Any) -> Any:
            call = enqueue(value, loop, **options)
            follower(call.item_ids)
            return call

        def followed_plain(value: Any, loop: asyncio.AbstractEventLoop) -> Call | None:
            call = enqueue_plain(value, loop)
            if call is not None:
                follower(call.item_ids)
            return call

        self.enqueue_direct = lambda call: False  # type: ignore[method-assign]  # it has no context
        self.enqueue = followed  # type: ignore[method-assign]
        self.enqueue_plain = followed_plain  # type: ignore[method-assign]

    def _submit_parts(self, item: Item, call: Call) -> None:
        parts = split(item, self.scheduler.part_rows(item.size), self._ids)
        whole = SplitCall(call, parts, self._factory.join, self._forget)
        start = 0
        for number, part in enumerate(parts):
            self.scheduler.submit(part, request_rows=item.rows if number == 0 else None)
            value = self._factory.cut(call.value, start, start + part.rows)
            self._calls[part.id] = PartCall(whole, number, value)
            start += part.rows
        call.item_ids = tuple(part.id for part in parts)

    def _order_drive(self, home: Home, call: Call | StreamCall) -> None:
        """Under the lock: have `_drive` look at this call soon. Raises Closed."""
        if self._drive_is_due:
            return
        try:
            home.post(self._drive)
        except RuntimeError:  # closed just now
            self._forget(call.item_ids)
            raise self._homeless() from None
        self._drive_is_due = True  # only now: one that never comes would silence all later calls

    def _homeless(self) -> Closed:
        return Closed(f"{self.name}: its event loop has ended")

    def closed(self) -> Closed:
        error = Closed(f"{self.name} {self.state.value}")
        error.__cause__ = self.crash
        return error

    def check_open(self) -> None:
        """Raise Closed where a call would be refused: before anything is prepared for it."""
        if self.state is not State.OPEN and (self.state is not State.NEW or not self._floating):
            raise self.closed()
        if self._given_up is not None:
            raise _same(self._given_up)

    def report_refusal(self, error: HeadwayError) -> None:
        if self._observers:
            self._report(Refused(self.name, error.code, str(error)))

    def report(self, event: Event) -> None:
        """From any thread; nothing where nobody observes."""
        if self._observers:
            self._report(event)

    def _report(self, event: Event) -> None:
        self._in_home(functools.partial(self._observers.emit, event))

    # ---- leaving early

    def withdraw(self, call: Call | DirectCall | StreamCall) -> None:
        """The caller is gone: take its items out of the queue; leave a running batch alone."""
        was_queued = self._forget(call.item_ids)
        if not was_queued:
            self._tell_unwanted()
        if self._observers:
            self._report(Cancelled(self.name, started=not was_queued))
        self._drive_soon()  # the item may have been what a timer or a drain waits for

    def _tell_unwanted(self) -> None:
        """Running batches that nobody waits for any more, where their model wants to know."""
        with self.lock:
            tokens = [job.cancel for job in self.jobs.values() if job.cancel is not None]
        for token in tokens:
            token.check()

    def _drive_soon(self) -> None:
        with self.lock:
            home = self.home
            if self._drive_is_due or home is None or self._is_over:
                return
            self._drive_is_due = True
        self._post(home, self._drive)

    def _forget(self, item_ids: tuple[int, ...]) -> bool:
        with self.lock:
            self.take_in()
            cancelled = [item_id for item_id in item_ids if self.scheduler.cancel(item_id)]
            for item_id in cancelled:
                self._calls.pop(item_id, None)
        return len(cancelled) == len(item_ids)

    # ---- driving the scheduler

    def _drive(self) -> None:
        """Ask the scheduler what to do, and do it. In the home loop, after every event."""
        try:
            with self.lock:
                self._drive_is_due = False
                jobs, refusals = self._advance()
                home = self.current_home()
        except Exception as error:  # noqa: BLE001  a bug of ours must leave nobody waiting
            self._crashed(error)
            return
        self._start(jobs)
        if refusals:
            self._in_this(home, lambda: self._tell_refused(refusals))
        if self.scheduler.has_sizes:
            self._order_plan(home)
        if self._is_closing:
            self._check_drained()
        elif self._is_over:
            self._turn_away()

    def _advance(self) -> tuple[list[BatchJob], list[tuple[Refusal, Answerable]]]:
        """Under the lock: what to start and whom to refuse now. Sets the timer for later."""
        home = self.current_home()
        jobs: list[BatchJob] = []
        refused: list[Refusal] = []
        if self._is_over:
            return jobs, []
        self.take_in()
        while True:
            action = self.scheduler.next_action(home.clock())
            if isinstance(action, Run):
                jobs.append(self._make_job(action.batch, home))
                if not self._free_workers and not refused and not self.scheduler.may_refuse:
                    return jobs, []  # the answer would be: wait
            elif isinstance(action, Refuse):
                refused += action.refusals
            else:
                if action.until < self._timer_at:
                    self._timer_at = action.until
                    self._in_home(functools.partial(self._arm, action.until))
                # only now: until here, a crash must find them among the calls
                return jobs, self._take_refused(refused) if refused else []

    def _make_job(self, batch: Batch, home: Home) -> BatchJob:
        """Its callers are found among the calls or the jobs, wherever this breaks."""
        calls: list[Answerable] = []
        try:
            calls.extend(map(self._calls.pop, map(_item_id, batch.items)))
            job = self._factory.make_job(batch, calls, self._free_workers.pop(), home)
        except Exception:
            self._calls.update(zip(map(_item_id, batch.items), calls, strict=False))
            raise
        self.jobs[batch.id] = job
        return job

    def _take_refused(self, refused: list[Refusal]) -> list[tuple[Refusal, Answerable]]:
        refusals = [(each, self._calls[each.item.id]) for each in refused]
        for each in refused:
            del self._calls[each.item.id]
        return refusals

    def _start(self, jobs: list[BatchJob]) -> None:
        for job in jobs:
            if self._observers:
                self._report(BatchStarted(self.name, job.batch))
            job.worker.start(job)

    def abandon(self, batch: Batch, error: HeadwayError) -> None:
        """Answer the callers of a running batch. What it still brings is dropped; its worker is
        busy until then. In the home loop."""
        with self.lock:
            job = self.jobs.get(batch.id)
        for call in () if job is None else job.calls:
            call.fail(error)

    def start_probe(self, job: Job) -> None:
        """Run this on a worker, past the queue. Raises Closed."""
        with self.lock:
            self.check_open()
            worker = next((each for each in self.workers if each not in self._away), None)
        if worker is None:
            raise NotReady(f"{self.name} has no worker now")
        worker.start(job)

    def finished(self, job: BatchJob) -> None:
        """A worker is done; called in its thread. First the next batch, then the answers."""
        jobs: list[BatchJob] = []
        refusals: list[tuple[Refusal, Answerable]] = []
        crash: Exception | None = None
        with self.lock:
            # Where its callers are. Another loop may take over before they are answered.
            home = self.current_home()
            if self.jobs.pop(job.batch.id, None) is None:
                return  # given up as lost
            try:
                job.finished_at = home.clock()
                if job.lost is not None:
                    self._requeue(job, job.lost)
                else:
                    if job.misfit is not None:
                        self.scheduler.does_not_fit(job.misfit)
                    self.scheduler.finish(job.batch, job.finished_at, ran_s=job.model_s)
                    if not self._is_over and job.worker not in self._away:
                        self._free_workers.append(job.worker)
                jobs, refusals = self._advance()
            except Exception as error:  # noqa: BLE001  a bug of ours must leave nobody waiting
                crash = error
        if crash is not None:
            self._crashed(crash)
        self._start(jobs)
        deliver = self._deliver if job.lost is None else self._tell_lost
        self._in_this(home, lambda: deliver(job, refusals))
        if self.scheduler.has_sizes:
            self._in_this(home, self._plan_ahead)

    def _deliver(self, job: BatchJob, refusals: list[tuple[Refusal, Answerable]]) -> None:
        """Answer everyone in a finished batch: the one place where results reach callers."""
        batch, failed = job.batch, 0
        ran = ((batch, job.ran_s),)
        if not job.results:
            job.results = [self._lost_batch() for _ in job.calls]
        for call, result in zip(job.calls, job.results, strict=True):
            call.ran = ran
            try:
                if isinstance(result, Exception):  # the item's own error
                    failed += 1
                    call.fail(result)
                else:
                    call.succeed(result)
            except Exception as error:  # noqa: BLE001  a result nobody can look at, parts that do not join
                failed += 1
                call.fail(_unusable(self.name, error))
        if refusals:
            self._tell_refused(refusals)
        if self._observers:
            self._tell_finished(job, failed)
        if self._is_closing:
            self._check_drained()

    def _order_plan(self, home: Home) -> None:
        """In the home loop, but behind the first step of what has just been started there."""
        try:
            with self.lock:
                is_due = not self._is_over and self.scheduler.needs_plan(home.clock())
        except Exception as error:  # noqa: BLE001  a bug of ours must leave nobody waiting
            self._crashed(error)
            return
        if is_due:
            self._post(home, self._plan_ahead)

    def _plan_ahead(self) -> None:
        """While the workers are busy: their next batch, so that none waits for its plan."""
        try:
            with self.lock:
                if not self._is_over:
                    self.scheduler.plan_ahead(self.current_home().clock())
        except Exception as error:  # noqa: BLE001  a bug of ours must leave nobody waiting
            self._crashed(error)

    def _tell_finished(self, job: BatchJob, failed: int) -> None:
        batch = job.batch
        if job.ran_out_of_memory:
            limit_rows = self.scheduler.part_rows(batch.size)
            self._observers.emit(OutOfMemory(self.name, batch, limit_rows))
        self._observers.emit(
            BatchFinished(self.name, batch, job.finished_at, job.ran_s, job.reruns, failed)
        )

    # ---- workers come and go

    def _requeue(self, job: BatchJob, lost: WorkerLost) -> None:
        """Under the lock: whoever still waits runs again."""
        self._take_out(job.worker)
        waiting = {
            item: call
            for item, call in zip(job.batch.items, job.calls, strict=True)
            if not (self._is_over or call.is_done)
        }
        self._calls.update((item.id, call) for item, call in waiting.items())
        self.scheduler.lost(
            job.batch,
            tuple(waiting),
            max_losses=job.max_reruns,
            reason=lost.reason,
            out_of_memory=lost.out_of_memory,
        )

    def _tell_lost(self, job: BatchJob, refusals: list[tuple[Refusal, Answerable]]) -> None:
        assert job.lost is not None
        if self._observers:
            reason, memory = job.lost.reason, job.lost.out_of_memory
            failed = sum(refusal.reason is RefusalReason.WORKER_LOST for refusal, _ in refusals)
            self._observers.emit(
                BatchLost(self.name, job.batch, job.finished_at, reason, memory, failed)
            )
        if self._poisons:
            self._refuse_queued_poison()
        self._tell_refused(refusals)
        if self._is_closing:
            self._check_drained()

    def worker_left(self, worker: Worker) -> None:
        """It takes no batch until it is back. From any thread; harmless when repeated.

        (A worker that is lost with a batch need not say so: `finished` sees it.)
        """
        with self.lock:
            self._take_out(worker)

    def _take_out(self, worker: Worker) -> None:
        if worker not in self.workers:
            return  # released meanwhile
        self._away.add(worker)
        if worker in self._free_workers:
            self._free_workers.remove(worker)
        self.scheduler.set_workers(len(self.workers) - len(self._away))

    def worker_back(self, worker: Worker) -> None:
        """It takes batches again; what it was lost with has come back (`finished`) before."""
        with self.lock:
            if worker not in self._away or worker not in self.workers:
                return
            self._away.discard(worker)
            self.scheduler.set_workers(len(self.workers) - len(self._away))
            if all(job.worker is not worker for job in self.jobs.values()):
                self._free_workers.append(worker)
            self._given_up = None
            self._open_doors()
        self._drive_soon()

    def give_up(self, error: NotReady) -> None:
        """No worker will be back soon: queued callers get this error, and so do new ones, until a
        worker is back after all. From any thread."""
        with self.lock:
            self.take_in()
            self._given_up = error
            self._open_doors()
            # Those who are refused already are told so when the scheduler is asked next.
            cancelled = [item_id for item_id in self._calls if self.scheduler.cancel(item_id)]
            calls = [self._calls.pop(item_id) for item_id in cancelled]
        self._in_home(lambda: self._tell_given_up(calls, error))
        self._drive_soon()

    def _tell_given_up(self, calls: list[Answerable], error: NotReady) -> None:
        for call in calls:
            call.fail(_same(error))
            self.report_refusal(error)

    # ---- contents that take workers down

    def _refuse_poison(self, value: Any, partition: Hashable) -> None:
        if self._poisons.is_known(value, partition, self.current_home().clock()):
            raise Poison(f"{self.name}: this input has taken workers down before")
        if not self._poisons:  # forgotten just now
            with self.lock:
                self._open_doors()

    def _remember_poison(self, call: Answerable, partition: Hashable) -> None:
        self._poisons.remember(content_of(call), partition, self.current_home().clock())
        with self.lock:
            self._open_doors()
        self._refuse_queued_poison()

    def _refuse_queued_poison(self) -> None:
        """In the home loop: its equals that wait already take no further worker down."""
        now = self.current_home().clock()
        with self.lock:
            waiting = [
                (item, self._calls[item.id])
                for item in self.scheduler.waiting_items()
                if item.id in self._calls
            ]
        for item, call in waiting:
            is_poison = self._poisons.is_known(content_of(call), item.partition, now)
            if is_poison and self._forget((item.id,)):
                error = Poison(f"{self.name}: an equal input has taken workers down")
                self.report_refusal(error)
                call.fail(error)

    @property
    def away_workers(self) -> int:
        return len(self._away)

    def adopt(self, scheduler: Scheduler) -> None:
        """Under the lock, while nothing is queued or running: decide by this one from now on."""
        scheduler.set_workers(len(self.workers) - len(self._away))
        self.scheduler = scheduler

    def _tell_refused(self, refusals: list[tuple[Refusal, Answerable]]) -> None:
        for refusal, call in refusals:
            error = refusal_error(refusal, self.scheduler.policy)
            if isinstance(error, Poison):
                self._remember_poison(call, refusal.item.partition)
            if not isinstance(error, ModelFailed):  # what failed was not refused
                self.report_refusal(error)
            call.fail(error)

    def _check_drained(self) -> None:
        with self.lock:
            if self._calls or not self.scheduler.is_idle:
                return
            drained, self._drained = self._drained, []
        _wake(drained)

    # ---- the timer

    def _arm(self, at: float) -> None:
        home = self.current_home()
        if at != self._timer_at or not home.is_here:
            return  # an earlier one has been set meanwhile, or a new home asks anew
        if self._timer is not None:
            self._timer.cancel()
        self._timer = home.loop.call_later(max(0.0, at - home.clock()), self._on_timer, home)

    def _on_timer(self, home: Home) -> None:
        if home is self.home:
            self._timer_at = math.inf
            self._drive()

    # ---- the home loop

    def current_home(self) -> Home:
        assert self.home is not None, "the driver is not open"
        return self.home

    def choose_home(self) -> Home:
        """Under the lock: where a caller in this thread finds the batcher. Raises Closed."""
        self.check_open()
        self.take_in()
        if self._floating is None:
            home = self.current_home()
            if home.is_closed:
                raise self._homeless()
            return home
        self._give_up_lost()
        home = self._floating.choose(self.home, idle=self.scheduler.is_idle)
        if home is not self.home:
            self._move(home)
        return home

    def _move(self, home: Home) -> None:
        old, self.home = self.home, home
        self._timer = None  # the old loop's: there it finds that the home has moved
        self._timer_at = math.inf
        if self.state is State.NEW:
            self.open(home)
        elif old is not None and old.is_virtual is not home.is_virtual and not self.jobs:
            self._change_workers(home)
        if not self.scheduler.is_idle:
            for call in self._waiting():
                call.detach()
            home.post(self._drive)
            self._drive_is_due = True
        else:
            self._drive_is_due = False

    def _change_workers(self, home: Home) -> None:
        """From a test's virtual time to the real one, or back: threads here, none there."""
        for worker in self.workers:
            worker.stop()
        self._make_workers(home)

    def _give_up_lost(self) -> None:
        """Under the lock: batches whose event loop was closed under them never come back."""
        for job in [job for job in self.jobs.values() if job.worker.is_lost]:
            del self.jobs[job.batch.id]
            self.scheduler.finish(job.batch, self.current_home().clock())
            self._free_workers.append(job.worker)
            for call in job.calls:
                call.detach()
                call.fail(self._lost_batch())

    def _lost_batch(self) -> Closed:
        return Closed(f"{self.name}: the event loop that ran this batch has ended")

    def _in_home(self, callback: Callable[[], None]) -> None:
        home = self.home
        if home is None:
            callback()
        else:
            self._in_this(home, callback)

    def _in_this(self, home: Home, callback: Callable[[], None]) -> None:
        if home.is_here:
            callback()
        else:
            self._post(home, callback)

    def _post(self, home: Home, callback: Callable[[], None]) -> None:
        """Run it in the home loop. If that is gone, callers elsewhere still get their answers."""
        try:
            home.post(callback)
            return
        except RuntimeError:
            if self._floating is None or self.state is State.CLOSED:
                callback()
                return
        with self.lock:
            if self.home is home:
                self._move(self._floating.refuge())
            home = self.current_home()
        home.post(callback)

    # ---- when we fail ourselves

    def _crashed(self, error: Exception) -> None:
        """The batcher is broken: tell every caller, and stay visibly broken."""
        with self.lock:
            if self.state is State.CRASHED:
                return
            self.crash = error
            self.state = State.CRASHED
            calls = self._take_unanswered()
            drained, self._drained = self._drained, []
        _log.critical("%s crashed; every caller is answered with Closed", self.name, exc_info=error)
        self._in_home(lambda: self._tell_crashed(calls, error))
        _wake(drained)

    def _tell_crashed(self, calls: list[Answerable], error: Exception) -> None:
        for call in calls:
            failure = Closed(f"{self.name} crashed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            call.fail(failure)
        self._observers.emit(Crashed(self.name, error))


def _deadline(now: float, entered_at: float | None, deadline_ms: float | None) -> float:
    if deadline_ms is None:
        return math.inf
    if math.isnan(deadline_ms):
        raise InvalidInput("deadline_ms is not a number")
    return (now if entered_at is None else entered_at) + deadline_ms / 1e3


def _same(error: NotReady) -> NotReady:
    """One caller's own exception."""
    return NotReady(str(error), retry_after_s=error.retry_after_s)


def _unusable(name: str, error: Exception) -> ModelFailed:
    failure = ModelFailed(f"{name} returned what cannot be used: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _wake(futures: "list[asyncio.Future[None]]") -> None:
    for future in futures:
        with suppress(RuntimeError):  # its loop is closed: nobody waits any more
            future.get_loop().call_soon_threadsafe(_set_done, future)


def _set_done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
