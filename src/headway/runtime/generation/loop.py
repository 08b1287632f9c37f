"""Drives token-level batching: a loop that asks the scheduler, runs the step, and reports.

One report a step for all sequences, never one a token. Knows no text: prompts and answers are
token ids here. The loop runs in a process of its own or in a thread of this one (`generation/`).
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from headway.core.generation.limits import EngineLimits
from headway.core.generation.pace import HandOver
from headway.core.generation.sampling import Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Finished, FinishReason
from headway.core.generation.sequence import Sequence as Asked
from headway.core.generation.step import Step
from headway.core.items import Wait
from headway.errors import HeadwayError, ModelFailed
from headway.runtime.calling.faults import is_device_lost, is_out_of_memory, release_memory
from headway.runtime.generation.loaded_adapters import (
    AdapterRead,
    AdapterStore,
    LoadAdapter,
    LoadedAdapters,
    UnloadAdapter,
)

_log = logging.getLogger(__name__)
_MOST_FAILURES = 3  # failed steps in a row: then the engine is broken


class StepResult(Protocol):
    """The results of a step: one of each for every sampled sequence, in that order."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def logprobs(self) -> "list[Any]": ...
    @property
    def broken(self) -> Mapping[int, str]:
        """Rows without a token, and why: the model's logits are not finite numbers, say."""


class RunningStep(Protocol):
    """A step that the engine has begun."""

    @property
    def seconds(self) -> float | None:
        """The step's seconds, once there is a result; None: the caller measures it."""

    def result(self) -> StepResult:
        """Wait for the result. Raises the step's error."""


class StepRunner(Protocol):
    """The engine, as its loop sees it."""

    depth: int  # steps that may be under way at once

    limits: EngineLimits
    vocabulary: int  # token ids are below it
    computes: str  # how and where, for the log

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

    def drop(self, sequence: int) -> None: ...
    def start(self, step: Step) -> RunningStep: ...


class SequenceOutput(NamedTuple):
    """The part of a step that concerns one sequence: a token, its end, or both."""

    sequence: int
    token: int | None = None
    logprobs: Any = None
    finished: Finished | None = None
    error: HeadwayError | None = None
    cached: int = 0  # of its prompt, as the first token is told: tokens that were in the cache


class PlainTokens(NamedTuple):
    """The sequences of a step that got a token and nothing else, and those tokens."""

    sequences: list[int]
    tokens: list[int]


def parted(outputs: Sequence[SequenceOutput]) -> tuple[PlainTokens, list[SequenceOutput]]:
    """Outputs that are only a token, and all others."""
    plain, others = PlainTokens([], []), []
    for output in outputs:
        sequence, token, logprobs, finished, error, cached = output
        is_more = logprobs is not None or finished is not None or error is not None or cached
        if token is None or is_more:
            others.append(output)
        else:
            plain.sequences.append(sequence)
            plain.tokens.append(token)
    return plain, others


class GenerationLoad(NamedTuple):
    running: int
    waiting: int
    blocks: int
    blocks_used: int
    preemptions: int


# ---- messages of the front to the engine


class SubmitSequence(NamedTuple):
    sequence: Asked
    sampling: Sampling
    resumed: tuple[int, ...] | None = None  # its tokens so far, where an engine was lost with it


class CancelSequence(NamedTuple):
    sequence: int


class SetWeights(NamedTuple):
    """Use these weights of tenants from now on."""

    weights: dict[str, float]


class CallEngine(NamedTuple):
    """Call a method of the engine between two steps; `Report.returned` has its result."""

    number: int
    method: str
    arguments: tuple[Any, ...]


Command: TypeAlias = (
    SubmitSequence
    | CancelSequence
    | SetWeights
    | CallEngine
    | LoadAdapter
    | UnloadAdapter
    | AdapterRead
)


class CommandInbox(Protocol):
    def post(self, command: Command) -> None:
        """Add a command, from any thread of the engine's process: `wait_commands` returns it."""

    def wait_commands(self, until: float) -> list[Command] | None:
        """The commands received so far. If there are none, wait, up to `until`. None: stop."""


# ---- messages of the engine to the front


class Report(NamedTuple):
    """Sent after every step, and whenever a sequence or call ends without a step."""

    outputs: list[SequenceOutput]
    load: GenerationLoad
    returned: tuple[int, Any] | None = None  # a call's number, and its result or exception


