"""A language model being served: the face that front ends and the keeper know from other models.

Its engine runs in a process of its own or, where those are not supported, in a thread of this one;
the log shows which. The seam is `Engine` in `frontend.py`: sequences go in, one message a
step comes back.
"""

import asyncio
import dataclasses
import json
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.config import ModelConfig, check_kind
from headway.core.costs import CostTable
from headway.core.generation.options import NAMES, generation_options
from headway.core.lifecycle.health import Health, health_of
from headway.core.lifecycle.placement import place_engine, process_setting
from headway.errors import Closed, HeadwayError, InvalidInput, ModelFailed, without_frames
from headway.hosting.explaining import Story
from headway.hosting.generation.adapter_folder import AdapterFolder, start_adapters
from headway.hosting.generation.engine import EngineModel
from headway.hosting.generation.frontend import Front
from headway.hosting.generation.language import Language
from headway.hosting.generation.pieces import AnswerPiece, Generation
from headway.hosting.in_use import InUse
from headway.hosting.registry import Array, Ask, ItemsMean, ServedModel, WorkerLine
from headway.hosting.statistics import ModelStatistics
from headway.hosting.streaming import ServedStream
from headway.hosting.warm_up import Beside
from headway.model import Tensor
from headway.models.chat.model import ENGINE_MODULE, LanguageModel
from headway.observe.generation import GenerationNow, GenerationRecorder
from headway.observe.history import ModelHistory
from headway.runtime.calling.threads import run_in_thread
from headway.runtime.driving.calls import DirectCall
from headway.runtime.driving.streams import OpenStream
from headway.runtime.events import Crashed, Event, Observer, Stopped
from headway.runtime.generation.adapter_book import AdapterBook
from headway.runtime.generation.loop import StepRunner
from headway.runtime.generation.messages import Welcome
from headway.runtime.generation.thread import GenerationThread
from headway.runtime.workers import HAS_PROCESSES
from headway.signature import Decoded, Signature, side_of

if TYPE_CHECKING:
    from headway.runtime.generation.process import EngineProcess


_log = logging.getLogger(__name__)
_INPUTS = (Tensor("text_input", "object", (-1,)),)
_OUTPUTS = (Tensor("text_output", "object", (-1,)),)
_SIGNATURE = Signature(side_of(_INPUTS, str), side_of(_OUTPUTS, str), str, str)
_MOST_WAITING = 30.0  # seconds for the step that runs when it is closed


