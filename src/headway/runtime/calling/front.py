"""Prepares values and finishes results off the event loop, in one thread, many at a time.

Tokenising takes milliseconds: in the loop it would hold up every other caller. One hop to the
thread serves all values that came in meanwhile, answers first. Beyond a limit it takes no more.
"""

import asyncio
import logging
import math
import queue
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

from headway.errors import DeadlineExceeded, HeadwayError, ModelFailed, NotReady, QueueFull
from headway.runtime.calling.faults import is_error, name_of, readable, text_of
from headway.runtime.calling.owning import own
from headway.runtime.calling.threads import start_thread

_log = logging.getLogger(__name__)
_LONG_S = 10.0  # for one call of the user's; then another thread goes on with the others
_MOST_STUCK = 4  # threads, whose calls do not come back
_RETRY_S = 10.0  # what callers are told when all are stuck
_HAND_OVER_S = 0.001  # values prepared within this time cross back to the loop together

Kind: TypeAlias = Literal["prepare", "finish"]


# Several values at once: a result or an exception for each.
Many: TypeAlias = Callable[[list[Any]], list[Any]]
_MOST_TOGETHER = 64  # values; more would keep the first of them waiting


class _Task(NamedTuple):
    kind: Kind
    function: Callable[[Any], Any]
    value: Any
    future: "asyncio.Future[Any]"
    many: Many | None = None  # the same for all waiting values, where that is faster


class FrontThread:
    """Starts its thread with the first task; stops it with `stop`, or when nobody uses it.

    A call that takes long keeps its thread, and another one goes on with what waits behind it: up
    to a number, beyond which calls are refused until one comes back.
    """

    def __init__(self, name: str, max_waiting: int, limit_s: float | None = None) -> None:
        """`limit_s`: a call that takes longer is answered with ModelFailed; None: no limit."""
        self._name = name
        self._max_waiting = max_waiting
        self._limit_s = math.inf if limit_s is None else limit_s
        self._patience_s = min(_LONG_S, self._limit_s)
        self._tasks = _Tasks()
        self._lock = threading.Lock()
        self._shift: _Shift | None = None  # of the thread that takes what comes
        self._stuck: list[_Shift] = []
        self._watched_by: asyncio.AbstractEventLoop | None = None  # its timer looks
        self._is_stopped = False
        weakref.finalize(self, self._tasks.end).atexit = False

    @property
    def is_stuck(self) -> bool:
        """New calls are refused: as many as may hang have not come back for long."""
        if not self._stuck:  # asked with every request: mostly there is nothing to look at
            return False
        with self._lock:
            return self._is_full()

    def check_room(self) -> None:
        """Raise QueueFull when enough callers are here, NotReady where all of them hang."""
        if self._stuck and self.is_stuck:
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
        """`function(value)`, computed in the thread. What has been answered is never refused.

        `deadline`: on the clock of `time.monotonic`; raises DeadlineExceeded, wherever it is then.
        """
        if kind == "prepare":
            self.check_room()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self._shift is None:
                self._start_thread()
            self._tasks.add(_Task(kind, function, value, future, many))
            if self._is_stopped:  # results of the last batches are still to be finished
                self._stop_thread()
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
        """After all that is under way. What comes later gets a thread that ends again."""
        with self._lock:
            self._is_stopped = True
            if self._shift is not None:
                self._stop_thread()

    def _start_thread(self) -> None:
        """Raises NotReady."""
        if self._is_full():
            raise self._not_ready()
        shift = _Shift()
        # It knows the tasks only: an unused batcher, and all that belongs to it, can go.
        start_thread(_work, self._tasks, shift, name=self._name)
        self._shift = shift

    def _stop_thread(self) -> None:
        self._tasks.end()
        self._shift = None

    # ---- calls that do not come back

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Under the lock: look after the thread when a call of now would have taken too long."""
        self._watched_by = loop
        loop.call_later(self._patience_s, _look_after, weakref.ref(self), loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the loop of one of the callers, once in a while as long as there are any."""
        with self._lock:
            if self._watched_by is loop:
                self._watched_by = None
            self._stuck = [shift for shift in self._stuck if not shift.is_over]
            if self._shift is not None:
                self._replace_stuck(self._shift)
            self._tell_overdue()
            if (len(self._tasks) or self._stuck) and self._watched_by is None:
                self._watch(loop)

    def _replace_stuck(self, shift: "_Shift") -> None:
        """Under the lock. What it had done is handed over, what waits goes to another thread."""
        if not self._tasks.replace(shift, before=time.monotonic() - self._patience_s):
            return
        _log.error("%s: a call has not come back within %g s", self._name, self._patience_s)
        self._stuck.append(shift)
        self._shift = None
        done = self._tasks.take_done(shift)
        try:
            self._start_thread()
            self._tasks.call_again()
            if self._is_stopped:
                self._stop_thread()
        except NotReady as error:
            done += [
                (task, NotReady(str(error), retry_after_s=_RETRY_S)) for task in self._tasks.clear()
            ]
        _hand_over(done)

    def _tell_overdue(self) -> None:
        """Under the lock."""
        before = time.monotonic() - self._limit_s
        text = f"did not come back within {self._limit_s:g} s"
        for shift in self._stuck:
            if shift.since <= before:
                _hand_over([(task, ModelFailed(f"{task.kind} {text}")) for task in shift.current])

    def _is_full(self) -> bool:
        return sum(not shift.is_over for shift in self._stuck) >= _MOST_STUCK

    def _not_ready(self) -> NotReady:
        return NotReady(
            f"{_MOST_STUCK} calls of `prepare` or `finish` have not come back within "
            f"{self._patience_s:g} s",
            retry_after_s=_RETRY_S,
        )


