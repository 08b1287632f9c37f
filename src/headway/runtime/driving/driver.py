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
import math
import operator
import threading
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Protocol

from headway.core import (
    Batch,
    Item,
    Priority,
    Refusal,
    Refuse,
    Run,
    Scheduler,
    new_item,
    refusal_error,
    split,
)
from headway.core.operating.health import Running
from headway.errors import (
    Closed,
    DeadlineExceeded,
    HeadwayError,
    InvalidInput,
    ModelFailed,
    NotReady,
    Poison,
)
from headway.runtime.driving.calls import (
    Answerable,
    Call,
    DirectCall,
    PartCall,
    SplitCall,
    ThreadCall,
)
from headway.runtime.driving.ending import Ending
from headway.runtime.driving.event_loop import FloatingHome, Home
from headway.runtime.driving.losses import Losses, same_error
from headway.runtime.driving.poison_watch import Poisons
from headway.runtime.driving.room import Room
from headway.runtime.driving.state import State
from headway.runtime.driving.streams import StreamCall
from headway.runtime.driving.worker_pool import Crew
from headway.runtime.events import (
    BatchFinished,
    BatchStarted,
    Cancelled,
    Event,
    Observers,
    OutOfMemory,
    Refused,
)
from headway.runtime.jobs.jobs import BatchJob, Job, Worker

_PLAIN_FIELDS = Item(0, 0.0)[2:]  # of an item whose caller wished for nothing special
_item_id = operator.itemgetter(0)
_TIMER_RESOLUTION_S = 1e-3


class JobFactory(Protocol):
    """What the driver asks of its owner: workers, and jobs for them."""

    def make_workers(self, home: Home, current_home: Callable[[], Home]) -> list[Worker]: ...

    def make_job(self, batch: Batch, calls: list[Any], worker: Worker, home: Home) -> BatchJob: ...

    def cut(self, value: Any, start: int, stop: int) -> Any: ...

    def join(self, results: list[Any]) -> Any: ...


