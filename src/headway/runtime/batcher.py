"""`Batcher`: groups single calls into batches for one model. The public face of the runtime."""

import asyncio
import dataclasses
import functools
import logging
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, cast

from headway.core import (
    Batch,
    CostTable,
    Policy,
    Priority,
    Scheduler,
    probe_order,
)
from headway.core.faults.bisecting import MAX_RERUNS
from headway.core.faults.supervision import MAX_RESTARTS
from headway.core.operating.placing import Placement, place
from headway.errors import Closed, ConfigError, HeadwayError, InvalidInput, NotReady
from headway.model import CANCEL, Model, TensorModel, overrides
from headway.runtime.calling.callbacks import Callbacks, own_method
from headway.runtime.calling.parameters import BatchParameters, Parameters, Sharing
from headway.runtime.calling.runner import TensorRunner, runner_for
from headway.runtime.calling.threads import run_in_thread
from headway.runtime.driving.calls import Call, DirectCall
from headway.runtime.driving.driver import Driver
from headway.runtime.driving.event_loop import FloatingHome, Home
from headway.runtime.driving.state import State
from headway.runtime.driving.streams import OpenStream, StreamCall
from headway.runtime.events import Observer, Observers, PaddingRevoked
from headway.runtime.explaining import Explained, explanation_of
from headway.runtime.fan_out import FanOut, LongCall
from headway.runtime.forking import left_behind, tell_when_forked
from headway.runtime.jobs.cancelling import BatchCancel, takes_cancel
from headway.runtime.jobs.jobs import BatchJob, PredictJob, StreamJob, Worker
from headway.runtime.jobs.probing import ProbeWatcher, probe, try_padding
from headway.runtime.jobs.watchdog import Watchdog
from headway.runtime.options import policy_of, seconds
from headway.runtime.workers.inline import InlineWorker
from headway.runtime.workers.thread import ThreadWorker

if TYPE_CHECKING:
    from headway.runtime.workers.process.team import ProcessTeam
    from headway.runtime.workers.process.worker import WorkerStatus

_log = logging.getLogger(__name__)
In = TypeVar("In")
Out = TypeVar("Out")
PriorityName = Literal["high", "normal", "low"]
_NONE: Mapping[str, Any] = {}
_ALIVE = (State.OPENING, State.OPEN, State.CLOSING)
_GRACE_S = (
    0.001  # past a deadline: what is still queued is refused by the scheduler, which says why
)
HAS_PROCESSES = hasattr(os, "pidfd_open") and hasattr(os, "memfd_create")
_PRIORITIES = {"high": Priority.HIGH, "normal": Priority.NORMAL, "low": Priority.LOW}


@dataclass(frozen=True, slots=True)
class Statistics:
    """A batcher's state at one moment."""

    is_open: bool
    crashed: BaseException | None
    queued_items: int
    queued_rows: int
    queued_s: float  # seconds of work waiting
    running_batches: int
    oldest_batch_s: float  # how long the longest running batch has been running
    away_workers: int = 0  # processes that are being started again, or given up


