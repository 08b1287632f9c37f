"""Drives token-level batching: a thread that asks the scheduler, runs the step, and reports.

One report a step for all sequences, never one a token. Knows no text: prompts and answers are
token ids here.
"""

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headway.core.generation.limits import Limits
from headway.core.generation.sampling import Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Finished
from headway.core.generation.sequence import Sequence as Asked
from headway.core.generation.step import Step
from headway.core.items import Wait
from headway.errors import Closed, HeadwayError, ModelFailed, UnknownModel

_log = logging.getLogger(__name__)
_MOST_FAILURES = 3  # steps in a row: then it is the engine that is broken, not a step


class StepResult(Protocol):
    """What a step brings: as many of each as sequences sampled, in that order."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def logprobs(self) -> "list[Any]": ...


class RunningStep(Protocol):
    """A step that the engine has begun."""

    def result(self) -> StepResult:
        """Waits for it. Raises what went wrong."""
        ...


class AdapterStore(Protocol):
    """The engine's adapters. A step says which of them lies in which slot."""

    def read(self, folder: Path) -> Any:
        """From any thread, for it takes long. Raises HeadwayError."""
        ...

    def add(self, adapter: str, weights: Any) -> None:
        """What `read` has answered; steps may name it from now on."""
        ...

    def drop(self, adapter: str) -> None: ...


class StepRunner(Protocol):
    """The engine's face."""

    depth: int  # steps that may be under way at once

    limits: Limits
    vocabulary: int  # token ids are below it

    @property
    def adapters(self) -> AdapterStore: ...

    def add(self, sequence: int, prompt: tuple[int, ...], sampling: Sampling) -> None: ...
    def drop(self, sequence: int) -> None: ...
    def start(self, step: Step) -> RunningStep: ...


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """A command: read a folder; sequences may then name the adapter.

    It is answered by an `Output` with this id, which is a sequence's nowhere.
    """

    id: int
    adapter: str  # used once: what is loaded again under the same name has another
    folder: str


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """A command: no more sequences of this adapter. Those that are here go on to their end."""

    id: int
    adapter: str


Command = LoadAdapter | UnloadAdapter


@dataclass(frozen=True, slots=True)
class _Read:
    """A folder's weights have been read, or cannot be."""

    command: LoadAdapter
    weights: Any = None
    error: HeadwayError | None = None


_Message = tuple[Asked, Sampling] | int | Command | _Read  # a number: whom to cancel


@dataclass(frozen=True, slots=True)
class Output:
    """What one sequence got from one step: a token, its end, or both.

    With none of them it answers a command: done.
    """

    sequence: int
    token: int | None = None
    logprobs: Any = None
    finished: Finished | None = None
    error: HeadwayError | None = None


@dataclass(frozen=True, slots=True)
class GenerationLoad:
    running: int
    waiting: int
    blocks: int
    blocks_used: int
    preemptions: int