class ServedGenerator(InUse):
    """A language model that is served, between `load()` and `close()`."""

    inputs: Sequence[Tensor] = _INPUTS
    outputs: Sequence[Tensor] = _OUTPUTS
    signature: Signature | None = _SIGNATURE
    streams = True
    only_streams = False
    is_direct = is_simple = False
    meaning_of_items: ItemsMean = "several"
    media_type = ""
    labels: Mapping[str, Sequence[str]] | None = None
    costs: CostTable | None = None
    history: ModelHistory | None = None

    def __init__(self, config: ModelConfig, model: LanguageModel, *, version: str = "1") -> None:
        super().__init__()
        check_kind(config, generates=True)
        self.config = config
        self.model = model
        self.name = config.name
        self.version = version
        self.max_batch_size = config.max_sequences or 64  # until the engine is loaded
        self.statistics = ModelStatistics()
        self.recorder = GenerationRecorder()
        self.recorder.now = self.now
        self.language: Language | None = None  # once it is loaded
        self.clock: Callable[[], float] = time.monotonic
        self._weights = dict(config.tenants)
        self._observers: list[Observer] = []
        self.placement = place_engine(
            config.name,
            config.worker,
            needs_process=process_setting(config.worker_memory_mb, config.pin),
            has_processes=HAS_PROCESSES,
        )
        self._engine: GenerationThread | EngineProcess | None = None
        self._front: Front | None = None
        self._adapter_folder: AdapterFolder | None = None
        self._is_ready = self._is_closed = False

    # ---- life

    def observe(self, observer: Observer) -> None:
        self._observers.append(observer)

    async def start(self) -> None:
        await self.load()
        await self.warm()

    async def load(self) -> None:
        """Raises what the engine raises."""
        text = await run_in_thread(self.model.text)
        config = self.config
        options = {
            "max_context": config.max_context,
            "max_sequences": config.max_sequences,
            "step_tokens": config.step_tokens or 512,
            "kv_cache_gib": config.kv_cache_gib,
            "dtype": config.dtype,
            "device": config.device,
            "quantization": config.quantization,
            "adapter_slots": config.adapter_slots,
            "max_adapter_rank": config.max_adapter_rank,
            "adapters": bool(config.adapters or config.adapter_folder or config.adapter_slots),
        }

        engine = EngineModel(self.model, options, max_queue=config.max_queue, weights=self._weights)
        front = Front(
            text,
            self.recorder,
            AdapterBook(self.name, most=config.max_adapters),
            is_shared=config.share_prefixes,
            idle=self._look_whether_left,
            history=self.history,
        )
        start = self._start_process if self.placement.kind == "process" else self._start_thread
        welcome = await start(engine, front)
        limits = welcome.limits
        self.max_batch_size = limits.max_sequences
        self.language = await run_in_thread(
            lambda: Language(
                text,
                vocabulary=welcome.vocabulary,
                max_context=limits.max_context,
                has_grammars=welcome.has_grammars,
            )
        )
        assert self._engine is not None
        front.connect(self._engine, max_context=limits.max_context)
        front.adapters.connect(self._engine)
        self._front = front
        self._adapter_folder = await start_adapters(front.adapters, config)
        where = "a process of its own" if self.placement.kind == "process" else "a thread"
        _log.info(
            "%s runs in %s (%s), %s: %d tokens of context, %d sequences, a cache of %d tokens",
            *(self.name, where, self.placement.reason, welcome.computes),
            *(limits.max_context, limits.max_sequences, limits.blocks * limits.block_size),
        )

    async def _start_process(self, engine: EngineModel, front: Front) -> Welcome:
        from headway.runtime.generation.process import EngineProcess
        from headway.runtime.workers.process.options import ProcessOptions

        options = ProcessOptions.of(self.config, imports=(ENGINE_MODULE,))
        self._engine = process = EngineProcess(
            self.name, engine, options, report=front.deliver, tell=self._tell
        )
        return await process.start()

    async def _start_thread(self, engine: EngineModel, front: Front) -> Welcome:
        def make_engine() -> StepRunner:
            engine.load()
            return engine.engine

        self._engine = thread = GenerationThread(make_engine, front.report)
        await run_in_thread(thread.start)
        thread.on_end(lambda failure: self._ended(front, failure))
        return Welcome(
            thread.limits, thread.vocabulary, engine.has_grammars, engine.engine.computes
        )

    async def warm(self, beside: Beside | None = None) -> None:
        """Generate one short answer, so that the first caller does not wait for one-time work."""
        if self.config.warm_up:
            prompt = (next(iter(self.language.text.stop_ids), 0),) if self.language else (0,)
            options = generation_options({"max_tokens": 2, "temperature": 0, "ignore_eos": True})
            stream = await self.open_stream(Generation((prompt,), options), Ask())
            async for _ in stream:
                pass
            self.recorder.reset()
        self._is_ready = True

    def _ended(self, front: Front, failure: BaseException | None) -> None:
        """The engine has ended. Called in its thread."""
        if failure is not None:
            front.call_soon(lambda: self._tell(Crashed(self.name, failure)))

    def _tell(self, event: Event) -> None:
        for observer in list(self._observers):
            observer(event)

    async def close(self, *, drain_s: float | None = 30.0) -> None:
        self._is_ready, self._is_closed = False, True
        now = asyncio.get_running_loop().time()
        await self._wait_left(None if drain_s is None else now + drain_s)
        if self._adapter_folder is not None:
            await self._adapter_folder.close()
        if self.language is not None:
            self.language.close()
        if self._engine is None:
            return
        if isinstance(self._engine, GenerationThread):
            await run_in_thread(self._engine.close, _MOST_WAITING)
        else:
            await self._engine.close()
        self._tell(Stopped(self.name, 0))

    @property
    def _is_needed(self) -> bool:
        return self.is_busy

    def looks_like(self, other: object) -> bool:
        return False  # nothing that one learns is handed to another

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Set the tenants' weights, for requests from now on."""
        self._weights = {**weights, **self.config.tenants}
        if self._engine is not None and self._engine.is_open:
            self._engine.weigh(self._weights)

    # ---- what is

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered now: not while the engine is being restarted."""
        engine = self._engine
        return self._is_ready and not self.trouble and engine is not None and engine.is_up

    @property
    def trouble(self) -> str:
        engine = self._engine
        return "" if engine is None or self._is_closed else engine.trouble

    @property
    def unready(self) -> str:
        if self.trouble:
            return "its engine has failed too often"
        return "its engine is restarting" if self._is_ready else "it is being loaded or unloaded"

    @property
    def health(self) -> Health:
        is_open = not self._is_closed
        return health_of(is_warm=self._is_ready, is_open=is_open, is_in_trouble=bool(self.trouble))

    @property
    def is_busy(self) -> bool:
        return super().is_busy or (self._front is not None and self._front.is_busy)

    def workers(self) -> list[WorkerLine]:
        line = (self.name, self.version)
        engine = self._engine
        if engine is None or isinstance(engine, GenerationThread):
            state = "ready" if self.is_ready else "stopped"
            return [WorkerLine(*line, os.getpid(), state, 0, self.trouble)]
        status = engine.status
        return [WorkerLine(*line, status.pid, status.state, status.restarts, status.last_error)]

    def now(self) -> GenerationNow | None:
        """The present state, for metrics; None: it is closed."""
        if self._is_closed or self._engine is None or self.language is None:
            return None
        load = self._engine.load
        usage = load.blocks_used / load.blocks
        running, waiting = load.running, load.waiting
        return GenerationNow(running, waiting, usage, load.preemptions, self.max_batch_size)

    def devices(self) -> list[str]:
        return [""]

    def json_schemas(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return _SIGNATURE.input.json_schema(), _SIGNATURE.output.json_schema()

    # ---- adapters

    @property
    def adapters(self) -> AdapterBook:
        if self._front is None:
            raise Closed(f"{self.name} is not loaded")
        return self._front.adapters

    def adapter_names(self) -> list[str]:
        return [] if self._front is None else [each.name for each in self._front.adapters.entries()]

    def adapted(self, name: str) -> "AdaptedModel | None":
        """The model as one adapter's name has it."""
        if self._front is None or name not in self._front.adapters:
            return None
        return AdaptedModel(self, name)

    # ---- calling

    def takes_parameter(self, name: str) -> bool:
        return name in NAMES

    def stream(self, value: Any, ask: Ask) -> AsyncIterator[Any]:
        """The pieces of a `Generation`, or the text for a prompt (a text, messages, token ids)."""
        ask.pay(1)
        return ServedStream(self, value, ask.within(self.config.timeout_ms))

    async def open_stream(self, value: Any, ask: Ask) -> OpenStream:
        if self._front is None or self.language is None:
            raise Closed(f"{self.name} is not loaded")
        if isinstance(value, Decoded):
            value = value.get()
        if isinstance(value, Generation):
            if ask.parameters:
                name = next(iter(ask.parameters))
                raise InvalidInput(f"{name}: is an unknown option")
            self.language.check_named(value.options)
            return self._front.open(value, ask)
        generation = await self._generation_of(value, ask.parameters or {})
        return _Texts(await self.open_stream(generation, _without_parameters(ask)), ask.story)

    async def _generation_of(self, value: Any, parameters: Mapping[str, Any]) -> Generation:
        assert self.language is not None
        ids = await self.language.read(value)
        given = {name: _value(name, each) for name, each in parameters.items()}
        return Generation((tuple(ids),), generation_options({**self.language.defaults, **given}))

    async def predict(self, value: Any, ask: Ask) -> Any:
        """The whole text."""
        ask.pay(1)
        return await self._predict(value, ask)

    async def _predict(self, value: Any, ask: Ask) -> str:
        stream = ServedStream(self, value, ask.within(self.config.timeout_ms))
        texts: list[str] = []
        try:
            async for text in stream:
                texts.append(text)
        finally:
            await stream.aclose()
        return "".join(texts)

    async def predict_many(
        self, values: Sequence[Any], asks: Ask | Sequence[Ask], *, keep_errors: bool = False
    ) -> list[Any]:
        async def one(value: Any, ask: Ask) -> Any:
            try:
                return await self._predict(value, ask)
            except HeadwayError as error:
                if keep_errors:
                    # Where the model raised is still to be logged.
                    return without_frames(error, with_causes=not isinstance(error, ModelFailed))
                raise

        each_ask = [asks] * len(values) if isinstance(asks, Ask) else asks
        for ask in each_ask[:1]:
            ask.pay(len(values))
        with self.held():
            try:
                async with asyncio.TaskGroup() as group:
                    pairs = zip(values, each_ask, strict=True)
                    tasks = [group.create_task(one(*pair)) for pair in pairs]
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def infer(self, inputs: Mapping[str, Array], ask: Ask) -> Mapping[str, Array]:
        values = _SIGNATURE.input.values(inputs)
        return _SIGNATURE.output.arrays(await self.predict_many(values, ask))

    def submit_direct(self, call: DirectCall) -> bool:
        return False

    def withdraw(self, call: DirectCall) -> None:
        raise AssertionError("no request of it takes the direct path")

    def record(self, rows: int, started: float, error: BaseException | None) -> None:
        seconds = self.clock() - started
        self.statistics.record_request(rows=rows, seconds=seconds, error=error)


