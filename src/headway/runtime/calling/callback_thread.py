"""Runs `prepare`, `size` and `finish` off the event loop, in one thread, many at a time.

Tokenising takes milliseconds: in the loop it would hold up every other caller. One hop to the
thread serves all values that came in meanwhile, answers first. Beyond a limit it takes no more.
"""

import asyncio
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

from headway.errors import DeadlineExceeded, HeadwayError, ModelFailed, NotReady, QueueFull
from headway.runtime.calling.faults import is_error, name_of, readable, text_of
from headway.runtime.calling.ownership import own
from headway.runtime.calling.threads import start_thread

_log = logging.getLogger(__name__)
_LONG_S = 10.0  # for one user call; then another thread takes the waiting calls
_MOST_STUCK = 4  # threads with a call that does not return
_RETRY_S = 10.0  # callers are asked to retry after this, when all are stuck
_HAND_OVER_S = 0.001  # results within this time cross back to the loop together
_UNUSED_S = 10.0  # then the thread ends
_MOST_TOGETHER = 64  # values for `Many`; more would keep the first of them waiting

Kind: TypeAlias = Literal["prepare", "finish"]
Many: TypeAlias = Callable[[list[Any]], list[Any]]  # a result or an exception for each value
_Future: TypeAlias = "asyncio.Future[Any]"


class _Task(NamedTuple):
    kind: Kind
    function: Callable[[Any], Any]
    value: Any
    future: _Future
    many: Many | None = None  # the same for all waiting values, if that is faster


class CallbackThread:
    """Starts its thread with the first task. The thread ends after `stop`, or when it is unused.

    A call that takes long keeps its thread, and another one goes on with the waiting calls: up to
    a number of threads, beyond which calls are refused until one comes back.
    """

    def __init__(self, name: str, max_waiting: int, limit_s: float | None = None) -> None:
        """`limit_s`: a call that takes longer is answered with ModelFailed; None: no limit."""
        self._name = name
        self._max_waiting = max_waiting
        self._limit_s = math.inf if limit_s is None else limit_s
        self._long_s = min(_LONG_S, self._limit_s)
        self._changed = threading.Condition()  # its lock guards all that follows
        # Calls of callers that left are removed. Answers go first.
        self._waiting: dict[Kind, OrderedDict[_Future, _Task]] = {
            "finish": OrderedDict(),
            "prepare": OrderedDict(),
        }
        self._runner: _Runner | None = None  # takes the waiting calls
        self._stuck: list[_Runner] = []
        self._watched_by: asyncio.AbstractEventLoop | None = None  # its timer looks
        self._is_stopped = False

    @property
    def is_stuck(self) -> bool:
        """Are new calls refused, because the maximum number of calls hang?"""
        return len(self._stuck) >= _MOST_STUCK and self._is_full()

    def check_room(self) -> None:
        """Raise QueueFull if too many calls wait, NotReady if all threads hang."""
        if self.is_stuck:
            raise self._not_ready()
        runner = self._runner
        count = sum(map(len, self._waiting.values()))
        if runner is not None:
            count += len(runner.current) + len(runner.done)
        if count >= self._max_waiting:
            raise QueueFull(
                f"{self._max_waiting} callers are in `prepare` or `finish` already",
                limit=self._max_waiting,
            )

    async def run(
        self,
        kind: Kind,
        function: Callable[[Any], Any],
        value: Any,
        many: Many | None = None,
        *,
        deadline: float | None = None,
    ) -> Any:
        """`function(value)`, computed in the thread. `finish` is never refused with QueueFull.

        `deadline`: on the clock of `time.monotonic`; raises DeadlineExceeded when that passes.
        """
        if kind == "prepare":
            self.check_room()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._changed:
            if self._runner is None:
                self._start_thread()
            self._waiting[kind][future] = _Task(kind, function, value, future, many)
            self._changed.notify()
            if self._watched_by is None or not self._watched_by.is_running():
                self._watch(loop)
        timer = None
        if deadline is not None:
            left_s = max(0.0, deadline - time.monotonic())
            timer = loop.call_later(left_s, _expire, future, kind)
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            if future.cancelled() or timer is not None:
                with self._changed:
                    self._waiting[kind].pop(future, None)

    def stop(self) -> None:
        """End the thread after all waiting calls. Later calls get a thread that ends again."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def _start_thread(self) -> None:
        """Raises NotReady."""
        if self._is_full():
            raise self._not_ready()
        runner = _Runner()
        start_thread(self._work, runner, name=self._name)
        self._runner = runner

    # ---- in the thread

    def _work(self, runner: "_Runner") -> None:
        try:
            while self._has_work(runner):
                self._serve(runner)  # apart: no caller's value is kept while it waits
        finally:
            runner.is_over = True

    def _has_work(self, runner: "_Runner") -> bool:
        """Wait for a call. False: the thread ends."""
        with self._changed:
            while self._runner is runner and not any(self._waiting.values()):
                if self._is_stopped or not self._changed.wait(_UNUSED_S):
                    self._runner = None
            return self._runner is runner

    def _serve(self, runner: "_Runner") -> None:
        """Run calls until none waits."""
        results: list[Any] = []
        while True:
            done, tasks = self._next(runner, results)
            _hand_over(done)
            if not tasks:
                return
            results = _results_of(tasks)

    def _next(
        self, runner: "_Runner", results: list[Any]
    ) -> tuple[list[tuple[_Task, Any]], list[_Task]]:
        """The results to hand over, and the next tasks: one, or several together. `results`: of
        the thread's current tasks."""
        with self._changed:
            now = time.monotonic()
            if not runner.done:
                runner.hand_over_at = runner.since + _HAND_OVER_S
            runner.done += zip(runner.current, results, strict=True)
            runner.current = self._take() if self._runner is runner else []
            runner.since = now
            done: list[tuple[_Task, Any]] = []
            # (Out of the count before it is handed over: a caller may be back at once.)
            if not runner.current or now >= runner.hand_over_at:
                done, runner.done = runner.done, []
            return done, runner.current

    def _take(self) -> list[_Task]:
        waiting = self._waiting["finish"] or self._waiting["prepare"]
        if not waiting:
            return []
        tasks = [waiting.popitem(last=False)[1]]
        many = tasks[0].many
        while many is not None and waiting and len(tasks) < _MOST_TOGETHER:
            if next(iter(waiting.values())).many is not many:
                break
            tasks.append(waiting.popitem(last=False)[1])
        return tasks

    # ---- calls that do not return

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Under the lock: look again when a call that begins now has taken too long."""
        self._watched_by = loop
        loop.call_later(self._long_s, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs regularly while there are calls, in the loop of one of the callers."""
        with self._changed:
            if self._watched_by is loop:
                self._watched_by = None
            self._stuck = [runner for runner in self._stuck if not runner.is_over]
            now = time.monotonic()
            runner = self._runner
            if runner is not None and runner.is_calling(since=now - self._long_s):
                self._replace(runner)
            for stuck in self._stuck:
                if stuck.is_calling(since=now - self._limit_s):
                    text = f"did not come back within {self._limit_s:g} s"
                    _hand_over([(t, ModelFailed(f"{t.kind} {text}")) for t in stuck.current])
            runs = self._runner is not None and self._runner.current
            if (runs or self._stuck or any(self._waiting.values())) and self._watched_by is None:
                self._watch(loop)

    def _replace(self, runner: "_Runner") -> None:
        """Under the lock: replace a stuck thread. Another one takes the waiting calls."""
        _log.error("%s: a call has not come back within %g s", self._name, self._long_s)
        self._stuck.append(runner)
        self._runner = None
        done, runner.done = runner.done, []
        try:
            self._start_thread()
        except NotReady as error:
            for waiting in self._waiting.values():
                refused = NotReady(str(error), retry_after_s=_RETRY_S)
                done += [(task, refused) for task in waiting.values()]
                waiting.clear()
        _hand_over(done)

    def _is_full(self) -> bool:
        return sum(not runner.is_over for runner in self._stuck) >= _MOST_STUCK

    def _not_ready(self) -> NotReady:
        return NotReady(
            f"{_MOST_STUCK} calls of `prepare` or `finish` have not come back within "
            f"{self._long_s:g} s",
            retry_after_s=_RETRY_S,
        )