class EngineLoop:
    """Owns scheduler and engine: no other thread touches them."""

    def __init__(
        self, engine: StepRunner, inbox: CommandInbox, report: Callable[[Report], None]
    ) -> None:
        self._engine = engine
        self._scheduler = GenerationScheduler(engine.limits)
        self._inbox = inbox
        self._send = report
        self.unfinished: set[int] = set()
        self._cached: dict[int, int] = {}  # by sequence, until its first token: see SequenceOutput
        self._adapters = LoadedAdapters(
            lambda: engine.adapters,
            self._scheduler,
            post=inbox.post,
            returns=self._returns,
            enter=self._obey,
        )
        self._under_way: deque[tuple[Step, float, RunningStep]] = deque()
        self._completed_at = 0.0
        self._hand_over = HandOver()
        self._due_at = 0.0  # the next step, while one is under way
        self._failures = 0

    def close(self) -> None:
        """Call it after `run`. Sequences that still wait for an adapter become unfinished, too."""
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
        """Run until the inbox says stop. If the engine takes several steps at once, the next one is
        decided and handed over shortly before a step ends."""
        until = math.inf
        while (commands := self._inbox.wait_commands(until)) is not None:
            for command in commands:
                self._obey(command)
            now = time.monotonic()
            if self._under_way and now < self._due_at:
                until = self._due_at
                continue
            action = self._scheduler.next_step(now)
            is_full = isinstance(action, Wait)
            if isinstance(action, Step):
                outputs = [self._end(each) for each in action.finished]
                if action.has_work:
                    outputs += self._attempt(self._begin, action)
                    self._hand_over.took(time.monotonic() - now)
                if outputs:
                    self._report(outputs)
                is_full = len(self._under_way) >= self._engine.depth
            if self._under_way and is_full:
                self._report(self._attempt(self._complete, self._under_way[0][0]))
            until = action.until if isinstance(action, Wait) and not self._under_way else -math.inf

    def _returns(self, number: int, result: Any) -> None:
        self._report([], (number, result))

    def _report(
        self, outputs: list[SequenceOutput], returned: tuple[int, Any] | None = None
    ) -> None:
        self._send(Report(outputs, self.load, returned))

    # ---- commands

    def _obey(self, command: Command) -> None:
        if isinstance(command, SubmitSequence):
            self._enter(*command)
        elif isinstance(command, CancelSequence):
            self._cancel(command.sequence)
        elif isinstance(command, LoadAdapter | UnloadAdapter | AdapterRead):
            self._adapters.obey(command)
        elif isinstance(command, SetWeights):
            weights = self._scheduler.limits.tenant_weights
            assert isinstance(weights, dict)
            weights.clear()
            weights.update(command.weights)
        else:
            self._call(command)

    def _enter(self, sequence: Asked, sampling: Sampling, resumed: tuple[int, ...] | None) -> None:
        if sequence.adapter and self._adapters.holds(
            sequence, SubmitSequence(sequence, sampling, resumed)
        ):
            return
        try:
            self._adapters.check(sequence.adapter)
            self._scheduler.submit(sequence, resumed)
        except HeadwayError as error:
            self._report([SequenceOutput(sequence.id, error=error)])
            return
        try:
            self._engine.add(sequence.id, sequence.prompt, sampling, generated=resumed or ())
        except Exception as error:  # noqa: BLE001  that sequence's, not the loop's
            self._scheduler.cancel(sequence.id)
            if not isinstance(error, HeadwayError):
                error = ModelFailed(f"the engine refused it: {error}")
            self._report([SequenceOutput(sequence.id, error=error)])
            return
        self.unfinished.add(sequence.id)
        self._adapters.entered(sequence)

    def _cancel(self, sequence: int) -> None:
        """Always report the end, even of a sequence that never arrived here."""
        if sequence in self.unfinished:
            self._scheduler.cancel(sequence)
        else:
            self._adapters.release(sequence)
            self._report([SequenceOutput(sequence, finished=never_ran(sequence))])

    def _call(self, command: CallEngine) -> None:
        result: Any
        try:
            result = getattr(self._engine, command.method)(*command.arguments)
        except Exception as error:  # noqa: BLE001  the caller gets it
            result = error
        self._returns(command.number, result)

    # ---- steps

    def _attempt(
        self, do: Callable[[Step], list[SequenceOutput]], step: Step
    ) -> list[SequenceOutput]:
        try:
            outputs = do(step)
        except Exception as error:
            self._failures += 1
            if self._failures == _MOST_FAILURES or is_device_lost(error):
                raise  # this process ends; its sequences go on in another
            return self._fail(step, error)
        if outputs:
            self._failures = 0
        return outputs

    def _begin(self, step: Step) -> list[SequenceOutput]:
        for each in step.prefill:
            if each.is_first and each.position:
                self._cached[each.sequence] = each.position
        began = time.monotonic()
        self._under_way.append((step, began, self._engine.start(step)))
        if len(self._under_way) == 1:
            self._due_at = self._hand_over.at(began, self._scheduler.expected_s(step))
        return []

    def _complete(self, step: Step) -> list[SequenceOutput]:
        _, began, running = self._under_way.popleft()
        result = running.result()
        now = time.monotonic()
        seconds = running.seconds or now - max(began, self._completed_at)
        self._completed_at = now
        if self._under_way:  # this step begins on the device only now
            expected_s = self._scheduler.expected_s(self._under_way[0][0])
            self._due_at = self._hand_over.at(now, expected_s)
        outputs = [self._break(step.sampled[row], why) for row, why in result.broken.items()]
        ended = {
            each.sequence: each for each in self._scheduler.complete(step, result.tokens, seconds)
        }
        for sequence, token, logprobs in zip(
            step.sampled, result.tokens, result.logprobs, strict=True
        ):
            if sequence not in self.unfinished:
                continue  # it ended while the step ran
            finished = ended.get(sequence)
            cached = self._cached.pop(sequence, 0) if self._cached else 0
            if finished is not None:
                self._end(finished)
            outputs.append(SequenceOutput(sequence, token, logprobs, finished, None, cached))
        return outputs

    def _break(self, sequence: int, why: str) -> SequenceOutput:
        """End a sequence that has no next token; other sequences go on."""
        self._scheduler.cancel(sequence)
        self._cached.pop(sequence, None)
        self._adapters.left(sequence)
        self.unfinished.discard(sequence)
        self._engine.drop(sequence)
        return SequenceOutput(sequence, error=ModelFailed(why))

    def _end(self, finished: Finished) -> SequenceOutput:
        self._cached.pop(finished.sequence, None)
        self._adapters.left(finished.sequence)
        self.unfinished.discard(finished.sequence)
        self._engine.drop(finished.sequence)
        return SequenceOutput(finished.sequence, finished=finished)

    def _fail(self, step: Step, error: Exception) -> list[SequenceOutput]:
        """The step's sequences get the error; the others are computed again. If
        memory ran out, all are."""
        _log.error("a step failed", exc_info=error)
        self._under_way.clear()
        self._cached.clear()
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
        return [SequenceOutput(each, error=failed) for each in sorted(hit)]


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