class _Texts(OpenStream):
    """The texts of one answer's pieces."""

    __slots__ = ("_pieces", "_story")

    def __init__(self, pieces: OpenStream, story: Story | None) -> None:
        self._pieces = pieces
        self._story = story
        self.source = self
        self.take = self._take
        self.is_waiting = pieces.is_waiting
        self.is_at_end = pieces.is_at_end

    async def __anext__(self) -> Any:
        while True:
            piece: AnswerPiece = await anext(self._pieces)
            if self._seen(piece):
                return piece.text

    def attach(self, reader: Callable[[], None] | None) -> None:
        self._pieces.attach(reader)

    def close(self) -> None:
        self._pieces.close()

    def _take(self, most_bytes: float = math.inf) -> list[Any]:
        return [piece.text for piece in self._pieces.take(most_bytes) if self._seen(piece)]

    def _seen(self, piece: AnswerPiece) -> bool:
        if piece.met is not None and self._story is not None:
            self._story.tell([piece.met])
        return bool(piece.text)


def _without_parameters(ask: Ask) -> Ask:
    return dataclasses.replace(ask, parameters=None) if ask.parameters else ask


def _value(name: str, value: Any) -> Any:
    """A query or a v2 parameter has text for what is a number or a list."""
    if not isinstance(value, str) or name == "cache_salt":
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


