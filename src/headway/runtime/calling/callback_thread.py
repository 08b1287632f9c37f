"""Runs `prepare`, `size` and `finish` off the event loop, in one thread, many at a time.

Tokenising takes milliseconds: in the loop it would hold up every other caller. One hop to the
thread serves all values that came in meanwhile, answers first. Beyond a limit it takes no more.
"""

import asyncio
import logging
import math
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
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
    """Starts its thread with the first task; stops it with `stop`, or when it is unused.

    A call that takes long keeps its thread, and another one goes on with the waiting calls: up to
    a number of threads, beyond which calls are refused until one comes back.
    """

    def __init__(self, name: str, max_waiting: int, limit_s: float | None = None) -> None:
        """`limit_s`: a call that takes longer is answered with ModelFailed; None: no limit."""
        self._name = name
        self._max_waiting = max_waiting
        self._limit_s = math.inf if limit_s is None else limit_s
        self._long_s = min(_LONG_S, self._limit_s)
        self._tasks = _Tasks()
        self._stuck: list[_Thread] = []
        self._watched_by: asyncio.AbstractEventLoop | None = None  # its timer looks
        self._is_stopped = False
        weakref.finalize(self, self._tasks.wake.put, False).atexit = False

    @property
    def is_stuck(self) -> bool:
        """Are new calls refused, because the maximum number of calls hang?"""
        return len(self._stuck) >= _MOST_STUCK and self._is_full()

    def check_room(self) -> None:
        """Raise QueueFull if too many calls wait, NotReady if all threads hang."""
        if self.is_stuck:
            raise self._not_ready()
        if len(self._tasks) >= self._max_waiting:
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
        with self._tasks.lock:
            if self._tasks.thread is None:
                self._start_thread()
            self._tasks.add(_Task(kind, function, value, future, many))
            if self._is_stopped:  # results of the last batches are still to be finished
                self._tasks.stop_thread()
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
                self._tasks.discard(kind, future)

    def stop(self) -> None:
        """End the thread after all waiting calls. Later calls get a thread that ends again."""
        with self._tasks.lock:
            self._is_stopped = True
            if self._tasks.thread is not None:
                self._tasks.stop_thread()

    def _start_thread(self) -> None:
        """Raises NotReady."""
        if self._is_full():
            raise self._not_ready()
        thread = _Thread()
        # It references the tasks only, so that an unused batcher can be garbage collected.
        start_thread(_work, self._tasks, thread, name=self._name)
        self._tasks.thread = thread

    # ---- calls that do not return

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Under the lock: call `look` when a call that begins now has taken too long."""
        self._watched_by = loop
        loop.call_later(self._long_s, _look_after, weakref.ref(self), loop)

    def look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs regularly while there are calls, in the loop of one of the callers."""
        with self._tasks.lock:
            if self._watched_by is loop:
                self._watched_by = None
            self._stuck = [thread for thread in self._stuck if not thread.is_over]
            now = time.monotonic()
            thread = self._tasks.thread
            if thread is not None and thread.is_calling(since=now - self._long_s):
                self._replace(thread)
            for stuck in self._stuck:
                if stuck.is_calling(since=now - self._limit_s):
                    text = f"did not come back within {self._limit_s:g} s"
                    _hand_over([(t, ModelFailed(f"{t.kind} {text}")) for t in stuck.current])
            if (len(self._tasks) or self._stuck) and self._watched_by is None:
                self._watch(loop)

    def _replace(self, thread: "_Thread") -> None:
        """Under the lock: replace a stuck thread. Another one takes the waiting calls."""
        _log.error("%s: a call has not come back within %g s", self._name, self._long_s)
        thread.is_replaced = True
        self._stuck.append(thread)
        self._tasks.thread = None
        done, thread.done = thread.done, []
        try:
            self._start_thread()
            self._tasks.wake.put(True)
            if self._is_stopped:
                self._tasks.stop_thread()
        except NotReady as error:
            done += [
                (task, NotReady(str(error), retry_after_s=_RETRY_S)) for task in self._tasks.clear()
            ]
        _hand_over(done)

    def _is_full(self) -> bool:
        return sum(not thread.is_over for thread in self._stuck) >= _MOST_STUCK

    def _not_ready(self) -> NotReady:
        return NotReady(
            f"{_MOST_STUCK} calls of `prepare` or `finish` have not come back within "
            f"{self._long_s:g} s",
            retry_after_s=_RETRY_S,
        )


