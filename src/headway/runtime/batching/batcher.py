"""`Batcher`: groups single calls into batches for one model. The public face of the runtime.

A batcher's parts do its work: `calling/inputs.py` reads what callers give,
`entrance.py` queues it, `decider.py` runs batches, `shell.py` drives it.
"""

import asyncio
import dataclasses
import inspect
import math
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
)

from headway.core.costs import CostTable
from headway.core.lifecycle.placement import Placement
from headway.core.policy import Policy
from headway.errors import Closed, InvalidInput
from headway.model import Model, TensorModel
from headway.runtime.batching.entrance import Follower, deadline_at, now_here
from headway.runtime.batching.explaining import Explained, explanation_of
from headway.runtime.batching.fan_out import FanOut, LongCall
from headway.runtime.batching.options import BatcherOptions
from headway.runtime.batching.parts import BatcherParts
from headway.runtime.calling.inputs import CallKeywords, CallOptions
from headway.runtime.driving.calls import Call, DirectCall
from headway.runtime.driving.streams import OpenStream, StreamCall
from headway.runtime.events import Observer, Statistics
from headway.runtime.forking import tell_when_forked
from headway.runtime.jobs.probing import ProbeWatcher

if TYPE_CHECKING:
    from headway.runtime.workers.process.worker import WorkerStatus

In = TypeVar("In")
Out = TypeVar("Out")
P = ParamSpec("P")
S = TypeVar("S")
M = TypeVar("M")
Target: TypeAlias = (
    Callable[[list[In]], Awaitable[Sequence[Out]]]
    | Callable[[list[In]], Sequence[Out]]
    | Model[In, Out]
    | type[Model[In, Out]]
    | TensorModel
    | type[TensorModel]
)
_GRACE_S = 0.001  # past a deadline: the scheduler refuses items that are still queued itself


def _takes_options(
    options: Callable[P, BatcherOptions],
) -> Callable[[Callable[Concatenate[S, M, ...], None]], Callable[Concatenate[S, M, P], None]]:
    """Give a constructor the fields of the options as its keywords."""

    def typed(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function).parameters.values())[:2]
        keywords = inspect.signature(options).parameters.values()
        function.__signature__ = inspect.Signature([*own, *keywords])  # type: ignore[attr-defined]
        return function

    return typed