class Queued(Protocol):
    """A call, as far as its items go."""

    @property
    def item_ids(self) -> tuple[int, ...]: ...


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
        self.crew = Crew()
        self._factory = factory
        self.observers = observers
        self.floating = floating
        self._ids = itertools.count(1)
        self.calls: dict[int, Answerable] = {}  # queued; those of running batches are in `jobs`
        self._inbox: deque[tuple[Item, Any]] = deque()  # see enqueue_plain
        self._free_workers, self._away = self.crew.free, self.crew.away
        self.given_up: NotReady | None = None
        self.poisons = Poisons()
        self._drive_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._due_at = -math.inf  # what a timer that rang early was set for
        self.room = Room(self)
        self._losses = losses = Losses(self)
        self._ending = ending = Ending(self)
        # What others call of its parts.
        self.worker_left, self.worker_back = losses.worker_left, losses.worker_back
        self.give_up, self.recover = losses.give_up, losses.recover
        self.close = ending.close

    @property
    def workers(self) -> list[Worker]:
        return self.crew.workers

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self.open_doors()
        self._is_closing = state is State.CLOSING
        self._is_over = state in (State.CLOSED, State.CRASHED, State.FORKED)
        if self.room.is_awaited:
            self.room.look()

    @property
    def inbox_items(self) -> int:
        """Noted, but not yet in the scheduler's hands."""
        return len(self._inbox)

    @property
    def takes_calls(self) -> bool:
        """Open, and with a worker that is there or will be."""
        return self._state is State.OPEN and self.given_up is None

    def open_doors(self) -> None:
        """The hot path is for when nothing needs a look: all else goes through `enqueue`."""
        self._takes_plain = self._state is State.OPEN and self.given_up is None and not self.poisons

    # ---- life

    def open(self, home: Home) -> None:
        """Raises NotReady where there is no thread for a worker; it is as it was then."""
        self.home = home
        try:
            self._make_workers(home)
        except BaseException:
            self.home = None
            raise
        self.state = State.OPEN

    def _make_workers(self, home: Home) -> None:
        self.crew.hire(self._factory.make_workers(home, self.current_home))
        self.scheduler.set_workers(self.crew.numbers_here)

    # ---- coming in

    def enqueue_plain(self, value: Any, loop: asyncio.AbstractEventLoop) -> Call | None:
        """The hot path: a value with no wishes, from the home loop. None: take the other way.

        It is noted without a lock and handed to the scheduler with its neighbours, when the event
        loop comes to `drive`. (The append comes before the look at the flag, and `drive` clears
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
            loop.call_soon(self.drive)
        return call

    def enqueue_direct(self, call: DirectCall) -> bool:
        """The same for a call without a future, in a batcher that never moves from its loop.

        False: take the other way. (That we are in that loop is the caller's word: to ask costs a
        system call.)
        """
        home = self.home
        if home is None or not self._takes_plain or self.floating is not None:
            return False
        item_id = next(self._ids)
        call.item_ids = (item_id,)
        item = new_item((item_id, home.clock(), *_PLAIN_FIELDS))
        if call.tenant:
            item = item._replace(tenant=call.tenant)
        self._inbox.append((item, call))
        if not self._drive_is_due:
            self._drive_is_due = True
            home.loop.call_soon(self.drive)
        return True

    def take_in(self) -> None:
        """Under the lock: hand the inbox to the scheduler. Before anything else looks at it."""
        inbox, calls = self._inbox, self.calls
        if not inbox or self._is_over:  # then `drive` turns them away
            return
        items, home, is_mixed = [], self.current_home(), False
        while inbox:
            item, call = inbox.popleft()
            if item[5]:
                is_mixed = True  # a tenant's; the others may be nobody's
            if self.floating is not None and call.future.get_loop() is not home.loop:
                call.detach()  # the home moved while it was being noted
            calls[item[0]] = call
            items.append(item)
        try:
            if is_mixed:
                refusals = self.scheduler.submit_each(items)
            else:
                refusals = self.scheduler.submit_alike(items)
        except Exception as bug:
            # Ours. Not every way here leads through `drive`, and these callers wait.
            self._post(home, functools.partial(self._ending.crashed, bug))
            raise
        for item, error in refusals:
            refused = functools.partial(self._tell_refused_at_door, calls.pop(item.id), error)
            self._post(home, refused)  # later: no user code under the lock

    def empty_inbox(self) -> list[Answerable]:
        """Those who have not been handed to the scheduler."""
        calls: list[Answerable] = []
        with suppress(IndexError):
            while True:  # one by one: others append meanwhile
                calls.append(self._inbox.popleft()[1])
        return calls

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
            if self.poisons:
                self._losses.refuse_poison(value, partition)
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
                    self.calls[item_id] = call
                self._order_drive(home, call)
        except HeadwayError as error:
            self.report_refusal(error)
            self.drive_soon()  # a full queue may be a reason to start a batch that waits
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
        whole = SplitCall(call, parts, self._factory.join, self.forget)
        start, values = 0, []
        for part in parts:  # before any is queued: a value may not let itself be cut
            values.append(self._factory.cut(call.value, start, start + part.rows))
            start += part.rows
        for number, (part, value) in enumerate(zip(parts, values, strict=True)):
            self.scheduler.submit(part, request_rows=item.rows if number == 0 else None)
            self.calls[part.id] = PartCall(whole, number, value)
        call.item_ids = tuple(part.id for part in parts)

    def _order_drive(self, home: Home, call: Call | StreamCall) -> None:
        """Under the lock: have `drive` look at this call soon. Raises Closed."""
        if self._drive_is_due:
            return
        try:
            home.post(self.drive)
        except RuntimeError:  # closed just now
            self.forget(call.item_ids)
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
        if self.state is not State.OPEN and (self.state is not State.NEW or not self.floating):
            raise self.closed()
        if self.given_up is not None:
            raise same_error(self.given_up)

    def report_refusal(self, error: HeadwayError) -> None:
        if self.observers:
            self._report(Refused(self.name, error.code, str(error)))

    def report(self, event: Event) -> None:
        """From any thread; nothing where nobody observes."""
        if self.observers:
            self._report(event)

    def _report(self, event: Event) -> None:
        self.in_home(functools.partial(self.observers.emit, event))

    # ---- leaving early

    def withdraw(self, call: Queued) -> None:
        """The caller is gone: take its items out of the queue; leave a running batch alone."""
        if not call.item_ids:  # of many pieces, which are withdrawn one by one
            return
        was_queued = self.forget(call.item_ids)
        if not was_queued:
            self._tell_unwanted()
        if self.observers:
            self._report(Cancelled(self.name, started=not was_queued))
        self.drive_soon()  # the item may have been what a timer or a drain waits for

    def expire(self, call: Call | StreamCall) -> None:
        """Its deadline has passed, wherever it is. In the caller's loop."""
        if call.is_done:
            return
        error = DeadlineExceeded(f"{self.name} did not answer before the deadline")
        was_queued = self.forget(call.item_ids)
        call.fail(error)
        if not was_queued:
            self._tell_unwanted()
        self.report_refusal(error)
        self.drive_soon()

    def _tell_unwanted(self) -> None:
        """Running batches that nobody waits for any more, where their model wants to know."""
        with self.lock:
            tokens = [job.cancel for job in self.jobs.values() if job.cancel is not None]
        for token in tokens:
            token.check()

    def drive_soon(self) -> None:
        with self.lock:
            home = self.home
            if self._drive_is_due or home is None or self._is_over:
                return
            self._drive_is_due = True
        self._post(home, self.drive)

    def forget(self, item_ids: tuple[int, ...]) -> bool:
        with self.lock:
            self.take_in()
            cancelled = [item_id for item_id in item_ids if self.scheduler.cancel(item_id)]
            for item_id in cancelled:
                self.calls.pop(item_id, None)
        return len(cancelled) == len(item_ids)

    # ---- driving the scheduler

    def drive(self) -> None:
        """Ask the scheduler what to do, and do it. In the home loop, after every event."""
        try:
            with self.lock:
                self._drive_is_due = False
                jobs, refusals = self._advance()
                home = self.current_home()
        except Exception as error:  # noqa: BLE001  a bug of ours must leave nobody waiting
            self._ending.crashed(error)
            return
        self._start(jobs)
        if refusals:
            self._in_this(home, lambda: self.tell_refused(refusals))
        if self._is_closing:
            self._ending.check_drained()
        elif self._is_over:
            self._ending.turn_away()

    def _advance(self) -> tuple[list[BatchJob], list[tuple[Refusal, Answerable]]]:
        """Under the lock: what to start and whom to refuse now. Sets the timer for later."""
        home = self.current_home()
        jobs: list[BatchJob] = []
        refused: list[Refusal] = []
        if self._is_over:
            return jobs, []
        self.take_in()
        due_at, self._due_at = self._due_at, -math.inf
        while True:
            action = self.scheduler.next_action(max(home.clock(), due_at))
            due_at = -math.inf
            if isinstance(action, Run):
                jobs.append(self._make_job(action.batch, home))
                if not self._free_workers and not refused and not self.scheduler.may_refuse:
                    return jobs, []  # the answer would be: wait
            elif isinstance(action, Refuse):
                refused += action.refusals
            else:
                if action.until < self._timer_at:
                    self._timer_at = action.until
                    self.in_home(functools.partial(self._arm, action.until))
                # only now: until here, a crash must find them among the calls
                return jobs, self._take_refused(refused) if refused else []

    def _make_job(self, batch: Batch, home: Home) -> BatchJob:
        """Its callers are found among the calls or the jobs, wherever this breaks."""
        calls: list[Answerable] = []
        try:
            calls.extend(map(self.calls.pop, map(_item_id, batch.items)))
            job = self._factory.make_job(batch, calls, self.crew.take(batch.worker), home)
        except Exception:
            self.calls.update(zip(map(_item_id, batch.items), calls, strict=False))
            raise
        self.jobs[batch.id] = job
        self.room.starts += 1
        return job

    def _take_refused(self, refused: list[Refusal]) -> list[tuple[Refusal, Answerable]]:
        refusals = [(each, self.calls[each.item.id]) for each in refused]
        for each in refused:
            del self.calls[each.item.id]
        return refusals

    def _start(self, jobs: list[BatchJob]) -> None:
        for job in jobs:
            if self.observers:
                self._report(BatchStarted(self.name, job.batch))
            job.worker.start(job)
        if self.room.is_awaited:
            self.room.look()

    @property
    def worker_count(self) -> int:
        return self.crew.here

    def now(self) -> float:
        return self.current_home().clock()

    def running(self) -> list[Running]:
        with self.lock:
            return [Running(batch_id, job.active_at) for batch_id, job in self.jobs.items()]

    def abandon(self, batch_id: int, error: HeadwayError) -> None:
        """Answer the callers of a running batch. What it still brings is dropped; its worker is
        busy until then. In the home loop."""
        with self.lock:
            job = self.jobs.get(batch_id)
        for call in () if job is None else job.calls:
            call.fail(error)

    def start_probe(self, job: Job) -> None:
        """Run this on a worker, past the queue. Raises Closed."""
        with self.lock:
            self.check_open()
            worker = self.crew.first_here()
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
                    self._losses.requeue(job, job.lost, is_over=self._is_over)
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
            self._ending.crashed(crash)
        self._start(jobs)
        deliver = self._deliver if job.lost is None else self._tell_lost
        self._in_this(home, lambda: deliver(job, refusals))

    def _deliver(self, job: BatchJob, refusals: list[tuple[Refusal, Answerable]]) -> None:
        """Answer everyone in a finished batch: the one place where results reach callers."""
        batch, failed = job.batch, 0
        ran = ((batch, job.ran_s),)
        if not job.results:
            job.results = [self.lost_batch() for _ in job.calls]
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
            self.tell_refused(refusals)
        if self.observers:
            self._tell_finished(job, failed)
        if self._is_closing:
            self._ending.check_drained()

    def _tell_finished(self, job: BatchJob, failed: int) -> None:
        batch = job.batch
        if job.ran_out_of_memory:
            limit_rows = self.scheduler.part_rows(batch.size)
            self.observers.emit(OutOfMemory(self.name, batch, limit_rows))
        self.observers.emit(
            BatchFinished(self.name, batch, job.finished_at, job.ran_s, job.reruns, failed)
        )

    @property
    def away_workers(self) -> int:
        return len(self._away)

    def adopt(self, scheduler: Scheduler) -> None:
        """Under the lock, while nothing is queued or running: decide by this one from now on."""
        scheduler.set_workers(self.crew.numbers_here)
        self.scheduler = scheduler

    def _tell_lost(self, job: BatchJob, refusals: list[tuple[Refusal, Answerable]]) -> None:
        self._losses.report(job, refusals)
        self.tell_refused(refusals)
        if self._is_closing:
            self._ending.check_drained()

    def tell_refused(self, refusals: list[tuple[Refusal, Answerable]]) -> None:
        for refusal, call in refusals:
            error = refusal_error(refusal, self.scheduler.policy)
            if isinstance(error, Poison):
                self._losses.remember_poison(call, refusal.item.partition)
            if not isinstance(error, ModelFailed):  # what failed was not refused
                self.report_refusal(error)
            call.fail(error)

    # ---- the timer

    def _arm(self, at: float) -> None:
        home = self.current_home()
        if at != self._timer_at or not home.is_here:
            return  # an earlier one has been set meanwhile, or a new home asks anew
        if self._timer is not None:
            self._timer.cancel()
        self._timer = home.loop.call_later(max(0.0, at - home.clock()), self._on_timer, home)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self, home: Home) -> None:
        if home is self.home:
            # uvloop counts in milliseconds and rings early: what is due within one is due now.
            # Asked with the clock's time, the scheduler would say "wait" again, and again.
            is_early = 0.0 < self._timer_at - home.clock() <= _TIMER_RESOLUTION_S
            self._due_at = self._timer_at if is_early else -math.inf
            self._timer_at = math.inf
            self.drive()

    # ---- the home loop

    def current_home(self) -> Home:
        assert self.home is not None, "the driver is not open"
        return self.home

    def choose_home(self) -> Home:
        """Under the lock: where a caller in this thread finds the batcher. Raises Closed."""
        self.check_open()
        self.take_in()
        if self.floating is None:
            home = self.current_home()
            if home.is_closed:
                raise self._homeless()
            return home
        self._give_up_lost()
        home = self.floating.choose(self.home, idle=self.scheduler.is_idle)
        if home is not self.home:
            self._move(home)
        return home

    def waiting_calls(self) -> list[Answerable]:
        """Under the lock: everyone whom the scheduler knows, queued or running."""
        running = [call for job in self.jobs.values() for call in job.calls]
        return [*self.calls.values(), *running]

    def _move(self, home: Home) -> None:
        old = self.home
        if self.state is State.NEW:
            self.open(home)
        elif old is not None and old.is_virtual is not home.is_virtual and not self.jobs:
            self._change_workers(home)
        self.home = home
        self._timer = None  # the old loop's: there it finds that the home has moved
        self._timer_at = math.inf
        if not self.scheduler.is_idle:
            for call in self.waiting_calls():
                call.detach()
            home.post(self.drive)
            self._drive_is_due = True
        else:
            self._drive_is_due = False

    def _change_workers(self, home: Home) -> None:
        """From a test's virtual time to the real one, or back: threads here, none there."""
        old = self.workers
        self._make_workers(home)
        for worker in old:
            worker.stop()

    def _give_up_lost(self) -> None:
        """Under the lock: batches whose event loop was closed under them never come back."""
        for job in [job for job in self.jobs.values() if job.worker.is_lost]:
            del self.jobs[job.batch.id]
            self.scheduler.finish(job.batch, self.current_home().clock())
            self._free_workers.append(job.worker)
            for call in job.calls:
                call.detach()
                call.fail(self.lost_batch())

    def lost_batch(self) -> Closed:
        return Closed(f"{self.name}: the event loop that ran this batch has ended")

    def in_home(self, callback: Callable[[], None]) -> None:
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
            if self.floating is None or self.state is State.CLOSED:
                callback()
                return
        try:
            with self.lock:
                if self.home is home:
                    self._move(self.floating.refuge())
                home = self.current_home()
        except NotReady:  # there is no thread for it: then in this one
            callback()
            return
        home.post(callback)


def _deadline(now: float, entered_at: float | None, deadline_ms: float | None) -> float:
    if deadline_ms is None:
        return math.inf
    if math.isnan(deadline_ms):
        raise InvalidInput("deadline_ms is not a number")
    return (now if entered_at is None else entered_at) + deadline_ms / 1e3


def _unusable(name: str, error: Exception) -> ModelFailed:
    failure = ModelFailed(f"{name} returned what cannot be used: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