class AdaptedModel:
    """A model with an adapter. Made for a request; the model itself does the work."""

    def __init__(self, model: ServedModel, adapter: str) -> None:
        self._model = model
        self.name = adapter

    def stream(self, value: Any, ask: Ask) -> AsyncIterator[Any]:
        return self._model.stream(value, self._adapted(ask))

    async def predict(self, value: Any, ask: Ask) -> Any:
        return await self._model.predict(value, self._adapted(ask))

    async def predict_many(
        self, values: Sequence[Any], asks: Ask | Sequence[Ask], *, keep_errors: bool = False
    ) -> list[Any]:
        adapted: Ask | list[Ask]
        if isinstance(asks, Ask):
            adapted = self._adapted(asks)
        else:
            adapted = [self._adapted(ask) for ask in asks]
        return await self._model.predict_many(values, adapted, keep_errors=keep_errors)

    async def infer(self, inputs: Mapping[str, Array], ask: Ask) -> Mapping[str, Array]:
        return await self._model.infer(inputs, self._adapted(ask))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _adapted(self, ask: Ask) -> Ask:
        if ask.adapter not in ("", self.name):
            raise InvalidInput(
                f"Headway-Adapter: {ask.adapter!r} cannot be combined with adapter {self.name!r}"
            )
        return dataclasses.replace(ask, adapter=self.name)
