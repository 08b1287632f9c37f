"""The front's side of an engine in a process of its own, in the front's event loop.

It keeps all that a sequence needs to be resumed: the prompt, the sampling with its seed, and the
tokens so far. When an engine is lost, the next engine continues its sequences from there.
"""

import asyncio
import copy
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from headway.core.faults.supervision import WorkerState
from headway.core.generation.recovery import Recovery, SequenceMoves
from headway.core.generation.sampling import Sampling
from headway.core.generation.sequence import Sequence as Asked
from headway.errors import Closed, HeadwayError, ModelFailed, NotReady, Poison, QueueFull
from headway.runtime.calling.faults import WorkerLost
from headway.runtime.calling.threads import run_in_thread
from headway.runtime.events import Event, WorkerChanged
from headway.runtime.generation.connection import EngineConnection, SilenceWatch
from headway.runtime.generation.loaded_adapters import LoadAdapter, UnloadAdapter
from headway.runtime.generation.loop import (
    CallEngine,
    CancelSequence,
    Command,
    GenerationLoad,
    PlainTokens,
    SequenceOutput,
    SetWeights,
    SubmitSequence,
    never_ran,
)
from headway.runtime.generation.messages import PackedReport, Welcome, others_of, result_of
from headway.runtime.workers.process import current_model
from headway.runtime.workers.process.channel import Channel
from headway.runtime.workers.process.handle import ModelProcess
from headway.runtime.workers.process.options import ProcessOptions
from headway.runtime.workers.process.recipe import check_main, recipe_of
from headway.runtime.workers.process.worker import ProcessWorker, WorkerStatus

_log = logging.getLogger(__name__)
_STOP_S = 15.0
_RETRY_S = 60.0
_NO_TOKENS = PlainTokens([], [])


