"""An engine's loop in a thread of this process."""

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Sampling
from headway.core.generation.sequence import Sequence as Asked
from headway.errors import Closed
from headway.runtime.forking import tell_when_forked
from headway.runtime.generation.loaded_adapters import LoadAdapter, UnloadAdapter
from headway.runtime.generation.loop import (
    CancelSequence,
    Command,
    EngineLoop,
    GenerationLoad,
    Report,
    SequenceOutput,
    SetWeights,
    StepRunner,
    SubmitSequence,
)

_log = logging.getLogger(__name__)


class GenerationThread:
    def __init__(
        self,
        make_engine: Callable[[], StepRunner],
        report: Callable[[Sequence[SequenceOutput]], None],
    ) -> None:
        self._make_engine = make_engine
        self._report = report
        self._changed = threading.Condition()
        self._commands: list[Command] = []
        self._is_closing = False
        self._refusal = "the generator has stopped"
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._tell_end: Callable[[BaseException | None], None] = lambda failure: None
        self._numbers = itertools.count(1)
        self._answers: dict[int, Future[Any]] = {}  # to commands
        self._thread = threading.Thread(target=self._main, name="headway-generation", daemon=True)

    def start(self) -> None:
        """Load the engine. Raises the error of the load."""
        self._thread.start()
        tell_when_forked(self)
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def after_fork(self) -> None:
        """Called in the child: the thread is the parent's, and may have held the lock."""
        self._changed = threading.Condition()
        self._is_closing = True
        self._refusal = (
            "the generator was opened before this process was forked, and works in its parent "
            "only: open it in the child, after the fork"
        )

    @property
    def is_open(self) -> bool:
        """Are sequences accepted? Not after it was closed, or its loop has died."""
        return not self._is_closing and self._failure is None

    @property
    def is_up(self) -> bool:
        return self.is_open

    @property
    def trouble(self) -> str:
        """Why no sequence completes any more; empty if they do."""
        return "" if self.is_open else "its engine has died"

    def on_end(self, tell: Callable[[BaseException | None], None]) -> None:
        """Call this, in the thread, when it ends, with the error that ended it, if any."""
        self._tell_end = tell

    @property
    def limits(self) -> EngineLimits:
        return self._engine.limits

    @property
    def vocabulary(self) -> int:
        return self._engine.vocabulary

    @property
    def load(self) -> GenerationLoad:
        return self._loop.load

    def submit(self, sequence: Asked, sampling: Sampling) -> None:
        """Submit a sequence, from any thread. A refusal is reported like any other end."""
        self._tell(SubmitSequence(sequence, sampling))

    def cancel(self, sequence: int) -> None:
        self._tell(CancelSequence(sequence))

    def weigh(self, weights: Mapping[str, float]) -> None:
        self._tell(SetWeights(dict(weights)))

    def load_adapter(self, adapter: str, folder: str) -> "Future[Any]":
        """Resolved when sequences may name it."""
        number = next(self._numbers)
        return self._ask(number, LoadAdapter(number, adapter, folder))

    def unload_adapter(self, adapter: str) -> "Future[Any]":
        number = next(self._numbers)
        return self._ask(number, UnloadAdapter(number, adapter))

    def post(self, command: Command) -> None:
        """Add a command of the loop's own helpers."""
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
                raise Closed(self._refusal)
            self._commands.append(command)
            self._changed.notify()

    # ---- in the thread

    def wait_commands(self, until: float) -> list[Command] | None:
        """The loop's inbox is this thread."""
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
        except BaseException as error:  # noqa: BLE001  the caller of `start` gets it
            self._failure = error
            self._ready.set()
            return
        self._ready.set()
        closed = Closed("the generator has stopped")
        try:
            self._loop.run()
        except BaseException as failure:  # noqa: BLE001  all waiting callers get it, below
            _log.exception("the generator's loop has died")
            self._failure = failure
            closed = Closed(f"the generator's loop has died: {failure}")
        with self._changed:
            self._is_closing = True
            queued = {
                each.sequence.id for each in self._commands if isinstance(each, SubmitSequence)
            }
        self._loop.close()
        self._report(
            [SequenceOutput(each, error=closed) for each in sorted(self._loop.unfinished | queued)]
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