def _expire(future: _Future, kind: Kind) -> None:
    if not future.done():
        future.set_exception(DeadlineExceeded(f"the deadline passed before `{kind}` was done"))


class _Runner:
    """What one thread is doing."""

    def __init__(self) -> None:
        self.current: list[_Task] = []  # in user code now …
        self.since = 0.0  # … from here on
        self.done: list[tuple[_Task, Any]] = []  # not handed over yet …
        self.hand_over_at = math.inf  # … until then
        self.is_over = False

    def is_calling(self, *, since: float) -> bool:
        return bool(self.current) and self.since <= since


def _results_of(tasks: list[_Task]) -> list[Any]:
    """One result for each task, in order; an exception is a result. None if the caller has left."""
    waiting = [task for task in tasks if not task.future.done()]
    many = waiting[0].many if len(waiting) > 1 else None
    if many is not None:
        found = call_user_code("prepare", many, [task.value for task in waiting])
        if isinstance(found, list) and len(found) == len(waiting):
            results = dict(zip(map(id, waiting), found, strict=True))
            return [results.get(id(task)) for task in tasks]
        # It failed for one of the values: run them one by one to find it.
    return [
        None if task.future.done() else call_user_code(task.kind, task.function, task.value)
        for task in tasks
    ]


def call_user_code(what: str, function: Callable[[Any], Any], value: Any) -> Any:
    """The function's result, or its exception as a value: a user's one as ModelFailed.

    The result is its caller's own: the next call may reuse its buffer.
    """
    try:
        return own(function(value))
    except HeadwayError as error:
        return readable(error)
    except BaseException as error:  # noqa: BLE001  prepare, size and finish are user code; sys.exit() ends a call
        failure = ModelFailed(f"{what} raised {name_of(error)}: {text_of(error)}")
        failure.__cause__ = readable(error)
        return failure


def _hand_over(done: list[tuple[_Task, Any]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for task, result in done:
        by_loop.setdefault(task.future.get_loop(), []).append((task.future, result))
    for loop, results in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(_settle, results)


def _settle(results: list[tuple["asyncio.Future[Any]", Any]]) -> None:
    for future, result in results:
        if future.done():
            continue
        if not is_error(result):
            future.set_result(result)
        elif issubclass(type(result), StopIteration):  # a future cannot hold one
            future.set_exception(ModelFailed("a callback returned a StopIteration"))
        else:
            future.set_exception(readable(result))