def _look_after(owner: "weakref.ref[CallbackThread]", loop: asyncio.AbstractEventLoop) -> None:
    found = owner()
    if found is not None:
        found.look(loop)


def _expire(future: _Future, kind: Kind) -> None:
    if not future.done():
        future.set_exception(DeadlineExceeded(f"the deadline passed before `{kind}` was done"))


class _Thread:
    """What one thread is doing. Guarded by the tasks' lock."""

    def __init__(self) -> None:
        self.current: list[_Task] = []  # in user code now …
        self.since = 0.0  # … from here on
        self.done: list[tuple[_Task, Any]] = []  # not handed over yet …
        self.hand_over_at = math.inf  # … until then
        self.is_replaced = False
        self.is_over = False

    def is_calling(self, *, since: float) -> bool:
        return bool(self.current) and self.since <= since


class _Tasks:
    """The waiting calls, and the thread that takes them. Calls of callers that left are removed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: _Thread | None = None
        # True: there are tasks; False: end. A SimpleQueue: the garbage collector may put an end,
        # wherever that finds its thread, and must not need a lock.
        self.wake: SimpleQueue[bool] = SimpleQueue()
        self._finishes: OrderedDict[_Future, _Task] = OrderedDict()  # these go first
        self._prepares: OrderedDict[_Future, _Task] = OrderedDict()
        self._is_awake = False  # a thread will look for tasks before it sleeps

    def __len__(self) -> int:
        waiting, thread = len(self._finishes) + len(self._prepares), self.thread
        return waiting if thread is None else waiting + len(thread.current) + len(thread.done)

    def add(self, task: _Task) -> None:
        """Add a task. Under the lock."""
        self._of(task.kind)[task.future] = task
        if not self._is_awake:
            self._is_awake = True
            self.wake.put(True)

    def discard(self, kind: Kind, future: _Future) -> None:
        with self.lock:
            self._of(kind).pop(future, None)

    def clear(self) -> list[_Task]:
        """Under the lock: no thread will serve the waiting calls."""
        cleared = [*self._finishes.values(), *self._prepares.values()]
        self._finishes.clear()
        self._prepares.clear()
        self._is_awake = False
        return cleared

    def stop_thread(self) -> None:
        """Under the lock: end the thread once no call is left."""
        self.wake.put(False)
        self.thread = None

    def next(
        self, thread: _Thread, results: list[Any]
    ) -> tuple[list[tuple[_Task, Any]], list[_Task]]:
        """The results to hand over, and the next tasks: one, or several together. `results`: of
        the thread's current tasks."""
        with self.lock:
            now = time.monotonic()
            if not thread.done:
                thread.hand_over_at = thread.since + _HAND_OVER_S
            thread.done += zip(thread.current, results, strict=True)
            thread.current = [] if thread.is_replaced else self._take()
            thread.since = now
            done: list[tuple[_Task, Any]] = []
            # (Out of the count before it is handed over: a caller may be back at once.)
            if not thread.current or now >= thread.hand_over_at:
                done, thread.done = thread.done, []
            return done, thread.current

    def _take(self) -> list[_Task]:
        waiting = self._finishes or self._prepares
        if not waiting:
            self._is_awake = False
            return []
        tasks = [waiting.popitem(last=False)[1]]
        many = tasks[0].many
        while many is not None and waiting and len(tasks) < _MOST_TOGETHER:
            if next(iter(waiting.values())).many is not many:
                break
            tasks.append(waiting.popitem(last=False)[1])
        return tasks

    def _of(self, kind: Kind) -> OrderedDict[_Future, _Task]:
        return self._finishes if kind == "finish" else self._prepares


def _work(tasks: _Tasks, thread: _Thread) -> None:
    try:
        while not thread.is_replaced and tasks.wake.get():
            _serve(tasks, thread)  # a function of its own: no caller's value is kept while waiting
    finally:
        thread.is_over = True


def _serve(tasks: _Tasks, thread: _Thread) -> None:
    """Run tasks until none is left."""
    results: list[Any] = []
    while True:
        done, some = tasks.next(thread, results)
        _hand_over(done)
        if not some:
            return
        results = _results_of(some)


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
