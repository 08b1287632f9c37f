"""Models that call models: what `self.models["embed"]` is inside a served model.

Each call is queued and batched like a client's, with the deadline, priority and tenant of the
request in hand. It knows nothing of the wire.
"""

import asyncio
import contextvars
import dataclasses
import functools
import inspect
import math
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError
from typing import Any, Literal, Protocol

from headway.core.items import Priority
from headway.core.lifecycle.dependencies import find_cycle
from headway.errors import Closed, ConfigError, DeadlineExceeded, InvalidInput
from headway.hosting.registry import Ask, Registry
from headway.model import CANCEL, ModelHandle, overrides
from headway.runtime.jobs.cancel_token import BatchCancel, takes_cancel

_LEVELS: dict[Priority, Literal["high", "normal", "low"]] = {
    Priority.HIGH: "high",
    Priority.NORMAL: "normal",
    Priority.LOW: "low",
}
# The batch that the model's code is working on in this context.
_batch: contextvars.ContextVar[BatchCancel | None] = contextvars.ContextVar(
    "headway_batch", default=None
)


class Stages(Protocol):
    """Records every call from one model to another."""

    def record(self, *, model: str, stage: str, seconds: float, failed: bool) -> None: ...


def _absent(used: str, by: str, known: Sequence[str]) -> str:
    others = [each for each in sorted(known) if each != by]
    if others:
        return f"there is no model {used!r}; there are: {', '.join(others)}"
    return (
        f"there is no model {used!r}: serve it beside {by}, from a headway.toml with [[models]] "
        f'for each, or headway.serve({{"{by}": …, "{used}": …}})'
    )


class Uses:
    """Records which model of a server calls which."""

    def __init__(self, registry: Registry, stages: Stages | None = None) -> None:
        self._registry = registry
        self._stages = stages
        self._uses: dict[str, tuple[str, ...]] = {}

    def bind(self, name: str, model: Any, known: Sequence[str]) -> None:
        """Give the model what it uses, before it is loaded. Raises ConfigError for a name that
        there is not, and for a circle. Call it in the event loop that serves."""
        uses = self._uses[name] = uses_of(model)
        if not uses:
            return
        for used in uses:
            if used not in known:
                raise ConfigError(_absent(used, name, known), field="uses")
        circle = find_cycle(self._uses, name)
        if circle is not None:
            raise ConfigError(f"models call each other in a circle: {' → '.join(circle)}")
        loop = asyncio.get_running_loop()
        model.models = _Handles(
            name, {each: Handle(each, self._registry, loop, name, self._stages) for each in uses}
        )
        for method in ("predict", "stream"):
            if overrides(model, method):
                setattr(model, method, _noting_batch(getattr(model, method)))


def uses_of(model: object) -> tuple[str, ...]:
    """The models that this one declares in `uses`."""
    uses = getattr(model, "uses", ())
    if isinstance(uses, str):
        raise ConfigError(f'a list of names is expected: uses = ["{uses}"]', field="uses")
    return tuple(dict.fromkeys(uses))


class _Handles(Mapping[str, ModelHandle[Any, Any]]):
    """The handles of one model: only of models that it lists in `uses`."""

    def __init__(self, owner: str, handles: "Mapping[str, Handle]") -> None:
        self._owner = owner
        self._handles = handles

    def __getitem__(self, name: str) -> "Handle":
        found = self._handles.get(name)
        if found is None:
            uses = [*self._handles, name]
            raise ConfigError(f"{self._owner} does not list {name!r} in `uses`: uses = {uses}")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)


