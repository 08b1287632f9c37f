"""A model from the configuration, on a batcher of its own: what every front end calls."""

import asyncio
import dataclasses
import functools
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from headway.config import ModelConfig, check_kind
from headway.core.costs import CostTable
from headway.core.lifecycle.health import Health, health_of
from headway.errors import ConfigError, InvalidInput, QueueFull, Shed
from headway.hosting.in_use import InUse
from headway.hosting.making import (
    batcher_of,
    check_dtypes,
    devices_of,
    meaning_of_items_in,
    placement_of,
    read_signature,
    tell_batch_size,
    with_decorator,
    workers_of,
)
from headway.hosting.registry import PLAIN, Array, Ask, WorkerLine
from headway.hosting.rows import (
    as_row,
    drop_batch_axis,
    made_without_batch_axis,
    rows_of,
    samples_for,
    whole_arrays,
    with_rows,
    without_rows,
)
from headway.hosting.statistics import ModelStatistics
from headway.hosting.streaming import ServedStream
from headway.hosting.tables import ModelOrigin
from headway.hosting.warm_up import Beside, WarmUp, samples_from
from headway.model import Model, Tensor, TensorModel, overrides
from headway.models import catalogue
from headway.models.catalogue import AnyModel
from headway.models.chat.model import LanguageModel
from headway.observe.history import ModelHistory
from headway.runtime.batching.batcher import Batcher
from headway.runtime.calling.threads import run_in_thread
from headway.runtime.driving.calls import DirectCall
from headway.runtime.driving.event_loop import EventLoop
from headway.runtime.driving.streams import OpenStream
from headway.runtime.events import Observer
from headway.signature import Decoded, ParameterHints, Signature, side_of

if TYPE_CHECKING:
    from headway.hosting.generation.language import Language

T = TypeVar("T")
_log = logging.getLogger(__name__)
_WHERE = {"inline": "the event loop", "thread": "threads", "process": "processes of its own"}
_MANY_ROWS = 4096  # more rows are converted in a thread, because that takes milliseconds