class GenerationThread:
    """Owns scheduler and engine: nobody else touches them."""

    def __init__(
        self, make_engine: Callable[[], StepRunner], report: Callable[[Sequence[Output]], None]
    ) -> None:
        self._make_engine = make_engine
        self._report = report
        self._changed = threading.Condition()
        self._inbox: list[_Message] = []
        self._is_closing = False
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._alive: dict[int, str] = {}  # sequences, each with its adapter
        self._adapters: dict[str, int] = {}  # sequences of each that is loaded
        self._leaving: set[str] = set()  # unloaded, as soon as these have ended
        self._reader: ThreadPoolExecutor | None = None
        self._reading: dict[int, str] = {}  # adapters, by command
        self._tell_end: Callable[[BaseException | None], None] = lambda failure: None
        self._under_way: deque[tuple[Step, float, RunningStep]] = deque()
        self._completed_at = 0.0
        self._failures = 0
        self._thread = threading.Thread(target=self._main, name="headway-generation", daemon=True)

    def start(self) -> None:
        """Load the engine. Raises what loading raised."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def is_open(self) -> bool:
        """Whether it takes sequences: not once it was closed, or its loop has died."""
        return not self._is_closing and self._failure is None

    def on_end(self, tell: Callable[[BaseException | None], None]) -> None:
        """Call this, in the thread, when it ends: with what it died of, if it did."""
        self._tell_end = tell

    @property
    def limits(self) -> Limits:
        return self._engine.limits

    @property
    def vocabulary(self) -> int:
        return self._engine.vocabulary

    @property
    def load(self) -> GenerationLoad:
        scheduler = self._scheduler
        return GenerationLoad(
            running=scheduler.running,
            waiting=scheduler.waiting,
            blocks=scheduler.limits.blocks,
            blocks_used=scheduler.blocks_used,
            preemptions=scheduler.preemptions,
        )

    def submit(self, sequence: Asked, sampling: Sampling) -> None:
        """From any thread. What the scheduler refuses is reported like any other end."""
        self._tell((sequence, sampling))

    def cancel(self, sequence: int) -> None:
        self._tell(sequence)

    def command(self, command: Command) -> None:
        """From any thread. Answered by an `Output` of its id."""
        self._tell(command)

    def close(self, timeout_s: float = 30.0) -> None:
        """Stop after the running step. Whoever has not ended gets `Closed`."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _tell(self, message: _Message) -> None:
        with self._changed:
            if self._is_closing or self._failure is not None:
                raise Closed("the generator has stopped")
            self._inbox.append(message)
            self._changed.notify()

    # ---- in the thread

    def _main(self) -> None:
        try:
            self._engine = self._make_engine()
            self._scheduler = GenerationScheduler(self._engine.limits)
        except BaseException as error:  # noqa: BLE001  whoever called `start` is told
            self._failure = error
            self._ready.set()
            return
        self._ready.set()
        closed = Closed("the generator has stopped")
        try:
            self._drive()
        except Exception as failure:  # noqa: BLE001  everyone who waits is told, below
            _log.exception("the generator's loop has died")
            self._failure = failure
            closed = Closed(f"the generator's loop has died: {failure}")
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)
        with self._changed:
            self._is_closing = True
            rest = {*self._alive, *self._reading, *map(_id_of, self._inbox)}
        self._report([Output(each, error=closed) for each in sorted(rest)])
        self._tell_end(self._failure)

    def _drive(self) -> None:
        """While a step runs, the next is decided and handed over, as deep as the engine goes."""
        until = math.inf
        while self._wait(until):
            action = self._scheduler.next_step(time.monotonic())
            is_full = isinstance(action, Wait)
            if isinstance(action, Step):
                outputs = [self._end(each) for each in action.finished]
                if action.has_work:
                    outputs += self._attempt(self._begin, action)
                if outputs:
                    self._report(outputs)
                is_full = len(self._under_way) >= self._engine.depth
            if self._under_way and is_full:
                step = self._under_way[0][0]
                self._report(self._attempt(self._complete, step))
            until = action.until if isinstance(action, Wait) and not self._under_way else -math.inf

    def _attempt(self, do: Callable[[Step], list[Output]], step: Step) -> list[Output]:
        try:
            outputs = do(step)
        except Exception as error:
            self._failures += 1
            if self._failures == _MOST_FAILURES:
                raise
            return self._fail(step, error)
        if outputs:
            self._failures = 0
        return outputs

    def _begin(self, step: Step) -> list[Output]:
        began = time.perf_counter()
        self._under_way.append((step, began, self._engine.start(step)))
        return []

    def _wait(self, until: float) -> bool:
        """Take in what was sent; where there is nothing to do, wait for it. False: closing."""
        refused = []
        with self._changed:
            while not self._inbox and not self._is_closing and until > time.monotonic():
                left = until - time.monotonic()
                self._changed.wait(None if left == math.inf else left)
            messages, self._inbox = self._inbox, []
            is_closing = self._is_closing
        for message in messages:
            if isinstance(message, int):
                self._scheduler.cancel(message)
            elif isinstance(message, tuple):
                refused += self._enter(*message)
            else:
                refused += self._obey(message)
        if refused:
            self._report(refused)
        return not is_closing

    def _enter(self, sequence: Asked, sampling: Sampling) -> list[Output]:
        adapter = sequence.adapter
        try:
            if adapter and (adapter not in self._adapters or adapter in self._leaving):
                raise UnknownModel(f"adapter {adapter!r} is not loaded")
            self._scheduler.submit(sequence)
        except HeadwayError as error:
            return [Output(sequence.id, error=error)]
        self._engine.add(sequence.id, sequence.prompt, sampling)
        self._alive[sequence.id] = adapter
        if adapter:
            self._adapters[adapter] += 1
        return []

    def _leave(self, sequence: int) -> None:
        """It has ended. Perhaps it was the last that kept an adapter."""
        adapter = self._alive.pop(sequence, "")
        if adapter:
            self._adapters[adapter] -= 1
            if adapter in self._leaving:
                self._drop_if_unused(adapter)

    # ---- adapters

    def _obey(self, message: "Command | _Read") -> list[Output]:
        if isinstance(message, LoadAdapter):
            if self._reader is None:
                self._reader = ThreadPoolExecutor(1, "headway-adapters")
            self._reading[message.id] = message.adapter
            self._reader.submit(self._read, message)
            return []
        if isinstance(message, UnloadAdapter):
            for number in [each for each, name in self._reading.items() if name == message.adapter]:
                del self._reading[number]  # nobody wants it any more
            if message.adapter in self._adapters:
                self._leaving.add(message.adapter)
                self._drop_if_unused(message.adapter)
            return [Output(message.id)]
        adapter = self._reading.pop(message.command.id, "")
        if not adapter:
            return []
        if message.error is None:
            self._engine.adapters.add(adapter, message.weights)
            self._adapters.setdefault(adapter, 0)
        return [Output(message.command.id, error=message.error)]

    def _read(self, command: LoadAdapter) -> None:
        """In a thread of its own: steps go on meanwhile."""
        try:
            found = _Read(command, self._engine.adapters.read(Path(command.folder)))
        except HeadwayError as error:
            found = _Read(command, error=error)
        except Exception as error:  # noqa: BLE001  whoever asked for it is told
            failed = ModelFailed(f"{command.folder}: cannot be read: {error}")
            failed.__cause__ = error
            found = _Read(command, error=failed)
        with contextlib.suppress(Closed):
            self._tell(found)

    def _drop_if_unused(self, adapter: str) -> None:
        self._scheduler.forget_adapter(adapter)
        if not self._adapters[adapter]:
            del self._adapters[adapter]
            self._leaving.discard(adapter)
            self._engine.adapters.drop(adapter)

    def _complete(self, step: Step) -> list[Output]:
        _, began, running = self._under_way.popleft()
        result = running.result()
        now = time.perf_counter()
        seconds, self._completed_at = now - max(began, self._completed_at), now
        ended = {
            each.sequence: each for each in self._scheduler.complete(step, result.tokens, seconds)
        }
        outputs = []
        for sequence, token, logprobs in zip(
            step.sampled, result.tokens, result.logprobs, strict=True
        ):
            finished = ended.get(sequence)
            if finished is not None:
                self._end(finished)
            outputs.append(Output(sequence, token, logprobs, finished))
        return outputs

    def _end(self, finished: Finished) -> Output:
        self._leave(finished.sequence)
        self._engine.drop(finished.sequence)
        return Output(finished.sequence, finished=finished)

    def _fail(self, step: Step, error: Exception) -> list[Output]:
        """The step's sequences get the error; the others are computed again."""
        _log.error("a step failed", exc_info=error)
        self._under_way.clear()
        hit = {each.sequence for each in step.decode} | {each.sequence for each in step.prefill}
        self._scheduler.reset()
        failed = ModelFailed(f"the step failed: {error}")
        failed.__cause__ = error
        for sequence in hit:
            self._scheduler.cancel(sequence)
            self._leave(sequence)
        return [Output(each, error=failed) for each in sorted(hit)]


def _id_of(message: _Message) -> int:
    """Whom its answer is for."""
    if isinstance(message, int):
        return message
    if isinstance(message, tuple):
        return message[0].id
    return message.command.id if isinstance(message, _Read) else message.id