def _look_after(front: "weakref.ref[FrontThread]", loop: asyncio.AbstractEventLoop) -> None:
    found = front()
    if found is not None:
        found._look(loop)


def _expire(future: "asyncio.Future[Any]", kind: Kind) -> None:
    if not future.done():
        future.set_exception(DeadlineExceeded(f"the deadline passed before `{kind}` was done"))


class _Shift:
    """What one thread is doing. Guarded by the tasks' lock."""

    def __init__(self) -> None:
        self.current: list[_Task] = []  # in user code now …
        self.since = 0.0  # … from here on
        self.done: list[tuple[_Task, Any]] = []  # not handed over yet
        self.is_replaced = False
        self.is_over = False


class _Tasks:
    """What waits for the thread, in any number of threads. A call that leaves, leaves no trace."""

    def __init__(self) -> None:
        self._finishes: OrderedDict[asyncio.Future[Any], _Task] = OrderedDict()  # these go first
        self._prepares: OrderedDict[asyncio.Future[Any], _Task] = OrderedDict()
        self._taken = 0  # by a thread that has not handed them over yet
        self._lock = threading.Lock()
        self._is_awake = False  # a thread will look for tasks before it sleeps
        # True: there are tasks; False: end. A SimpleQueue: `end` is called by the garbage
        # collector, too, wherever that finds its thread, and must not need a lock.
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._finishes) + len(self._prepares) + self._taken

    def add(self, task: _Task) -> None:
        with self._lock:
            self._of(task.kind)[task.future] = task
            if not self._is_awake:
                self._is_awake = True
                self._calls.put(True)

    def discard(self, kind: Kind, future: "asyncio.Future[Any]") -> None:
        with self._lock:
            self._of(kind).pop(future, None)

    def end(self) -> None:
        """End one thread, once nothing is left to do."""
        self._calls.put(False)

    def wait(self) -> bool:
        """Sleep until there are tasks. False: end."""
        return self._calls.get()

    def next(self, shift: _Shift) -> list[_Task]:
        """One task, or several to be done at once. Empty: none is left, and the next will call; or
        another thread has taken over."""
        with self._lock:
            if shift.is_replaced:
                return []
            for waiting in (self._finishes, self._prepares):
                if waiting:
                    tasks = [waiting.popitem(last=False)[1]]
                    many = tasks[0].many
                    while many is not None and waiting and len(tasks) < _MOST_TOGETHER:
                        if next(iter(waiting.values())).many is not many:
                            break
                        tasks.append(waiting.popitem(last=False)[1])
                    self._taken += len(tasks)
                    shift.current, shift.since = tasks, time.monotonic()
                    return tasks
            self._is_awake = False
            return []

    def finished(self, shift: _Shift, results: list[Any]) -> None:
        """Of the shift's current tasks."""
        with self._lock:
            shift.done += zip(shift.current, results, strict=True)
            shift.current = []

    def take_done(self, shift: _Shift) -> "list[tuple[_Task, Any]]":
        """To be handed over now. (Counted before: a caller may be back with its next value.)"""
        with self._lock:
            done, shift.done = shift.done, []
            self._taken -= len(done) if not shift.is_replaced else 0
            return done

    def replace(self, shift: _Shift, *, before: float) -> bool:
        """Let it take nothing more, if it is in a call that began before then."""
        with self._lock:
            if not shift.current or shift.since > before:
                return False
            shift.is_replaced = True
            self._taken -= len(shift.done) + len(shift.current)
            return True

    def call_again(self) -> None:
        """Wake the thread that has taken over from the one before."""
        with self._lock:
            self._is_awake = True
            self._calls.put(True)

    def clear(self) -> list[_Task]:
        """No thread will serve the waiting calls."""
        with self._lock:
            cleared = [*self._finishes.values(), *self._prepares.values()]
            self._finishes.clear()
            self._prepares.clear()
            self._is_awake = False
            return cleared

    def _of(self, kind: Kind) -> "OrderedDict[asyncio.Future[Any], _Task]":
        return self._finishes if kind == "finish" else self._prepares


def _work(tasks: _Tasks, shift: _Shift) -> None:
    try:
        while not shift.is_replaced and tasks.wait():
            while _serve_some(tasks, shift):
                pass
    finally:
        shift.is_over = True


def _serve_some(tasks: _Tasks, shift: _Shift) -> bool:
    """What can be done within the time of one hand-over. False: nothing was left to do."""
    hand_over_at = time.monotonic() + _HAND_OVER_S
    has_served = False
    while some := tasks.next(shift):
        has_served = True
        tasks.finished(shift, _results_of(some))
        if time.monotonic() >= hand_over_at:
            break
    _hand_over(tasks.take_done(shift))
    return has_served


def _results_of(tasks: list[_Task]) -> list[Any]:
    """One for each, in order; an exception is a result. Whose caller has left has none."""
    waiting = [task for task in tasks if not task.future.done()]
    many = waiting[0].many if len(waiting) > 1 else None
    if many is not None:
        found = call_user_code("prepare", many, [task.value for task in waiting])
        if isinstance(found, list) and len(found) == len(waiting):
            results = dict(zip(map(id, waiting), found, strict=True))
            return [results.get(id(task)) for task in tasks]
        # It broke for one of them: run one by one to see for which.
    return [
        None if task.future.done() else call_user_code(task.kind, task.function, task.value)
        for task in tasks
    ]


def call_user_code(what: str, function: Callable[[Any], Any], value: Any) -> Any:
    """The function's result, or the exception as a value: ours as it is, theirs as ModelFailed.

    The result is its caller's own: the next call may reuse what it lies in.
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
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
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