class Batcher(Generic[In, Out]):
    """Groups single calls into batches for one model.

    `model` is a function from a list to a list of the same length (`async def` runs in the event
    loop, `def` in worker threads), a `headway.Model` or a `headway.TensorModel`. Everything else is
    optional; the defaults need no tuning.
    """

    def __init__(
        self,
        model: (
            Callable[[list[In]], Awaitable[Sequence[Out]]]
            | Callable[[list[In]], Sequence[Out]]
            | Model[In, Out]
            | type[Model[In, Out]]
            | TensorModel
            | type[TensorModel]
        ),
        *,
        max_batch_size: int = 64,
        max_wait_ms: float | None = None,
        max_batch_cost: int | None = None,
        slo_ms: float | None = None,
        slo_percentile: float = 99.0,
        max_queue: int = 4096,
        policy: Literal["auto", "idle", "window", "static"] = "auto",
        order: Literal["fifo", "shortest"] = "fifo",
        compose: Literal["auto", "dp", "buckets", "sort", "fifo", "packed"] = "auto",
        buckets: Sequence[int] | str = "pow2",
        pad_sizes: Sequence[int] = (),
        workers: int = 1,
        tenants: Mapping[str, float] | None = None,
        batch_sizes: Sequence[int] = (),
        size: Callable[[Any], int] | None = None,
        prepare: Callable[[Any], Any] | None = None,
        max_reruns: int = MAX_RERUNS,
        costs: CostTable | None = None,
        observers: Sequence[Observer] = (),
        name: str | None = None,
        worker: Literal["auto", "inline", "thread", "process"] = "auto",
        execute_timeout_ms: float | None = None,
        load_timeout_s: float = 600.0,
        heartbeat_timeout_s: float = 10.0,
        max_restarts: int = MAX_RESTARTS,
        worker_memory_mb: float | None = None,
        pin: Sequence[str] = (),
        _floating: bool = False,
        _make: Callable[[], Any] | None = None,  # the model once more, in another process
    ) -> None:
        target = model
        self._model = model() if isinstance(model, type) else model
        self._runner = self._own_runner = runner_for(self._model, name)
        self._stream = own_method(self._model, "stream")
        self._cancellable = _cancellable(self._model)
        self._shape = self._runner.shape if isinstance(self._model, TensorModel) else None
        self.name = self._runner.name
        if not (isinstance(max_reruns, int) and max_reruns >= 0):
            raise ConfigError(f"must be at least 0, not {max_reruns}", field="max_reruns")
        limit_s = seconds(execute_timeout_ms, "execute_timeout_ms")
        self._callbacks = callbacks = Callbacks(
            self._model,
            self.name,
            max_waiting=max_queue,
            prepare=prepare,
            size=size,
            limit_s=limit_s,
        )
        self._prepare, self._size = callbacks.prepare, callbacks.size
        self._finish, self._off_loop = callbacks.finish, callbacks.off_loop
        self._parameters = _parameters(self._model, self._prepare)
        if max_batch_cost is not None and self._size is None and self._shape is None:
            raise ConfigError("needs a size: `size=`, or the model's own", field="max_batch_cost")
        self._policy = policy_of(
            self._model,
            policy=policy,
            max_batch_size=max_batch_size,
            max_wait_ms=max_wait_ms,
            max_batch_cost=max_batch_cost,
            slo_ms=slo_ms,
            slo_percentile=slo_percentile,
            max_queue=max_queue,
            order=order,
            compose=compose,
            buckets=buckets,
            pad_sizes=pad_sizes,
            workers=workers,
            tenants=tenants,
            batch_sizes=batch_sizes,
        )
        self._max_reruns = max_reruns
        self._is_simple = not any(
            (self._prepare, self._size, self._shape, self._finish, self._parameters)
        )
        # Any one value may share a batch with any other, and is queued as it came.
        self.is_uniform = self._is_simple or (
            isinstance(self._runner, TensorRunner)
            and self._runner.is_uniform
            and not self._runner.checks_inputs
            and not any((self._prepare, self._size, self._finish, self._parameters))
        )
        self._observers = Observers(observers)
        self._placement = place(
            self.name,
            worker,
            is_async=self._runner.is_async,
            workers=workers,
            is_python=False,  # threads, unless processes are asked for: a closure runs nowhere else
            needs_process=_only_in_process(worker_memory_mb, pin),
            has_processes=HAS_PROCESSES,
        )
        execute_timeout_s = seconds(execute_timeout_ms, "execute_timeout_ms")
        if execute_timeout_s == math.inf:
            execute_timeout_s = None
        self._team: ProcessTeam | None = None
        if self._placement.kind == "process":
            from headway.runtime.workers.process import team
            from headway.runtime.workers.process.options import ProcessOptions

            options = ProcessOptions(
                max_restarts=max_restarts,
                load_timeout_s=load_timeout_s,
                execute_timeout_s=execute_timeout_s,  # a process can be ended; its batch runs again
                heartbeat_timeout_s=heartbeat_timeout_s,
                memory_bytes=None if worker_memory_mb is None else int(worker_memory_mb * 2**20),
                pin=tuple(pin),
            )
            self._make_team = functools.partial(
                team.ProcessTeam, self.name, target, _make, workers=workers, options=options
            )
            self._team = self._make_team()
        self._costs = costs
        self._limit_s = execute_timeout_s
        self._watchdog: Watchdog | None = None
        self._followers: list[Callable[[tuple[int, ...]], None]] = []
        self._driver = self._make_driver(is_floating=_floating)
        tell_when_forked(self)

    def _make_driver(self, *, is_floating: bool) -> Driver:
        driver = Driver(
            self.name,
            Scheduler(self._policy, self._costs),
            self,
            self._observers,
            FloatingHome(f"headway-{self.name}") if is_floating else None,
        )
        if self._team is not None:
            self._team.attach(driver)
        elif self._limit_s is not None:
            self._watchdog = Watchdog(driver, limit_s=self._limit_s)
            self.observe(self._watchdog)
        for follower in self._followers:
            driver.follow(follower)
        return driver

    def after_fork(self) -> None:
        """In the child: nothing of what runs for it is here."""
        old = self._driver
        if self._watchdog is not None:
            self._observers.remove(self._watchdog)
        left_behind.append((old, self._team, self._callbacks.start_over()))
        state = old.state
        if self._team is not None:
            self._team = self._make_team()
        self._driver = self._make_driver(is_floating=old.floating is not None)
        if state is State.NEW or (old.floating is not None and state is State.OPEN):
            return  # its next caller opens it
        self._driver.state = State.FORKED if state in _ALIVE else state
        self._driver.crash = old.crash

    # ---- life

    async def __aenter__(self) -> Self:
        driver = self._driver
        with driver.lock:
            if driver.state is not State.NEW:
                raise Closed(f"{self.name} {driver.state.value}: make a new Batcher")
            driver.state = State.OPENING
        home = Home(asyncio.get_running_loop())
        try:
            await self._load(home)
        except BaseException:
            driver.state = State.CLOSED
            raise
        try:
            with driver.lock:
                if driver.state is not State.OPENING:
                    raise Closed(f"{self.name} was closed while it was loading")
                driver.open(home)
        except BaseException:
            driver.state = State.CLOSED
            await self._wait_stopped()
            raise
        try:
            await self._try_padding(home)
        except BaseException:
            await self.close(drain_s=0.0)
            raise
        return self

    async def _load(self, home: Home) -> None:
        """Where it computes; light preparation here, too."""
        is_elsewhere = self._team is not None and not home.is_virtual
        if isinstance(self._model, Model | TensorModel):
            prepare = self._model.setup if is_elsewhere else _set_up_and_load(self._model)
            await run_in_thread(prepare)
        if self._team is not None and is_elsewhere:
            await self._team.wait_started()

    async def _wait_stopped(self) -> None:
        if self._team is not None:
            await self._team.wait_stopped()

    async def _try_padding(self, home: Home) -> None:
        """Nobody knows this batcher yet: its model may be asked a thing or two."""
        runner = self._runner
        if isinstance(runner, TensorRunner):
            runner.varying.pad_sizes = self._policy.pad_sizes
            if runner.varying.candidates:
                runner.varying.revoked = self._tell_revoked
                await try_padding(
                    self._driver.start_probe,
                    runner,
                    home.clock,
                    self._policy.batch_sizes,
                    self._policy.max_batch_size,
                )

    def _tell_revoked(self, outputs: str) -> None:
        """In a worker's thread."""
        _log.error(
            "%s: padding has changed an answer (%s), though it changed none when it was tried. "
            "Only equal lengths share a batch from now on; answers to padded requests before may "
            "be wrong. Set `pads` of the model to say how it is padded, or {} for never",
            self.name,
            outputs,
        )
        self._driver.report(PaddingRevoked(self.name, outputs))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
        if self._driver.crash is not None:
            raise Closed(f"{self.name} crashed") from self._driver.crash

    async def close(self, *, drain_s: float = 30.0) -> None:
        """Refuse new work, finish what is queued and running for up to `drain_s`, then answer the
        rest with `Closed`. Afterwards nobody is left waiting."""
        try:
            await self._driver.close(drain_s)
        finally:
            self._callbacks.stop()
            await self._wait_stopped()

    # ---- calling

    async def submit(
        self,
        value: Any,
        *,
        priority: PriorityName = "normal",
        deadline_ms: float | None = None,
        tenant: str = "",
        partition: Hashable = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> Out:
        """The result for one value, computed together with its neighbours.

        `deadline_ms`: the answer is worthless later; `partition`: only equals share a batch;
        `parameters`: keywords for the model; one that it does not take is refused.
        """
        loop = asyncio.get_running_loop()
        entered_at = 0.0 if deadline_ms is None else self._now()
        call: Call | LongCall | None = None
        if (
            self._is_simple
            and partition is None
            and deadline_ms is None
            and priority == "normal"
            and tenant == ""
            and not parameters
        ):
            call = self._driver.enqueue_plain(value, loop)
        if call is None:
            call = await self._enqueue(
                value, loop, priority, deadline_ms, tenant, partition, parameters
            )
        if deadline_ms is not None:
            return await self._answer_in_time(call, entered_at, deadline_ms)  # type: ignore[no-any-return]
        result: Any
        try:
            result = await call.answer()
        except asyncio.CancelledError:
            self._driver.withdraw(call)
            raise
        if self._finish is not None:
            result = await self._off_loop("finish", self._finish, result)
        return result  # type: ignore[no-any-return]  # a cast would be a call for every caller

    async def explain(
        self,
        value: Any,
        *,
        priority: PriorityName = "normal",
        deadline_ms: float | None = None,
        tenant: str = "",
        partition: Hashable = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> Explained[Out]:
        """`submit`, and with the result its story: which batch, why it left, where the time went.

        (Not in terms of each other: whoever asks for no story should not pay for one.)
        """
        loop = asyncio.get_running_loop()
        entered_at = self._now()
        call = await self._enqueue(
            value, loop, priority, deadline_ms, tenant, partition, parameters
        )
        result = await self._answer_in_time(call, entered_at, deadline_ms)
        return Explained(result, explanation_of(call))

    async def _answer_in_time(
        self, call: Call | LongCall, entered_at: float, deadline_ms: float | None
    ) -> Any:
        """The finished answer, or DeadlineExceeded wherever the time went. While it is queued, the
        scheduler says so itself."""
        deadline = _deadline(entered_at, deadline_ms)
        timer = self._expire_at(call, deadline)
        try:
            result = await call.answer()
        except asyncio.CancelledError:
            self._driver.withdraw(call)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if self._finish is not None:
            result = await self._off_loop("finish", self._finish, result, deadline=deadline)
        return result

    def _expire_at(
        self, call: Call | LongCall | StreamCall, deadline: float | None
    ) -> asyncio.TimerHandle | None:
        if deadline is None or deadline == math.inf or isinstance(call, LongCall):
            return None  # a long one sees to it itself
        left_s = max(0.0, deadline - self._now()) + _GRACE_S
        return asyncio.get_running_loop().call_later(left_s, self._driver.expire, call)

    async def submit_row(self, value: Any) -> Out:
        """`submit` for one row that a front end has checked already, and that has no wishes."""
        loop = asyncio.get_running_loop()
        call = self._driver.enqueue_plain(value, loop) if self.is_uniform else None
        if call is None:
            return await self.submit(value)
        result: Any
        try:
            result = await call.answer()
        except asyncio.CancelledError:
            self._driver.withdraw(call)
            raise
        return result  # type: ignore[no-any-return]  # as in `submit`

    def submit_direct(self, call: DirectCall) -> bool:
        """For a front end in the batcher's own loop: one row, already checked, no wishes.

        False: it cannot be taken this way now; `submit` says why.
        """
        return self.is_uniform and self._driver.enqueue_direct(call)

    def withdraw(self, call: DirectCall) -> None:
        """Its caller is gone."""
        call.is_done = True
        self._driver.withdraw(call)

    async def _enqueue(
        self,
        value: Any,
        loop: asyncio.AbstractEventLoop,
        priority: str,
        deadline_ms: float | None,
        tenant: str,
        partition: Hashable,
        parameters: Mapping[str, Any] | None,
    ) -> Call | LongCall:
        rows, size, entered_at = 1, 0, None
        self._check_call(tenant, partition)
        keywords, shared = self._taken(parameters)
        if self._prepare is not None or self._size is not None:
            entered_at = self._now()
            value, size = await self._prepared(value, keywords, _deadline(entered_at, deadline_ms))
        if self._shape is not None:
            value = cast(TensorRunner, self._runner).plain(value)
            rows, own_size, shape = self._shaped(value)
            size = own_size if self._size is None else size
            if shape is not None:
                partition = (shape, partition)
        if shared is not None:
            partition = Sharing(partition, streams=False, parameters=shared)
        level = self._priority(priority)
        if rows > 1 and rows > self._policy.window_rows:
            if deadline_ms is not None and entered_at is not None:
                deadline_ms -= (self._now() - entered_at) * 1e3
            return self._long_call(
                value,
                rows,
                deadline_ms,
                size=size,
                priority=level,
                tenant=tenant,
                partition=partition,
            )
        call: Call = self._driver.enqueue(
            value,
            loop,
            rows=rows,
            size=size,
            priority=level,
            tenant=tenant,
            deadline_ms=deadline_ms,
            entered_at=entered_at,
            partition=partition,
        )
        return call

    def _long_call(
        self, value: Any, rows: int, deadline_ms: float | None, **options: Any
    ) -> LongCall:
        driver = self._driver
        most = min(driver.scheduler.part_rows(options["size"]), self._policy.window_rows)
        ends = [*range(most, rows, most), rows]
        pieces = list(zip([0, *ends], ends, strict=False))

        def enqueue(piece: tuple[int, int], left_ms: float | None) -> Any:
            return driver.enqueue(
                self.cut(value, *piece),
                asyncio.get_running_loop(),
                rows=piece[1] - piece[0],
                deadline_ms=left_ms,
                entered_at=None,
                **options,
            )

        fan_out = self.fan_out(rows=most, deadline_ms=deadline_ms)
        return LongCall(pieces, fan_out, enqueue, driver.withdraw, self.join)

    def fan_out(self, *, rows: int = 1, deadline_ms: float | None = None) -> FanOut:
        """For one request of many values of up to so many rows each: feeds them to the queue."""
        width = self._policy.window_rows // max(1, rows)
        a_turn = self._policy.max_batch_size // max(1, rows)
        return FanOut(self._driver.room, width=width, a_turn=a_turn, deadline_ms=deadline_ms)

    async def many(self, values: Sequence[Any], **options: Any) -> list[Out]:
        """The results for several values, in order. One error withdraws the rest and is raised.

        Any number of values: a few batches' worth are queued at a time, as the queue has room.
        `deadline_ms` is that of all of them.
        """
        return await self._many(self.submit, values, options)

    async def explain_many(self, values: Sequence[Any], **options: Any) -> list[Explained[Out]]:
        """`many`, each result with its story."""
        return await self._many(self.explain, values, options)

    async def _many(
        self,
        submit: Callable[..., Awaitable[Any]],
        values: Sequence[Any],
        options: Mapping[str, Any],
    ) -> list[Any]:
        rows = 1
        if self._shape is not None and self._prepare is None:  # else the rows are not known yet
            rows = max((self._shaped(value)[0] for value in values), default=1)

        async def call(value: Any, left_ms: float | None) -> Any:
            if left_ms is not None:
                return await submit(value, **{**options, "deadline_ms": left_ms})
            return await submit(value, **options)

        fan_out = self.fan_out(rows=rows, deadline_ms=options.get("deadline_ms"))
        return await fan_out.gather(call, values)

    def call(self, value: Any, **options: Any) -> Out:
        """`submit` for code without an event loop; from any thread."""
        with self._driver.lock:
            home = self._driver.choose_home()
        if home.is_here:
            raise RuntimeError(
                f"{self.name}.call() would block the event loop that must answer it: use `await`"
            )
        future = asyncio.run_coroutine_threadsafe(self.submit(value, **options), home.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # e.g. Ctrl-C: nobody waits for the answer
            raise

    async def stream(
        self,
        value: Any,
        *,
        priority: PriorityName = "normal",
        deadline_ms: float | None = None,
        tenant: str = "",
        partition: Hashable = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Any]:
        """The chunks of one value's answer, as its batch produces them."""
        stream = await self.open_stream(
            value,
            priority=priority,
            deadline_ms=deadline_ms,
            tenant=tenant,
            partition=partition,
            parameters=parameters,
        )
        try:
            async for chunk in stream:
                yield chunk
        finally:
            stream.close()

    async def open_stream(
        self,
        value: Any,
        *,
        priority: PriorityName = "normal",
        deadline_ms: float | None = None,
        tenant: str = "",
        partition: Hashable = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> OpenStream:
        """`stream`, once it is queued. Whoever opens it closes it."""
        if self._stream is None:
            raise InvalidInput(f"{self.name} does not stream")
        size, entered_at = 0, self._now()
        self._check_call(tenant, partition)
        keywords, shared = self._taken(parameters)
        if self._prepare is not None or self._size is not None:
            value, size = await self._prepared(value, keywords, _deadline(entered_at, deadline_ms))
        call = self._driver.enqueue(
            value,
            asyncio.get_running_loop(),
            rows=1,
            size=size,
            priority=self._priority(priority),
            tenant=tenant,
            deadline_ms=deadline_ms,
            entered_at=entered_at,
            partition=Sharing(partition, streams=True, parameters=shared),
            stream=True,
        )
        timer = self._expire_at(call, _deadline(entered_at, deadline_ms))
        return OpenStream(call, self._driver.withdraw, timer)

    # ---- the user's values and callbacks

    def _check_call(self, tenant: object, partition: object) -> None:
        """Before anything is done for it: what the scheduler will sort by must be fit for that."""
        try:
            if not isinstance(tenant, str):
                raise InvalidInput(f"tenant must be a string, not {tenant!r}")
            _check_hashable(partition)
            self._callbacks.check_room()
        except HeadwayError as error:
            self._driver.report_refusal(error)
            raise

    def _priority(self, name: str) -> Priority:
        if isinstance(name, str) and name in _PRIORITIES:
            return _PRIORITIES[name]
        error = InvalidInput(f"priority {name!r} is not one of 'high', 'normal', 'low'")
        self._driver.report_refusal(error)
        raise error

    def _taken(
        self, given: Mapping[str, Any] | None
    ) -> tuple[Mapping[str, Any], BatchParameters | None]:
        """What `prepare` takes of the parameters, and what their batch must have in common."""
        if self._parameters is None and not given:
            return _NONE, None
        try:
            self.check_parameters(given or _NONE)
            assert self._parameters is not None
            shared = self._parameters.of_batch(given or _NONE)
            _check_hashable(shared, "a parameter that decides who shares a batch")
            return self._parameters.of_item(given or _NONE), shared
        except HeadwayError as error:
            self._driver.report_refusal(error)
            raise

    async def _prepared(
        self, value: Any, keywords: Mapping[str, Any], deadline: float | None = None
    ) -> tuple[Any, int]:
        """The item to queue and its size."""
        try:
            self._driver.check_open()
            return await self._callbacks.prepared(value, keywords, deadline)
        except HeadwayError as error:
            self._driver.report_refusal(error)
            raise

    def check_parameters(self, given: Mapping[str, Any]) -> None:
        """Raises InvalidInput for one that the model does not take."""
        if self._parameters is not None:
            self._parameters.check(given)
        elif given:
            name = next(iter(given))
            raise InvalidInput(f"parameter {name!r} is unknown; the model takes none")

    def takes_parameter(self, name: str) -> bool:
        return self._parameters is not None and self._parameters.takes(name)

    def _shaped(self, value: Any) -> tuple[int, int, Hashable]:
        assert self._shape is not None
        try:
            return self._shape(value)
        except InvalidInput as error:
            self._driver.report_refusal(error)
            raise

    def _now(self) -> float:
        return Home(asyncio.get_running_loop()).clock()

    # ---- what the driver asks for

    def make_workers(self, home: Home, current_home: Callable[[], Home]) -> list[Worker]:
        if self._team is not None and not home.is_virtual:
            from headway.runtime.workers.process import here

            self._runner = self._own_runner.elsewhere(here.predict)
            self._stream = here.stream
            return list(self._team.hire())
        self._runner = self._own_runner
        self._stream = own_method(self._model, "stream")
        if self._runner.is_async or home.is_virtual or self._placement.kind == "inline":
            return [InlineWorker(current_home) for _ in range(self._policy.workers)]
        return [ThreadWorker(f"headway-{self.name}-{n}") for n in range(self._policy.workers)]

    def make_job(self, batch: Batch, calls: list[Any], worker: Worker, home: Home) -> BatchJob:
        if self._cancellable:
            return self._make_cancellable(batch, calls, worker, home)
        return self._make_job(batch, calls, worker, home, _NONE)

    def _make_cancellable(
        self, batch: Batch, calls: list[Any], worker: Worker, home: Home
    ) -> BatchJob:
        sharing = batch.items[0].partition
        streams = isinstance(sharing, Sharing) and sharing.streams
        if ("stream" if streams else "predict") not in self._cancellable:
            return self._make_job(batch, calls, worker, home, _NONE)
        token = BatchCancel(batch, calls, home.clock)
        job = self._make_job(batch, calls, worker, home, {CANCEL: token})
        job.cancel = token
        return job

    def _make_job(
        self,
        batch: Batch,
        calls: list[Any],
        worker: Worker,
        home: Home,
        keywords: Mapping[str, Any],
    ) -> BatchJob:
        runner, sharing = self._runner, batch.items[0].partition
        if isinstance(sharing, Sharing):
            if sharing.streams:
                return StreamJob(
                    batch,
                    cast(list[StreamCall], calls),
                    worker,
                    home.clock,
                    self._driver.finished,
                    functools.partial(
                        self._stream, **self._keywords("stream", sharing), **keywords
                    ),
                    runner,
                    self._max_reruns,
                )
            runner = runner.with_keywords(self._keywords("predict", sharing))
        if keywords:
            runner = runner.with_keywords(keywords)
        return PredictJob(
            batch,
            calls,
            worker,
            home.clock,
            self._driver.finished,
            runner,
            self._max_reruns,
            self._policy.batch_sizes,
        )

    def _keywords(self, method: str, sharing: Sharing) -> dict[str, Any]:
        if self._parameters is None or sharing.parameters is None:
            return {}
        return self._parameters.keywords(method, sharing.parameters)

    def cut(self, value: Any, start: int, stop: int) -> Any:
        return self._runner.cut(value, start, stop)

    def join(self, results: list[Any]) -> Any:
        return self._runner.join(results)

    # ---- warming up and looking inside

    async def warm_up(
        self,
        *samples: Any,
        repeats: int = 3,
        limit_s: float = 30.0,
        _watcher: ProbeWatcher | None = None,
    ) -> CostTable:
        """Time the model on batches of these typical values, so that no decision is made blind.

        Before traffic. Give values of several lengths where length matters and `size=` is set.
        """
        driver = self._driver
        with driver.lock:
            home = driver.choose_home()
            if not driver.scheduler.is_idle:
                raise NotReady(f"{self.name} is busy: warm up before traffic")
        sized: dict[int, Any] = {}
        for sample in samples:
            value, size = sample, 0
            if self._prepare is not None or self._size is not None:
                value, size = await self._prepared(sample, self._taken(None)[0])
            if self._shape is not None and self._size is None:
                size = self._shaped(value)[1]
            sized.setdefault(size, value)
        if not sized:
            raise ConfigError("needs at least one typical value", field="samples")
        table = await probe(
            driver.start_probe,
            self._runner,
            home.clock,
            sized,
            rows=self._policy.batch_sizes
            or probe_order(self._policy.max_batch_size, coarse=list(sized) != [0]),
            repeats=repeats,
            limit_s=limit_s,
            watcher=_watcher,
        )
        self.learn(table)
        return table

    def limit_rows(self, rows: int) -> None:
        """Make no batch larger than this: more does not fit into memory. Before traffic."""
        driver = self._driver
        with driver.lock:
            if not driver.scheduler.is_idle:
                raise NotReady(f"{self.name} is busy: limit it before traffic")
            sizes = tuple(size for size in self._policy.batch_sizes if size <= rows)
            if self._policy.batch_sizes and not sizes:
                raise ConfigError(f"none of {self._policy.batch_sizes} fits", field="batch_sizes")
            largest = sizes[-1] if sizes else min(rows, self._policy.max_batch_size)
            self._policy = dataclasses.replace(
                self._policy, max_batch_size=largest, batch_sizes=sizes
            )
            driver.adopt(Scheduler(self._policy))

    def learn(self, table: CostTable) -> None:
        """Decide by these batch times from now on; what was learned before is forgotten."""
        with self._driver.lock:
            self._driver.scheduler.learn(table)

    def weigh(self, tenants: Mapping[str, float]) -> None:
        """Tenants share by these weights from now on; absent: 1. Who waits keeps its place."""
        with self._driver.lock:
            self._policy = dataclasses.replace(self._policy, tenant_weights=dict(tenants))
            self._driver.scheduler.weigh(self._policy.tenant_weights)

    @property
    def is_open(self) -> bool:
        """Are calls taken? False before it is entered, once it closes, after a crash, and while
        every worker is stuck or was given up."""
        return self._driver.takes_calls

    @property
    def trouble(self) -> str:
        """Why nothing completes any more: it has crashed, its workers were given up, each is
        stuck in a batch, or so are the calls around it. Empty while it works, and before and after
        its life."""
        driver = self._driver
        if driver.crash is not None:
            return f"{self.name} crashed: {type(driver.crash).__name__}: {driver.crash}"
        if driver.given_up is not None:
            return str(driver.given_up)
        if self.is_stuck:
            return f"{self.name}: `prepare`, `size` or `finish` hang"
        return ""

    @property
    def is_stuck(self) -> bool:
        """Is nobody let in because `prepare`, `size` or `finish` hang, each in a thread of its own?
        Until one of them comes back."""
        return self._callbacks.is_stuck

    @property
    def placement(self) -> Placement:
        """Where the model runs, and why."""
        return self._placement

    @property
    def worker_processes(self) -> "list[WorkerStatus]":
        """What each worker process does; none where the model runs in this one."""
        return [] if self._team is None else self._team.statuses

    @property
    def policy(self) -> Policy:
        """The levers in force."""
        return self._policy

    def observe(self, observer: Observer) -> None:
        """Report every event to this callable from now on, in the batcher's event loop."""
        self._observers.add(observer)

    def follow(self, follower: Callable[[tuple[int, ...]], None]) -> None:
        """Tell this callable the ids of each call's items, in that call's own context: so traces
        and logs find out which batch a request was in."""
        self._followers.append(follower)
        self._driver.follow(follower)

    def statistics(self) -> Statistics:
        driver = self._driver
        with driver.lock:
            driver.take_in()
            scheduler = driver.scheduler
            now = driver.home.clock() if driver.home is not None else 0.0
            ages = (now - job.batch.fired_at for job in driver.jobs.values())
            return Statistics(
                is_open=driver.takes_calls,
                crashed=driver.crash,
                queued_items=scheduler.queued_items,
                queued_rows=scheduler.queued_rows,
                queued_s=scheduler.queued_s,
                running_batches=scheduler.running_batches,
                oldest_batch_s=max(ages, default=0.0),
                away_workers=driver.away_workers,
            )


def _deadline(entered_at: float, deadline_ms: float | None) -> float | None:
    if deadline_ms is None:
        return None
    if math.isnan(deadline_ms):
        raise InvalidInput("deadline_ms is not a number")
    return entered_at + deadline_ms / 1e3


def _cancellable(model: Any) -> frozenset[str]:
    """The methods that take a token."""
    if not isinstance(model, Model | TensorModel):
        return frozenset(["predict"] if takes_cancel(model) else [])
    written = [method for method in ("predict", "stream") if overrides(model, method)]
    return frozenset(each for each in written if takes_cancel(getattr(model, each)))


def _parameters(model: object, prepare: Callable[..., Any] | None) -> Parameters | None:
    """None: it takes none. A plain function has no place to list what its batches share."""
    if not isinstance(model, Model | TensorModel):
        return None
    return Parameters(model, prepare) or None


def _check_hashable(value: object, what: str = "partition") -> None:
    try:
        hash(value)
    except Exception as error:  # user code; mostly a TypeError: a list, a dict, an array
        raise InvalidInput(f"{what} must be hashable: {error}") from error


def _set_up_and_load(model: "Model[Any, Any] | TensorModel") -> Callable[[], None]:
    def both() -> None:
        model.setup()
        model.load()

    return both


def _only_in_process(memory_mb: float | None, pin: Sequence[str]) -> str:
    """The setting that only a process can keep."""
    return "worker_memory_mb" if memory_mb is not None else "pin" if pin else ""