class Served(InUse):
    """A model that is served, between `start()` and `close()`."""

    language: "Language | None" = None

    def __init__(
        self,
        config: ModelConfig,
        *,
        model: Model[Any, Any] | TensorModel | None = None,
        version: str = "1",
        origin: ModelOrigin | None = None,
        adjust: Callable[[ModelConfig], ModelConfig] | None = None,  # after the decorator's options
    ) -> None:
        super().__init__()
        self._origin = origin or ModelOrigin()
        model, remake = _made(config, model, self._origin.make)
        self.model = model
        self._has_rows = getattr(model, "batch_axis", True)
        config = with_decorator(config, self.model)
        self.config = config = config if adjust is None else adjust(config)
        check_kind(config, generates=False)
        remake = tell_batch_size(model, config, remake)  # makes it again, in another process
        self.name = config.name
        self.version = version
        self._limit_ms = config.timeout_ms  # every call has a deadline; the direct way knows none
        self.statistics: ModelStatistics | None = None
        self.history: ModelHistory | None = None
        self.costs: CostTable | None = None  # as timed at start
        # No signature: a tensor model, which is its own.
        self.signature, self.inputs, self.outputs = read_signature(model)
        self._parameters = ParameterHints.of(self.model)
        check_dtypes([*self.inputs, *self.outputs])
        self.media_type: str = getattr(self.model, "media_type", "")
        self.meaning_of_items = meaning_of_items_in(self.signature, self.inputs)
        self.labels: Mapping[str, Sequence[str]] | None = getattr(self.model, "labels", None)
        self.streams = overrides(self.model, "stream")
        self.only_streams = self.streams and not overrides(self.model, "predict")
        # A call goes through another thread before it is queued, or before it is answered.
        self._comes_late = any(overrides(self.model, each) for each in ("prepare", "finish"))
        placement = placement_of(self.model, config)
        # A file that was exported with a fixed number of rows runs at that number only.
        sizes: tuple[int, ...] = config.batch_sizes or getattr(self.model, "batch_sizes", ())
        if self._has_rows:
            self.max_batch_size = most = min((config.max_batch_size, *sizes[-1:]))
        else:
            self.max_batch_size, most, sizes = 0, 1, ()  # 0 is v2's word for it
        self._is_ready = False
        self.clock: Callable[[], float] = time.monotonic
        self.batcher: Batcher[Any, Any] = batcher_of(
            self.model,
            config,
            max_batch_size=most,
            batch_sizes=sizes,
            worker=placement.kind,
            make=remake,
        )
        _log.info("%s runs in %s: %s", self.name, _WHERE[placement.kind], placement.reason)

    @property
    def is_ready(self) -> bool:
        return self._is_ready and self.batcher.is_open and not self.batcher.is_stuck

    @property
    def unready(self) -> str:
        """The reason for clients; the model's own error is in the log only."""
        if self.batcher.is_stuck:
            return "its calls hang"
        return "it has failed" if self.trouble else "it is being loaded or unloaded"

    @property
    def health(self) -> Health:
        batcher = self.batcher
        return health_of(
            is_warm=self._is_ready, is_open=batcher.is_open, is_in_trouble=bool(batcher.trouble)
        )

    @property
    def trouble(self) -> str:
        """The reason why nothing completes any more; empty: it does, or will."""
        return self.batcher.trouble

    def json_schemas(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The schemas of the inputs and outputs of `predict`."""
        if self.signature is not None:
            return self.signature.input.json_schema(), self.signature.output.json_schema()
        takes, gives = self._rows_first(self.inputs), self._rows_first(self.outputs)
        return side_of(takes).json_schema(), side_of(gives).json_schema()

    def workers(self) -> list[WorkerLine]:
        return workers_of(self.name, self.version, self.batcher)

    def devices(self) -> list[str]:
        return devices_of(self.model, self.config.pin, self.batcher.policy.workers)

    # ---- life

    async def start(self) -> None:
        """Load and warm up; ready afterwards. Raises what the model raises."""
        await self.load()
        await self.warm()

    async def load(self) -> None:
        self.clock = EventLoop(asyncio.get_running_loop()).clock
        await self.batcher.__aenter__()

    async def warm(self, beside: Beside | None = None) -> None:
        """`beside`: other models that serve meanwhile, and must not be slowed down."""
        if self.config.warm_up and not self.model.uses:  # those that it uses are, by themselves
            await self._warm_up(beside)
        self._is_ready = True

    def looks_like(self, other: Any) -> bool:
        """Are both the same, as far as one can see from outside? Then batch times may be reused."""
        return isinstance(other, Served) and self._looks() == other._looks()

    def _looks(self) -> tuple[object, ...]:
        config = self.config
        runs = (config.max_batch_size, config.batch_sizes, config.worker, config.workers)
        return ([*self.inputs], [*self.outputs], config.options, *runs)

    def observe(self, observer: Observer) -> None:
        self.batcher.observe(observer)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Set the weights of the keys' tenants; the model's own settings take precedence."""
        self.batcher.weigh({**weights, **self.config.tenants})

    async def close(self, *, drain_s: float | None = 30.0) -> None:
        self._is_ready = False
        await self.batcher.close(drain_s=drain_s)

    @property
    def is_busy(self) -> bool:
        if super().is_busy:
            return True
        now = self.batcher.statistics()
        return bool(now.queued_items or now.running_batches)

    @property
    def idle_s(self) -> float:
        answered = math.inf if self.statistics is None else self.statistics.idle_s
        return min(super().idle_s, answered)

    # ---- calling

    async def infer(self, inputs: Mapping[str, Array], ask: Ask) -> Mapping[str, Array]:
        """Run named arrays, rows first. One row that fails fails all, and withdraws the others."""
        if self._limit_ms is not None:
            ask = ask.within(self._limit_ms)
        rows = rows_of(inputs) if self._has_rows else 1
        if ask.allowance is not None:
            ask.pay(max(rows, 1))
        if self.signature is None:
            if ask is PLAIN and rows == 1:
                return await self._recorded(1, self.batcher.submit_row(inputs))
            return await self._recorded(rows, self._infer_rows(inputs, rows, ask))
        return await self._recorded(rows, self._infer_items(self.signature, inputs, ask))

    async def _recorded(self, rows: int, call: Coroutine[Any, Any, T]) -> T:
        started = self.clock()
        try:
            result = await call
        except BaseException as error:
            self.record(rows, started, error)
            raise
        self.record(rows, started, None)
        return result

    async def predict(self, value: Any, ask: Ask) -> Any:
        """Run one value as decoded from JSON. The result may contain numpy arrays."""
        if self._limit_ms is not None:
            ask = ask.within(self._limit_ms)
        if ask.allowance is not None:
            ask.pay(1)
        return await self._recorded(1, self._predict(value, ask))

    async def submit(self, value: Any, ask: Ask) -> Any:
        """Run one Python value from a model that calls this one; nothing is decoded. A model over
        arrays also takes whole batches, as its own `predict` does, and then returns whole
        batches."""
        is_over_arrays = self.signature is None and self._has_rows
        arrays = whole_arrays(value, self.inputs) if is_over_arrays else None
        if arrays is not None:
            return await self.infer(arrays, ask)
        return await self._recorded(1, self._submit(value, ask))

    async def submit_many(self, values: Sequence[Any], ask: Ask) -> list[Any]:
        """Run several values: the first error withdraws the others."""

        async def call(index: int, left_ms: float | None) -> Any:
            asked = ask if left_ms is None else dataclasses.replace(ask, deadline_ms=left_ms)
            return await self.submit(values[index], asked)

        with self.held():
            fan_out = self.batcher.fan_out(deadline_ms=ask.deadline_ms)
            return await fan_out.gather(call, range(len(values)), keep_errors=False)

    async def predict_many(
        self, values: Sequence[Any], asks: Ask | Sequence[Ask], *, keep_errors: bool = False
    ) -> list[Any]:
        # There may be many thousands: nothing is allocated for one before its turn.
        one = asks if isinstance(asks, Ask) else None
        each = () if isinstance(asks, Ask) else asks

        async def call(index: int, left_ms: float | None) -> Any:
            ask = each[index] if one is None else one
            if left_ms is not None:
                ask = dataclasses.replace(ask, deadline_ms=left_ms)
            started = self.clock()
            try:
                result = await self._predict(values[index], ask)
            except (QueueFull, Shed):  # only held back, unless it was the first
                raise
            except BaseException as error:
                self.record(1, started, error)
                raise
            self.record(1, started, None)
            return result

        asks = each if one is None else (one,)
        for ask in asks[:1]:  # options are the same for all values of a request
            ask.pay(len(values))
            self.batcher.check_parameters(self._options(ask).get("parameters", {}))
        started = self.clock()
        deadline_ms = min((ask.deadline_ms or math.inf for ask in asks), default=math.inf)
        fan_out = self.batcher.fan_out(deadline_ms=deadline_ms if deadline_ms < math.inf else None)
        with self.held():  # most of them are queued later
            try:
                return await fan_out.gather(call, range(len(values)), keep_errors=keep_errors)
            except (QueueFull, Shed) as error:
                self.record(1, started, error)
                raise

    def stream(self, value: Any, ask: Ask) -> AsyncIterator[Any]:
        ask.pay(1)
        return ServedStream(self, value, ask.within(self._limit_ms))

    async def open_stream(self, value: Any, ask: Ask) -> OpenStream:
        if self.signature is None:
            raise InvalidInput(f"{self.name} does not stream")
        value = self._decoded(self.signature, value)
        return await self.batcher.open_stream(value, **self._options(ask))

    def takes_parameter(self, name: str) -> bool:
        return self.batcher.takes_parameter(name)

    @property
    def is_simple(self) -> bool:
        """Whether values of the plain route may take the direct path, queued as they are."""
        is_over_values = self.signature is not None and not self.only_streams
        return is_over_values and self.batcher.is_uniform and self._limit_ms is None

    @property
    def is_direct(self) -> bool:
        return self.signature is None and self.batcher.is_uniform and self._limit_ms is None

    def submit_direct(self, call: DirectCall) -> bool:
        return self._is_ready and self.batcher.submit_direct(call)

    def withdraw(self, call: DirectCall) -> None:
        self.batcher.withdraw(call)

    async def _infer_rows(
        self, inputs: Mapping[str, Array], rows: int, ask: Ask
    ) -> Mapping[str, Array]:
        outputs: Mapping[str, Array]
        if rows <= self.batcher.policy.window_rows:
            outputs = await self._ask_batcher(inputs, ask)
        else:
            with self.held():  # most of them are queued later
                outputs = await self._ask_batcher(inputs, ask)
        return outputs

    async def _infer_items(
        self, signature: Signature, inputs: Mapping[str, Array], ask: Ask
    ) -> Mapping[str, Array]:
        self._check_answers()
        if rows_of(inputs) > _MANY_ROWS:
            values = await run_in_thread(signature.input.values, inputs)
        else:
            values = signature.input.values(inputs)
        if len(values) == 1 and not self._comes_late:
            results = [await self._ask_batcher(values[0], ask)]
        else:
            with self.held():
                options, story = self._options(ask), ask.story
                if story is None:
                    results = await self.batcher.many(values, **options)
                else:
                    results = await story.many(self.batcher, values, options)
        if len(results) > _MANY_ROWS:
            return await run_in_thread(signature.output.arrays, results)
        return signature.output.arrays(results)

    async def _predict(self, value: Any, ask: Ask) -> Any:
        if self.signature is None:
            return await self._submit(value, ask)
        result = await self._submit(self._decoded(self.signature, value), ask)
        self.signature.output.check(result)
        return result

    async def _submit(self, value: Any, ask: Ask) -> Any:
        if self.signature is not None:
            self._check_answers()
            if not self._comes_late:
                return await self._ask_batcher(value, ask)
            with self.held():
                return await self._ask_batcher(value, ask)
        row = value.get() if type(value) is Decoded else self._row(value)
        results = await self._ask_batcher(row, ask)
        named = {name: array[0] if self._has_rows else array for name, array in results.items()}
        return named if len(named) > 1 else next(iter(named.values()))

    @staticmethod
    def _decoded(signature: Signature, value: Any) -> Any:
        return value.get() if type(value) is Decoded else signature.input.decode(value)

    async def _ask_batcher(self, value: Any, ask: Ask) -> Any:
        if ask.story is None:
            return await self.batcher.submit(value, **self._options(ask))
        return await ask.story.submit(self.batcher, value, self._options(ask))

    def _options(self, ask: Ask) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if ask is PLAIN:
            return options
        if ask.adapter:
            raise InvalidInput(f"Headway-Adapter: model {self.name!r} has no adapters")
        if ask.priority != "normal":
            options["priority"] = ask.priority
        if ask.deadline_ms is not None:
            options["deadline_ms"] = ask.deadline_ms
        if ask.tenant:
            options["tenant"] = ask.tenant
        if ask.partition is not None:
            options["partition"] = ask.partition
        if ask.parameters:
            options["parameters"] = self._parameters.convert(ask.parameters)
        return options

    def _check_answers(self) -> None:
        if self.only_streams:
            raise InvalidInput(
                f"{self.name} only streams: ask /v1/predict/{self.name} with one value, or "
                "generate_stream"
            )

    def record(self, rows: int, started: float, error: BaseException | None) -> None:
        if self.statistics is not None:
            seconds = self.clock() - started
            self.statistics.record_request(rows=rows, seconds=seconds, error=error)

    # ---- starting

    async def _warm_up(self, beside: Beside | None) -> None:
        decode = self.signature.input.decode if self.signature is not None else self._row
        samples: Sequence[Any]
        if self._origin.samples is not None:
            samples = await run_in_thread(samples_from, self._origin.samples, decode)
        else:
            samples = samples_for(
                self.model, self.signature, self.inputs, only_streams=self.only_streams
            )
        plan = WarmUp(
            samples,
            self.config.warm_up_s,
            self._origin.table_store(self.config, self.model, self.max_batch_size),
            is_strict=self._origin.samples is not None,
            beside=beside,
        )
        warmth = await plan.run(self.name, self.batcher, self.max_batch_size or 1)
        if warmth is not None:
            self.costs = warmth.table
            self.max_batch_size = min(self.max_batch_size, warmth.max_rows or self.max_batch_size)

    def _row(self, value: Any) -> dict[str, Array]:
        row = as_row(value, self.inputs)
        return row if self._has_rows else without_rows(row)

    def _rows_first(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return tensors if self._has_rows else with_rows(tensors)


def _made(
    config: ModelConfig,
    model: Model[Any, Any] | TensorModel | None,
    make: Callable[[], AnyModel] | None,
) -> tuple[Model[Any, Any] | TensorModel, Callable[[], AnyModel] | None]:
    """The model, and how a worker makes another; None: only the given one can be used."""
    if model is None:
        make = make or functools.partial(catalogue.build, config.target, config.options)
        made = make()
        if isinstance(made, LanguageModel):
            raise ConfigError(f"{config.name} is a language model; only `headway serve` runs it")
        model = made
    if config.max_batch_size == 0:
        drop_batch_axis(model)
        make = make and functools.partial(made_without_batch_axis, make)
    return model, make
