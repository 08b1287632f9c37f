"""Drives token-level batching: a loop that asks the scheduler, runs the step, and reports.

One report a step for all sequences, never one a token. Knows no text: prompts and answers are
token ids here. The loop runs in a process of its own (`generation/`), or in a thread of this one.
"""

import contextlib
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, TypeAlias

from headway.core.generation.limits import Limits
from headway.core.generation.sampling import Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Finished, FinishReason
from headway.core.generation.sequence import Sequence as Asked
from headway.core.generation.step import Step
from headway.core.items import Wait
from headway.errors import Closed, HeadwayError, ModelFailed
from headway.runtime.calling.faults import is_out_of_memory, release_memory
from headway.runtime.generation.adapting import (
    AdapterRead,
    AdapterStore,
    LoadAdapter,
    LoadedAdapters,
    UnloadAdapter,
)

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


class StepRunner(Protocol):
    """The engine's face."""

    depth: int  # steps that may be under way at once

    limits: Limits
    vocabulary: int  # token ids are below it

    @property
    def adapters(self) -> AdapterStore: ...

    def add(
        self,
        sequence: int,
        prompt: tuple[int, ...],
        sampling: Sampling,
        *,
        generated: Sequence[int] = (),
    ) -> None:
        """`generated`: tokens that it has from an engine that was lost."""
        ...

    def drop(self, sequence: int) -> None: ...
    def start(self, step: Step) -> RunningStep: ...


class Output(NamedTuple):
    """What one sequence got from one step: a token, its end, or both."""

    sequence: int
    token: int | None = None
    logprobs: Any = None
    finished: Finished | None = None
    error: HeadwayError | None = None


class GenerationLoad(NamedTuple):
    running: int
    waiting: int
    blocks: int
    blocks_used: int
    preemptions: int


# ---- what the front tells the engine


class Submit(NamedTuple):
    sequence: Asked
    sampling: Sampling
    resumed: tuple[int, ...] | None = None  # its tokens so far, where an engine was lost with it


class Cancel(NamedTuple):
    sequence: int


class Weigh(NamedTuple):
    """Tenants that come from now on have these weights."""

    weights: dict[str, float]


class Call(NamedTuple):
    """Call a method of the engine between two steps; `Report.returned` has its result."""

    number: int
    method: str
    arguments: tuple[Any, ...]


Command: TypeAlias = Submit | Cancel | Weigh | Call | LoadAdapter | UnloadAdapter | AdapterRead


class Inbox(Protocol):
    def post(self, command: Command) -> None:
        """From any thread of the engine's own process: `wait_commands` answers it."""
        ...

    def wait_commands(self, until: float) -> list[Command] | None:
        """Those that have come; where there are none, wait for some until then. None: stop."""
        ...


# ---- what the engine tells the front


class Report(NamedTuple):
    """After every step, and whenever something ended without one."""

    outputs: list[Output]
    load: GenerationLoad
    returned: tuple[int, Any] | None = None  # a call's number, and its result or exception


class EngineLoop:
    """Owns scheduler and engine: nobody else touches them."""

    def __init__(self, engine: StepRunner, inbox: Inbox, report: Callable[[Report], None]) -> None:
        self._engine = engine
        self._scheduler = GenerationScheduler(engine.limits)
        self._inbox = inbox
        self._send = report
        self.unfinished: set[int] = set()
        self._adapters = LoadedAdapters(
            lambda: engine.adapters,
            self._scheduler,
            post=inbox.post,
            returns=self._returns,
            enter=self._obey,
        )
        self._under_way: deque[tuple[Step, float, RunningStep]] = deque()
        self._completed_at = 0.0
        self._failures = 0

    def close(self) -> None:
        """After `run`: what still waits for an adapter is unfinished, too."""
        self._adapters.close()
        self.unfinished.update(self._adapters.held)

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

    def run(self) -> None:
        """Until the inbox says stop. While a step runs, the next is decided and handed over, as
        deep as the engine goes."""
        until = math.inf
        while (commands := self._inbox.wait_commands(until)) is not None:
            for command in commands:
                self._obey(command)
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
                self._report(self._attempt(self._complete, self._under_way[0][0]))
            until = action.until if isinstance(action, Wait) and not self._under_way else -math.inf

    def _returns(self, number: int, result: Any) -> None:
        self._report([], (number, result))

    def _report(self, outputs: list[Output], returned: tuple[int, Any] | None = None) -> None:
        self._send(Report(outputs, self.load, returned))

    # ---- commands

    def _obey(self, command: Command) -> None:
        if isinstance(command, Submit):
            self._enter(*command)
        elif isinstance(command, Cancel):
            self._cancel(command.sequence)
        elif isinstance(command, LoadAdapter | UnloadAdapter | AdapterRead):
            self._adapters.obey(command)
        elif isinstance(command, Weigh):
            weights = self._scheduler.limits.tenant_weights
            assert isinstance(weights, dict)
            weights.clear()
            weights.update(command.weights)
        else:
            self._call(command)

    def _enter(self, sequence: Asked, sampling: Sampling, resumed: tuple[int, ...] | None) -> None:
        if sequence.adapter and self._adapters.holds(sequence, Submit(sequence, sampling, resumed)):
            return
        try:
            self._adapters.check(sequence.adapter)
            self._scheduler.submit(sequence, resumed)
        except HeadwayError as error:
            self._report([Output(sequence.id, error=error)])
            return
        try:
            self._engine.add(sequence.id, sequence.prompt, sampling, generated=resumed or ())
        except Exception as error:  # noqa: BLE001  that sequence's, not the loop's
            self._scheduler.cancel(sequence.id)
            self._report([Output(sequence.id, error=ModelFailed(f"it cannot be begun: {error}"))])
            return
        self.unfinished.add(sequence.id)
        self._adapters.entered(sequence)

    def _cancel(self, sequence: int) -> None:
        """The end is always reported, also of a sequence that never came here."""
        if sequence in self.unfinished:
            self._scheduler.cancel(sequence)
        else:
            self._adapters.release(sequence)
            self._report([Output(sequence, finished=never_ran(sequence))])

    def _call(self, command: Call) -> None:
        result: Any
        try:
            result = getattr(self._engine, command.method)(*command.arguments)
        except Exception as error:  # noqa: BLE001  the caller is told
            result = error
        self._returns(command.number, result)

    # ---- steps

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
        self._adapters.left(finished.sequence)
        self.unfinished.discard(finished.sequence)
        self._engine.drop(finished.sequence)
        return Output(finished.sequence, finished=finished)

    def _fail(self, step: Step, error: Exception) -> list[Output]:
        """The step's sequences get the error; the others are computed again. Where it was memory
        that was missing, all are."""
        _log.error("a step failed", exc_info=error)
        self._under_way.clear()
        self._scheduler.reset()
        if is_out_of_memory(error):
            release_memory(error)
            return []
        hit = {each.sequence for each in step.decode} | {each.sequence for each in step.prefill}
        failed = ModelFailed(f"the step failed: {error}")
        failed.__cause__ = error
        for sequence in hit:
            self._scheduler.cancel(sequence)
            self._adapters.left(sequence)
            self.unfinished.discard(sequence)
        return [Output(each, error=failed) for each in sorted(hit)]