class Handle(ModelHandle[Any, Any]):
    """A model of the registry, in the version that answers at the moment of the call."""

    def __init__(
        self,
        name: str,
        registry: Registry,
        loop: asyncio.AbstractEventLoop,
        owner: str = "",
        stages: Stages | None = None,
    ) -> None:
        self.name = name
        self._registry = registry
        self._loop = loop
        # uvloop's own clock counts whole milliseconds.
        is_virtual = getattr(loop, "is_virtual", False)
        self._clock: Callable[[], float] = loop.time if is_virtual else time.monotonic
        self._owner = owner
        self._stages = stages

    async def __call__(
        self,
        value: Any,
        *,
        deadline_ms: float | None = None,
        priority: Literal["high", "normal", "low"] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> Any:
        ask = _inherited(deadline_ms, priority, parameters)
        return await self._timed(self._one(value, ask))

    async def many(self, values: Iterable[Any], **options: Any) -> list[Any]:
        return await self._many(_listed(values), options)

    async def _many(self, values: list[Any], options: Mapping[str, Any]) -> list[Any]:
        ask = _inherited(**options)
        found: list[Any] = await self._timed(self._several(values, ask))
        return found

    async def stream(self, value: Any, **options: Any) -> AsyncIterator[Any]:
        ask = _inherited(**options)
        served, ask = await self._ready(ask)
        parts = served.stream(value, ask)
        try:
            async for part in parts:
                yield part
        finally:
            close = getattr(parts, "aclose", None)
            if close is not None:
                await close()

    def call(self, value: Any, **options: Any) -> Any:
        return self._from_thread(self(value, **options))

    def call_many(self, values: Iterable[Any], **options: Any) -> list[Any]:
        # Here, in the model's thread: an iterable is its code, and may take long.
        listed = _listed(values)
        found: list[Any] = self._from_thread(self._many(listed, options))
        return found

    async def _one(self, value: Any, ask: Ask) -> Any:
        served, ask = await self._ready(ask)
        submit: Callable[[Any, Ask], Coroutine[Any, Any, Any]]
        submit = getattr(served, "submit", served.predict)
        return await submit(value, ask)

    async def _several(self, values: Sequence[Any], ask: Ask) -> list[Any]:
        served, ask = await self._ready(ask)
        submit = getattr(served, "submit_many", served.predict_many)
        found: list[Any] = await submit(values, ask)
        return found

    async def _ready(self, ask: Ask) -> tuple[Any, Ask]:
        """The version that answers, woken where it sleeps, for as long as the caller has time."""
        found = self._registry.find_ready(self.name)
        if found is not None:
            return found, ask
        started = self._loop.time()
        timeout_s = None if ask.deadline_ms is None else ask.deadline_ms / 1e3
        found = await self._registry.wait_ready(self.name, timeout_s=timeout_s)
        return found, ask.after(self._loop.time() - started)

    async def _timed(self, call: Coroutine[Any, Any, Any]) -> Any:
        started = self._clock()
        failed = True
        try:
            result = await call
            failed = False
            return result
        finally:
            if self._stages is not None:
                seconds = self._clock() - started
                self._stages.record(
                    model=self._owner, stage=self.name, seconds=seconds, failed=failed
                )

    def _from_thread(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Wait for the call in a thread of the model's. If nobody waits for the batch any more, the
        call is withdrawn and the thread gets Closed."""
        if _is_running(self._loop):
            call.close()
            raise RuntimeError(f"in the event loop: await self.models[{self.name!r}](…)")
        batch = _batch.get()
        # The task has a copy of this thread's context, with the batch in it.
        waiting = asyncio.run_coroutine_threadsafe(call, self._loop)
        if batch is not None:
            batch.watch(waiting.cancel)
        try:
            return waiting.result()
        except CancelledError:
            raise Closed("all callers of this batch have left") from None


def _listed(values: Iterable[Any]) -> list[Any]:
    """Raises InvalidInput for one value in the place of several; a text is one."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInput(f"a model takes the values of several calls here, not {values!r:.40}")
    return list(values)


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    return asyncio._get_running_loop() is loop


# ---- what a call inherits


def _inherited(
    deadline_ms: float | None = None,
    priority: Literal["high", "normal", "low"] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Ask:
    """The options of the batch in hand: the latest deadline of its items, their most urgent class,
    their tenant where they have one in common. Options of the call take precedence; of two
    deadlines the earlier counts."""
    batch = _batch.get()
    own = Ask(priority or "normal", deadline_ms, parameters=parameters or None)
    if batch is None:
        return own
    left_ms = batch.left_s * 1e3
    if left_ms <= 0:
        raise DeadlineExceeded("the deadline of the request has passed")
    if left_ms != math.inf:
        deadline_ms = left_ms if deadline_ms is None else min(left_ms, deadline_ms)
    tenants = {item.tenant for item in batch.items}
    return dataclasses.replace(
        own,
        priority=priority or _LEVELS[min(item.priority for item in batch.items)],
        deadline_ms=deadline_ms,
        tenant=tenants.pop() if len(tenants) == 1 else "",
    )


def _noting_batch(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which passes its batch on to the models that it calls. It takes the token that
    says when nobody waits any more, and hands it on to a method that takes it itself."""
    hands_on = takes_cancel(method)
    wrapped = _wrapped(method, lambda cancel: {CANCEL: cancel} if hands_on else {})
    functools.update_wrapper(wrapped, method)
    signature = inspect.signature(method)
    if not hands_on:
        keyword = inspect.Parameter(CANCEL, inspect.Parameter.KEYWORD_ONLY, default=None)
        parameters = list(signature.parameters.values())
        last = parameters[-1:] if parameters and parameters[-1].kind is keyword.VAR_KEYWORD else []
        signature = signature.replace(
            parameters=[*parameters[: len(parameters) - len(last)], keyword, *last]
        )
    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    return wrapped


def _wrapped(
    method: Callable[..., Any], more: Callable[[Any], dict[str, Any]]
) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(method):

        async def stream(*items: Any, cancel: Any = None, **keywords: Any) -> AsyncIterator[Any]:
            _batch.set(cancel)  # the task is the batch's own
            async for step in method(*items, **keywords, **more(cancel)):
                yield step

        return stream
    if inspect.iscoroutinefunction(method):

        async def predict(*items: Any, cancel: Any = None, **keywords: Any) -> Any:
            _batch.set(cancel)
            return await _unless_left(method(*items, **keywords, **more(cancel)), cancel)

        return predict

    def plain(*items: Any, cancel: Any = None, **keywords: Any) -> Any:
        token = _batch.set(cancel)
        try:
            found = method(*items, **keywords, **more(cancel))
            return _steps(found, cancel) if inspect.isgenerator(found) else found
        finally:
            _batch.reset(token)

    return plain


def _steps(steps: Iterator[Any], batch: BatchCancel | None) -> Iterator[Any]:
    """The steps one by one; between two of them the thread may work on another batch."""
    try:
        while True:
            token = _batch.set(batch)
            try:
                step = next(steps)
            except StopIteration:
                return
            finally:
                _batch.reset(token)
            yield step
    finally:
        steps.close()  # type: ignore[attr-defined]


async def _unless_left(call: Coroutine[Any, Any, Any], batch: BatchCancel | None) -> Any:
    """Ends once nobody waits for the batch any more; then its own calls end as well."""
    if batch is None:
        return await call
    loop = asyncio.get_running_loop()
    task = loop.create_task(call)
    batch.watch(lambda: loop.call_soon_threadsafe(task.cancel))
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        raise Closed("all callers of this batch have left") from None