class Batcher(Generic[In, Out]):
    """Groups single calls into batches for one model.

    `model` is a function from a list to a list of the same length (`async def` runs in the event
    loop, `def` in worker threads), a `headway.Model` or a `headway.TensorModel`. Everything else is
    optional; the defaults need no tuning.
    """

    @_takes_options(BatcherOptions)
    def __init__(self, model: Target[In, Out], **options: Any) -> None:
        self._set_up(BatcherParts(model, BatcherOptions.of(options)))

    @classmethod
    def from_options(
        cls,
        model: Target[In, Out],
        options: BatcherOptions,
        *,
        is_floating: bool = False,
        make: Callable[[], Any] | None = None,
    ) -> Self:
        """`is_floating`: it is never opened, and follows its callers from loop to loop; `make`:
        makes the model again, in another process."""
        batcher = cls.__new__(cls)
        batcher._set_up(BatcherParts(model, options, is_floating=is_floating, make=make))
        return batcher

    def _set_up(self, parts: BatcherParts) -> None:
        self._parts = parts
        self.name = parts.name
        self._is_simple, self.is_uniform = parts.inputs.is_simple, parts.inputs.is_uniform
        self._finish, self._off_loop = parts.callbacks.finish, parts.callbacks.off_loop
        self._take_parts()
        tell_when_forked(self)

    def _take_parts(self) -> None:
        """Keep the parts that every call needs as attributes."""
        parts = self._parts
        self._decider, self._shell, self._entrance = parts.decider, parts.shell, parts.entrance

    def after_fork(self) -> None:
        """Start over in the child process, which has no threads or workers of the parent."""
        self._parts.after_fork()
        self._take_parts()

    # ---- life

    async def __aenter__(self) -> Self:
        await self._parts.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        if self._shell.crash is not None:
            raise Closed(f"{self.name} crashed") from self._shell.crash

    async def close(self, *, drain_s: float | None = 30.0) -> None:
        """Refuse new calls, finish accepted calls for up to `drain_s` seconds (None: however long
        they take), then answer the rest with `Closed`. Afterwards no caller is left waiting."""
        await self._parts.close(drain_s)

    # ---- calling

    async def submit(self, value: Any, **options: Unpack[CallKeywords]) -> Out:
        """The result for one value, computed together with its neighbours.

        Options: `priority` (high, normal, low); `deadline_ms`: the answer is worthless later;
        `tenant`: whose share it takes; `partition`: only equals share a batch; `parameters`:
        keywords for the model; one that it does not take is refused.
        """
        loop = asyncio.get_running_loop()
        deadline_ms, entered_at = None, 0.0
        call: Call | LongCall | None = None
        if not options and self.is_uniform:
            if self._is_simple:
                call = self._entrance.enqueue_plain(value, loop)
            elif (row := self._parts.inputs.row(value)) is not None:
                call = self._entrance.enqueue_plain(row, loop)
        if call is None:
            asked = CallOptions.of(options)
            deadline_ms = asked.deadline_ms
            entered_at = 0.0 if deadline_ms is None else now_here()
            call = await self._entrance.ask(value, loop, asked)
        if deadline_ms is not None:
            return await self._answer_in_time(call, entered_at, deadline_ms)  # type: ignore[no-any-return]
        result: Any
        try:
            result = await call.answer()
        except asyncio.CancelledError:
            self._entrance.withdraw(call)
            raise
        if self._finish is not None:
            result = await self._off_loop("finish", self._finish, result)
        return result  # type: ignore[no-any-return]  # a cast would be a call for every caller

    async def explain(self, value: Any, **options: Unpack[CallKeywords]) -> Explained[Out]:
        """`submit`, with an explanation: which batch it was in, why that left, where the time went.

        (Separate from `submit`: callers without an explanation should not pay for one.)
        """
        loop = asyncio.get_running_loop()
        entered_at, asked = now_here(), CallOptions.of(options)
        call = await self._entrance.ask(value, loop, asked)
        result = await self._answer_in_time(call, entered_at, asked.deadline_ms)
        return Explained(result, explanation_of(call))

    async def _answer_in_time(
        self, call: Call | LongCall, entered_at: float, deadline_ms: float | None
    ) -> Any:
        """The finished answer; DeadlineExceeded if the deadline passes before. (If the item is
        still queued then, the scheduler itself refuses it.)"""
        deadline = deadline_at(entered_at, deadline_ms)
        timer = self._expire_at(call, deadline)
        try:
            result = await call.answer()
        except asyncio.CancelledError:
            self._entrance.withdraw(call)
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
            return None  # a LongCall has a deadline of its own
        left_s = max(0.0, deadline - now_here()) + _GRACE_S
        return asyncio.get_running_loop().call_later(left_s, self._entrance.expire, call)

    async def submit_row(self, value: Any) -> Out:
        """`submit` for one row that a front end has checked already, and that sets no option."""
        loop = asyncio.get_running_loop()
        call = self._entrance.enqueue_plain(value, loop) if self.is_uniform else None
        if call is None:
            return await self.submit(value)
        result: Any
        try:
            result = await call.answer()
        except asyncio.CancelledError:
            self._entrance.withdraw(call)
            raise
        return result  # type: ignore[no-any-return]  # as in `submit`

    def submit_direct(self, call: DirectCall) -> bool:
        """Queue a front end's call, in the batcher's own loop: one checked row without options.

        False: it cannot be taken this way now; `submit` raises the reason.
        """
        return self.is_uniform and self._entrance.enqueue_direct(call)

    def withdraw(self, call: DirectCall) -> None:
        """Take back a call: its caller has left."""
        call.is_done = True
        self._entrance.withdraw(call)

    def fan_out(self, *, rows: int = 1, deadline_ms: float | None = None) -> FanOut:
        """Feeds the values of one request to the queue, each of up to `rows` rows."""
        return self._entrance.fan_out(rows=rows, deadline_ms=deadline_ms)

    async def many(self, values: Iterable[Any], **options: Any) -> list[Out]:
        """The results for several values, in order. One error withdraws the others and is raised.

        Any number of values: a few batches' worth are queued at a time, as the queue has room.
        `deadline_ms` is that of all of them.
        """
        return await self._many(self.submit, values, options)

    async def explain_many(self, values: Iterable[Any], **options: Any) -> list[Explained[Out]]:
        """`many`, each result with its explanation."""
        return await self._many(self.explain, values, options)

    async def _many(
        self,
        submit: Callable[..., Awaitable[Any]],
        values: Iterable[Any],
        options: Mapping[str, Any],
    ) -> list[Any]:
        rows = 1
        with self._entrance.refusals_reported():
            values = list(_each(values))
            deadline_at(0.0, options.get("deadline_ms"))  # a wrong one is refused here
            if self._parts.inputs.knows_rows:
                rows = max(map(self._parts.inputs.rows, values), default=1)

        async def call(value: Any, left_ms: float | None) -> Any:
            if left_ms is not None:
                return await submit(value, **{**options, "deadline_ms": left_ms})
            return await submit(value, **options)

        fan_out = self.fan_out(rows=rows, deadline_ms=options.get("deadline_ms"))
        return await fan_out.gather(call, values)

    def call(self, value: Any, **options: Any) -> Out:
        """`submit` for code without an event loop; from any thread."""
        with self._shell.lock:
            event_loop = self._shell.choose_loop()
        if event_loop.is_here:
            raise RuntimeError(
                f"{self.name}.call() would block the event loop that must answer it: use `await`"
            )
        future = asyncio.run_coroutine_threadsafe(self.submit(value, **options), event_loop.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # e.g. Ctrl-C: no caller waits for the answer
            raise

    async def stream(self, value: Any, **options: Unpack[CallKeywords]) -> AsyncIterator[Any]:
        """The chunks of one value's answer, as its batch produces them."""
        stream = await self.open_stream(value, **options)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            stream.close()

    async def open_stream(self, value: Any, **options: Unpack[CallKeywords]) -> OpenStream:
        """`stream`, once it is queued. The caller that opens it closes it."""
        if not self._parts.maker.streams:
            raise InvalidInput(f"{self.name} does not stream")
        entered_at, asked = now_here(), CallOptions.of(options)
        deadline = deadline_at(entered_at, asked.deadline_ms)
        call = await self._entrance.ask_stream(value, entered_at, asked)
        return OpenStream(call, self._entrance.withdraw, self._expire_at(call, deadline))

    def check_parameters(self, given: Mapping[str, Any]) -> None:
        """Raises InvalidInput for a parameter that the model does not take."""
        self._parts.inputs.check_parameters(given)

    def takes_parameter(self, name: str) -> bool:
        parameters = self._parts.inputs.parameters
        return parameters is not None and parameters.takes(name)

    def cut(self, value: Any, start: int, stop: int) -> Any:
        return self._parts.maker.cut(value, start, stop)

    def join(self, results: list[Any]) -> Any:
        return self._parts.maker.join(results)

    # ---- warming up and looking inside

    async def warm_up(
        self,
        *samples: Any,
        repeats: int = 3,
        limit_s: float = 30.0,
        _watcher: ProbeWatcher | None = None,
    ) -> CostTable:
        """Time the model on batches of these typical values, so that decisions rest on
        measurements.

        Before traffic. Give values of several lengths where length matters and `size=` is set.
        """
        return await self._parts.warm_up.measure(
            samples, repeats=repeats, limit_s=limit_s, watcher=_watcher
        )

    def limit_rows(self, rows: int) -> None:
        """Make no batch larger than this, because of memory. Call it before traffic."""
        self._parts.warm_up.limit_rows(rows)

    def learn(self, table: CostTable) -> None:
        """Use these batch times from now on, and forget earlier observations."""
        self._decider.learn(table)

    def weigh(self, tenants: Mapping[str, float]) -> None:
        """Use these weights of tenants from now on (absent: 1). Waiting items keep their place."""
        with self._shell.lock:
            policy = dataclasses.replace(self.policy, tenant_weights=dict(tenants))
            self._parts.maker.policy = policy
            self._decider.queue.scheduler.weigh(policy.tenant_weights)

    @property
    def is_open(self) -> bool:
        """Are calls accepted? False before it is entered, once it closes, after a crash, and while
        every worker is stuck or was given up."""
        return self._shell.takes_calls

    @property
    def trouble(self) -> str:
        """Why no call completes any more: a crash, workers given up or stuck, or callbacks that
        hang. Empty while it works, before it opens and after it closes."""
        crash, suspended = self._shell.crash, self._shell.suspended
        if crash is not None:
            return f"{self.name} crashed: {type(crash).__name__}: {crash}"
        if suspended is not None:
            return str(suspended)
        if self.is_stuck:
            return f"{self.name}: `prepare`, `size` or `finish` hang"
        return ""

    @property
    def is_stuck(self) -> bool:
        """Are new calls refused because `prepare`, `size` or `finish` hang, each in its own thread?
        They are until one of these comes back."""
        return self._parts.callbacks.is_stuck

    @property
    def placement(self) -> Placement:
        """Where the model runs, and why."""
        return self._parts.placement

    @property
    def worker_processes(self) -> "list[WorkerStatus]":
        """The status of each worker process; empty if the model runs in this one."""
        return [] if self._parts.maker.team is None else self._parts.maker.team.statuses

    @property
    def policy(self) -> Policy:
        """The settings in force."""
        return self._parts.maker.policy

    def observe(self, observer: Observer) -> None:
        """Report every event to this callable from now on, in the batcher's event loop."""
        self._parts.observers.add(observer)

    def follow(self, follower: Follower, *, is_optional: bool = False) -> None:
        """Call this with the ids of each call's items, in that call's own context, so that traces
        and logs know the batch of a request. `is_optional`: direct calls, which have no context,
        go on without it."""
        self._parts.followers.append(follower)
        self._parts.followers.need_context |= not is_optional

    def statistics(self) -> Statistics:
        return self._decider.statistics()


def _each(values: Iterable[Any]) -> Iterator[Any]:
    try:
        return iter(values)
    except TypeError:  # also for an array of no dimension, which claims to be iterable
        kind = type(values).__name__
        raise InvalidInput(f"many() takes the values of several calls, not {kind}") from None