class EngineProcess:
    """Call `start` first and `close` last, all in one event loop."""

    def __init__(
        self,
        name: str,
        engine: Any,
        options: ProcessOptions,
        *,
        report: Callable[[PlainTokens, Sequence[SequenceOutput]], None],
        tell: Callable[[Event], None],
    ) -> None:
        """`engine`: is loaded in the other process, where its `serve` gets the connection.

        `report` gets the outputs of each step, `tell` the changes of the worker; both are called in
        the event loop.
        """
        self._name = name
        self._options = options
        self._recipe = recipe_of(engine)
        self._report = report
        self._emit = tell
        self._loop = asyncio.get_running_loop()
        # The present engine, and what it was sent.
        self._worker: ProcessWorker | None = None  # starts its process, again and again
        self._connection: EngineConnection | None = None  # None: it is being started
        self._watch = SilenceWatch(self._loop, options.execute_timeout_s, self._is_late)
        # Every message has its own number, so that a late one about an old sequence is recognised.
        self._numbers = itertools.count(1)
        self._sent: dict[int, _Entry] = {}  # the sequences it has, by message number
        self._answers: dict[int, asyncio.Future[Any]] = {}  # to calls, by message number
        # What outlives an engine.
        self._first_welcome: asyncio.Future[Welcome] = self._loop.create_future()
        self._unfinished: dict[int, _Entry] = {}  # all sequences, by id
        self._recovery = Recovery()  # decides which of them an engine gets after a loss
        self._weights: dict[str, float] | None = None  # of tenants
        self._adapter_folders: dict[str, str] = {}  # by adapter; the next engine loads them, too
        self._unloaded: set[str] = set()  # adapters to drop after their last sequence
        self._past_preemptions = 0  # by engines that were lost
        self._is_closing = False
        self._gave_up_because = ""  # why no engine comes back
        self.load = GenerationLoad(0, 0, 1, 0, 0)

    # ---- life

    async def start(self) -> Welcome:
        """Start the first engine. Raises the error of its load."""
        check_main()
        spec = self._options.spec(self._name, self._recipe, 0)
        self._worker = worker = ProcessWorker(spec, self._options, self, is_awaited=True)
        worker.start(_Turn(self))
        try:
            await asyncio.wrap_future(worker.started)
            return await asyncio.shield(self._first_welcome)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Unfinished sequences get `Closed`. No process is left."""
        self._is_closing = True
        self._watch.stop()
        worker = self._worker
        if worker is not None:
            worker.stop()
            await run_in_thread(worker.wait_stopped, _STOP_S)
        self._hang_up()
        self._end_all(Closed("the generator has stopped"))

    @property
    def is_open(self) -> bool:
        """Are sequences accepted? They are even while the engine restarts."""
        return not self._is_closing and not self._gave_up_because

    @property
    def is_up(self) -> bool:
        return self._connection is not None and self._connection.is_welcome

    @property
    def trouble(self) -> str:
        """Why no engine comes back; empty: an engine runs, or will."""
        return "" if self._is_closing else self._gave_up_because

    @property
    def status(self) -> WorkerStatus:
        assert self._worker is not None
        return self._worker.status

    # ---- sequences

    def submit(self, sequence: Asked, sampling: Sampling) -> None:
        """Send a sequence to the engine. Raises Closed, NotReady, QueueFull.

        If the scheduler refuses it, that is reported like any other end.
        """
        self._check_open()
        held = len(self._unfinished) - len(self._sent)
        if held and held >= self._first_welcome.result().limits.max_queue:
            limit = self._first_welcome.result().limits.max_queue
            raise QueueFull(f"the queue is full ({limit} sequences)", limit=limit)
        entry = self._unfinished[sequence.id] = _Entry(sequence, sampling)
        if self._recovery.enter(sequence.id, sequence.arrived_at, sequence.priority):
            self._send(entry)

    def cancel(self, sequence: int) -> None:
        """Cancel a sequence. Its end is reported."""
        entry = self._unfinished.get(sequence)
        if entry is None or entry.is_cancelled:
            return
        entry.is_cancelled = True
        if entry.number in self._sent:
            self._say(CancelSequence(entry.number))
        else:
            self._loop.call_soon(self._end_cancelled)

    def weigh(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        if self.is_up:
            self._say(SetWeights(self._weights))

    def call(self, method: str, *arguments: Any) -> "asyncio.Future[Any]":
        """Call a method of the engine, between two steps. Later engines do not repeat it."""
        return self._ask(lambda number: CallEngine(number, method, arguments))

    def load_adapter(self, adapter: str, folder: str) -> "asyncio.Future[Any]":
        """Load an adapter, here and in later engines. Resolves when sequences may name it."""

        def note(answer: "asyncio.Future[Any]") -> None:
            if not answer.cancelled() and answer.exception() is None:
                self._adapter_folders[adapter] = folder

        answer = self._ask(lambda number: LoadAdapter(number, adapter, folder))
        answer.add_done_callback(note)
        return answer

    def unload_adapter(self, adapter: str) -> "asyncio.Future[Any]":
        """Unload an adapter after its last sequence, on this engine or the next.

        If its folder is still being read, it is unloaded at once.
        """
        answer: asyncio.Future[Any] = self._loop.create_future()
        answer.set_result(None)
        if adapter in self._adapter_folders:
            self._unloaded.add(adapter)
            self._drop_if_unused(adapter)
        else:
            self._say_unload(adapter)
        return answer

    def _drop_if_unused(self, adapter: str) -> None:
        if all(each.sequence.adapter != adapter for each in self._unfinished.values()):
            del self._adapter_folders[adapter]
            self._unloaded.discard(adapter)
            self._say_unload(adapter)

    def _say_unload(self, adapter: str) -> None:
        if self.is_up:
            self._say(UnloadAdapter(next(self._numbers), adapter))

    def _ask(self, command: "Callable[[int], Command]") -> "asyncio.Future[Any]":
        self._check_open()
        if not self.is_up:
            raise NotReady(f"{self._name}: its engine is being started")
        number = next(self._numbers)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._answers[number] = answer
        self._say(command(number))
        return answer

    def _check_open(self) -> None:
        if self._is_closing:
            raise Closed("the generator has stopped")
        if self._gave_up_because:
            raise self._given_up()

    def _given_up(self) -> NotReady:
        return NotReady(
            f"{self._name} has no engine: {self._gave_up_because}", retry_after_s=_RETRY_S
        )

    def _send(self, entry: "_Entry") -> None:
        if not self._sent:
            self._watch.heard()  # the silence so far was expected
        entry.number = number = next(self._numbers)
        self._sent[number] = entry
        resumed = tuple(entry.tokens) if entry.was_sent else None
        entry.was_sent = True
        self._say(SubmitSequence(entry.sequence._replace(id=number), entry.sampling, resumed))
        self._watch.begin()

    def _say(self, command: Command) -> None:
        if self._connection is not None:
            self._connection.say(command)

    def _apply(self, change: SequenceMoves) -> None:
        for sequence in change.recall:
            entry = self._unfinished[sequence]
            self._sent.pop(entry.number, None)
            self._say(CancelSequence(entry.number))
        for sequence in change.send:
            self._send(self._unfinished[sequence])

    # ---- messages of the engine

    def hear(self, word: Any) -> None:
        if isinstance(word, Welcome):
            self._welcome(word)
            return
        self._watch.heard()
        step = PackedReport(*word)
        running, waiting, blocks, used, preemptions = step.load
        self.load = GenerationLoad(
            running, waiting, blocks, used, preemptions + self._past_preemptions
        )
        plain = self._plain(step)
        outputs: list[SequenceOutput] = []
        changes = self._others(step, outputs) if step.others else []
        if step.returned is not None:
            self._returned(*step.returned)
        if not plain.tokens and not outputs:
            return
        if self._connection is not None:
            self._connection.process.has_answered = True
        if self._recovery.is_watching:
            sequences = [*plain.sequences, *(each.sequence for each in outputs)]
            changes.append(self._recovery.progress(sequences))
        for change in changes:
            self._apply(change)
        self._report(plain, outputs)

    def _welcome(self, word: Welcome) -> None:
        assert self._connection is not None
        self._connection.is_welcome = True
        if not self._first_welcome.done():
            self._first_welcome.set_result(word)
        if self._is_closing:
            return
        self.load = GenerationLoad(0, 0, word.limits.blocks, 0, self._past_preemptions)
        if self._weights is not None:
            self._say(SetWeights(self._weights))
        for adapter, folder in self._adapter_folders.items():  # sequences wait until it is read
            answer = self._ask(partial(LoadAdapter, adapter=adapter, folder=folder))
            answer.add_done_callback(partial(self._loaded_again, adapter))
        for sequence in self._recovery.started():
            self._send(self._unfinished[sequence])

    def _loaded_again(self, adapter: str, answer: "asyncio.Future[Any]") -> None:
        error = None if answer.cancelled() else answer.exception()
        if error is not None and not isinstance(error, NotReady | Closed):
            _log.error("%s: adapter %s is lost with its engine: %s", self._name, adapter, error)

    def _plain(self, step: PackedReport) -> PlainTokens:
        """The hot path: every token comes through here."""
        sequences, tokens, sent = [], [], self._sent
        for number, token in zip(step.numbers, step.tokens, strict=True):
            entry = sent.get(number)
            if entry is not None:
                entry.tokens.append(token)
                sequences.append(entry.id)
                tokens.append(token)
        return PlainTokens(sequences, tokens)

    def _others(self, step: PackedReport, outputs: list[SequenceOutput]) -> list[SequenceMoves]:
        changes = []
        for number, token, logprobs, finished, error, cached in others_of(step):
            entry = self._sent.get(number)
            if entry is None:
                continue  # recalled, or of an engine that was lost
            sequence = entry.sequence.id
            if token is not None:
                entry.tokens.append(token)
            if finished is not None or error is not None:
                changes.append(self._forget(entry))
            own = None if finished is None else finished._replace(sequence=sequence)
            outputs.append(SequenceOutput(sequence, token, logprobs, own, error, cached))
        return changes

    def _forget(self, entry: "_Entry") -> SequenceMoves:
        self._sent.pop(entry.number, None)
        del self._unfinished[entry.sequence.id]
        if entry.sequence.adapter in self._unloaded:
            self._drop_if_unused(entry.sequence.adapter)
        return self._recovery.end(entry.sequence.id)

    def _returned(self, number: int, result: Any) -> None:
        answer = self._answers.pop(number, None)
        if answer is None or answer.done():
            return
        try:
            answer.set_result(result_of(result))
        except Exception as error:  # noqa: BLE001  the engine's; its caller gets it
            answer.set_exception(error)

    # ---- engines come and go

    def connected(self, process: ModelProcess, channel: Channel) -> None:
        """An engine was loaded, and will send its welcome."""
        self._connection = EngineConnection(self._loop, process, channel, self.hear)
        self._watch.begin()

    def disconnected(self, process: ModelProcess, reason: str, *, out_of_memory: bool) -> None:
        """The engine has ended. Its last messages are read first."""
        if self._connection is None or self._connection.process is not process:
            return
        self._connection.drain()
        self._hang_up()
        self._past_preemptions = self.load.preemptions
        self.load = self.load._replace(running=0, waiting=0, blocks_used=0)
        self._fail_calls(NotReady(f"{self._name}: its engine {reason}"))
        if self._is_closing:
            return
        assert self._worker is not None
        self._worker.start(_Turn(self))
        self._sent.clear()
        verdict = self._recovery.lost(out_of_memory=out_of_memory)
        poison = Poison(f"{self._name}: this prompt, alone on the engine, has taken it down twice")
        failed = ModelFailed(f"the engine was lost too often with this answer; it {reason}")
        self._end_some(dict.fromkeys(verdict.blamed, poison))
        self._end_some(dict.fromkeys(verdict.given_up, failed))
        self._end_cancelled()

    def gave_up(self, reason: str) -> None:
        """No engine comes back."""
        if self._is_closing or self._gave_up_because:
            return
        self._gave_up_because = reason or "it cannot be started"
        self._end_all(self._given_up())
        if not self._first_welcome.done():
            self._first_welcome.set_exception(self._given_up())

    def _hang_up(self) -> None:
        self._watch.stop()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _end_some(self, errors: Mapping[int, HeadwayError]) -> None:
        outputs = [SequenceOutput(each, error=copy.copy(error)) for each, error in errors.items()]
        for each in errors:
            entry = self._unfinished.pop(each, None)
            if entry is not None:
                self._sent.pop(entry.number, None)
                if entry.sequence.adapter in self._unloaded:
                    self._drop_if_unused(entry.sequence.adapter)
        if outputs:
            self._report(_NO_TOKENS, outputs)

    def _end_all(self, error: HeadwayError) -> None:
        for each in self._unfinished:
            self._recovery.end(each)
        self._end_some(dict.fromkeys(self._unfinished, error))
        self._fail_calls(error)

    def _end_cancelled(self) -> None:
        """End cancelled sequences that no engine has: no engine will report their end."""
        outputs = []
        for sequence, entry in list(self._unfinished.items()):
            if entry.is_cancelled and entry.number not in self._sent:
                finished = never_ran(sequence, len(entry.tokens))
                outputs.append(SequenceOutput(sequence, finished=finished))
                self._apply(self._forget(entry))
        if outputs:
            self._report(_NO_TOKENS, outputs)

    def _fail_calls(self, error: HeadwayError) -> None:
        calls, self._answers = self._answers, {}
        for answer in calls.values():
            if not answer.done():
                answer.set_exception(error)

    def _is_late(self, limit_s: float) -> bool:
        """The engine was silent for `limit_s`: end it. False: no caller waits."""
        line = self._connection
        if line is None or (line.is_welcome and not self._sent):
            return False
        line.process.kill(f"did not answer within {limit_s:g} s")
        return True

    # ---- reports of its worker, in a thread of its own

    def worker_ready(self, worker: ProcessWorker, status: WorkerStatus) -> None:
        self._tell(status)

    def worker_lost(self, worker: ProcessWorker, status: WorkerStatus) -> None:
        self._tell(status)
        if status.state is WorkerState.FAILED:
            self.post(lambda: self.gave_up(status.last_error))

    def _tell(self, status: WorkerStatus) -> None:
        event = WorkerChanged(
            self._name, status.pid, status.state, status.restarts, status.last_error
        )
        self.post(lambda: self._emit(event))

    def post(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the event loop soon. From any thread."""
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            self._loop.call_soon_threadsafe(callback)


class _Entry:
    """One unfinished sequence, with everything needed to resume it."""

    __slots__ = ("id", "is_cancelled", "number", "sampling", "sequence", "tokens", "was_sent")

    def __init__(self, sequence: Asked, sampling: Sampling) -> None:
        self.id = sequence.id
        self.sequence = sequence
        self.sampling = sampling
        self.tokens: list[int] = []  # received so far
        self.number = 0  # of the message that sent it last
        self.was_sent = False
        self.is_cancelled = False


class _Turn:
    """A worker's job: it lends the connection to the front until its process ends."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine

    async def work(self) -> None:
        engine = self._engine
        try:
            process = current_model.process()
        except WorkerLost as lost:
            reason = lost.reason
            engine.post(lambda: engine.gave_up(reason))
            return
        channel = process.give_line()
        engine.post(lambda: engine.connected(process, channel))
        process.wait_end(None)
        memory, reason = process.ran_out_of_memory, process.reason
        engine.post(lambda: engine.disconnected(process, reason, out_of_memory=memory))