def never_ran(sequence: int, tokens: int = 0) -> Finished:
    """The end of a sequence that is cancelled before an engine has it, or after it was lost."""
    return Finished(
        sequence,
        FinishReason.CANCELLED,
        tokens=tokens,
        cached_tokens=0,
        chunks=0,
        preemptions=0,
        admitted_at=None,
    )


class GenerationThread:
    """An engine's loop in a thread of this process."""

    def __init__(
        self, make_engine: Callable[[], StepRunner], report: Callable[[Sequence[Output]], None]
    ) -> None:
        self._make_engine = make_engine
        self._report = report
        self._changed = threading.Condition()
        self._commands: list[Command] = []
        self._is_closing = False
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._tell_end: Callable[[BaseException | None], None] = lambda failure: None
        self._numbers = itertools.count(1)
        self._answers: dict[int, Future[Any]] = {}  # to commands
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

    @property
    def is_up(self) -> bool:
        return self.is_open

    @property
    def trouble(self) -> str:
        """Why nothing completes any more."""
        return "" if self.is_open else "its engine has died"

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
        return self._loop.load

    def submit(self, sequence: Asked, sampling: Sampling) -> None:
        """From any thread. What the scheduler refuses is reported like any other end."""
        self._tell(Submit(sequence, sampling))

    def cancel(self, sequence: int) -> None:
        self._tell(Cancel(sequence))

    def weigh(self, weights: Mapping[str, float]) -> None:
        self._tell(Weigh(dict(weights)))

    def load_adapter(self, adapter: str, folder: str) -> "Future[Any]":
        """Resolved when sequences may name it."""
        number = next(self._numbers)
        return self._ask(number, LoadAdapter(number, adapter, folder))

    def unload_adapter(self, adapter: str) -> "Future[Any]":
        number = next(self._numbers)
        return self._ask(number, UnloadAdapter(number, adapter))

    def post(self, command: Command) -> None:
        """From the loop's own helpers."""
        with contextlib.suppress(Closed):
            self._tell(command)

    def close(self, timeout_s: float = 30.0) -> None:
        """Stop after the running step. Sequences that have not ended get `Closed`."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _ask(self, number: int, command: Command) -> "Future[Any]":
        answer = self._answers[number] = Future()
        try:
            self._tell(command)
        except Closed:
            del self._answers[number]
            raise
        return answer

    def _tell(self, command: Command) -> None:
        with self._changed:
            if self._is_closing or self._failure is not None:
                raise Closed("the generator has stopped")
            self._commands.append(command)
            self._changed.notify()

    # ---- in the thread

    def wait_commands(self, until: float) -> list[Command] | None:
        """It is its loop's inbox."""
        with self._changed:
            while not self._commands and not self._is_closing and until > time.monotonic():
                left = until - time.monotonic()
                self._changed.wait(None if left == math.inf else left)
            if self._is_closing:
                return None
            commands, self._commands = self._commands, []
            return commands

    def _main(self) -> None:
        try:
            self._engine = self._make_engine()
            self._loop = EngineLoop(self._engine, self, self._reported)
        except BaseException as error:  # noqa: BLE001  the caller of `start` is told
            self._failure = error
            self._ready.set()
            return
        self._ready.set()
        closed = Closed("the generator has stopped")
        try:
            self._loop.run()
        except Exception as failure:  # noqa: BLE001  all waiting callers are told, below
            _log.exception("the generator's loop has died")
            self._failure = failure
            closed = Closed(f"the generator's loop has died: {failure}")
        with self._changed:
            self._is_closing = True
            queued = {each.sequence.id for each in self._commands if isinstance(each, Submit)}
        self._loop.close()
        self._report(
            [Output(each, error=closed) for each in sorted(self._loop.unfinished | queued)]
        )
        for answer in list(self._answers.values()):
            _resolve(answer, closed)
        self._tell_end(self._failure)

    def _reported(self, report: Report) -> None:
        if report.returned is not None:
            number, result = report.returned
            answer = self._answers.pop(number, None)
            if answer is not None:
                _resolve(answer, result)
        self._report(report.outputs)


def _resolve(answer: "Future[Any]", result: Any) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    if isinstance(result, BaseException):
        answer.set_exception(result)
    else:
        answer.set_result(result)
