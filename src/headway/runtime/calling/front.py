"""Prepares values and finishes results off the event loop, in one thread, many at a time.

Tokenising takes milliseconds: in the loop it would hold up every other caller. One hop to the
thread serves all values that came in meanwhile, answers first. Beyond a limit it takes no more.
"""

import asyncio
import queue
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

from headway.errors import HeadwayError, ModelFailed, QueueFull
from headway.runtime.calling.owning import own

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
    many: Many | None = None  # the same for all who wait, where that is faster


class FrontThread:
    """Starts its thread with the first task; stops it with `stop`, or when nobody uses it."""

    def __init__(self, name: str, max_waiting: int) -> None:
        self._name = name
        self._max_waiting = max_waiting
        self._tasks = _Tasks()
        self._lock = threading.Lock()
        self._is_running = False
        self._is_stopped = False
        weakref.finalize(self, self._tasks.end).atexit = False

    def check_room(self) -> None:
        """Raise QueueFull when enough callers are here."""
        if len(self._tasks) >= self._max_waiting:
            raise QueueFull(
                f"{self._max_waiting} callers are in `prepare` or `finish` already",
                limit=self._max_waiting,
            )

    async def run(
        self, kind: Kind, function: Callable[[Any], Any], value: Any, many: Many | None = None
    ) -> Any:
        """`function(value)`, computed in the thread. What has been answered is never refused."""
        if kind == "prepare":
            self.check_room()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._tasks.add(_Task(kind, function, value, future, many))
            if not self._is_running:
                self._start_thread()
        try:
            return await future
        finally:
            if future.cancelled():
                self._tasks.discard(kind, future)

    def stop(self) -> None:
        """After all that is under way. What comes later gets a thread that ends again."""
        with self._lock:
            self._is_stopped = True
            if self._is_running:
                self._stop_thread()

    def _start_thread(self) -> None:
        self._is_running = True
        # It knows the tasks only: an unused batcher, and all that belongs to it, can go.
        threading.Thread(target=_work, args=(self._tasks,), name=self._name, daemon=True).start()
        if self._is_stopped:  # results of the last batches are still to be finished
            self._stop_thread()

    def _stop_thread(self) -> None:
        self._tasks.end()
        self._is_running = False


class _Tasks:
    """What waits for the thread, in any number of threads. Who leaves, leaves no trace."""

    def __init__(self) -> None:
        self._finishes: OrderedDict[asyncio.Future[Any], _Task] = OrderedDict()  # these go first
        self._prepares: OrderedDict[asyncio.Future[Any], _Task] = OrderedDict()
        self._taken = 0  # by a thread that has not handed them over yet
        self._lock = threading.Lock()
        self._is_awake = False  # somebody will look for tasks before he sleeps
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

    def next(self) -> list[_Task]:
        """One task, or several to be done at once. Empty: none is left, and the next will call."""
        with self._lock:
            for waiting in (self._finishes, self._prepares):
                if waiting:
                    tasks = [waiting.popitem(last=False)[1]]
                    many = tasks[0].many
                    while many is not None and waiting and len(tasks) < _MOST_TOGETHER:
                        if next(iter(waiting.values())).many is not many:
                            break
                        tasks.append(waiting.popitem(last=False)[1])
                    self._taken += len(tasks)
                    return tasks
            self._is_awake = False
            return []

    def hand_over(self, count: int) -> None:
        with self._lock:
            self._taken -= count

    def _of(self, kind: Kind) -> "OrderedDict[asyncio.Future[Any], _Task]":
        return self._finishes if kind == "finish" else self._prepares


def _work(tasks: _Tasks) -> None:
    while tasks.wait():
        while _serve_some(tasks):
            pass


def _serve_some(tasks: _Tasks) -> bool:
    """What can be done within the time of one hand-over. False: nothing was left to do."""
    hand_over_at = time.monotonic() + _HAND_OVER_S
    taken = 0
    done: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    while some := tasks.next():
        taken += len(some)
        some = [task for task in some if not task.future.done()]  # else its caller left
        for task, result in zip(some, _results_of(some), strict=True):
            done.setdefault(task.future.get_loop(), []).append((task.future, result))
        if time.monotonic() >= hand_over_at:
            break
    tasks.hand_over(taken)  # before: a caller may be back with its next value at once
    for loop, results in done.items():
        _hand_over(loop, results)
    return taken > 0


def _results_of(tasks: list[_Task]) -> list[Any]:
    """One for each, in order; an exception is a result."""
    many = tasks[0].many if len(tasks) > 1 else None
    if many is not None:
        found = _call_in_thread("prepare", many, [task.value for task in tasks])
        if isinstance(found, list) and len(found) == len(tasks):
            return found
        # It broke for somebody: whose fault that was shows one by one.
    return [_call_in_thread(task.kind, task.function, task.value) for task in tasks]


def call_user_code(what: str, function: Callable[[Any], Any], value: Any) -> Any:
    """The function's result, or the exception as a value: ours as it is, theirs as ModelFailed.

    The result is its caller's own: the next call may reuse what it lies in.
    """
    try:
        return own(function(value))
    except HeadwayError as error:
        return error
    except Exception as error:  # noqa: BLE001  prepare, size and finish are user code
        return _failure(what, error)


def _call_in_thread(what: str, function: Callable[[Any], Any], value: Any) -> Any:
    """The same in a thread of ours, which must survive even sys.exit()."""
    try:
        return call_user_code(what, function, value)
    except BaseException as error:  # noqa: BLE001  as above
        return _failure(what, error)


def _failure(what: str, error: BaseException) -> ModelFailed:
    failure = ModelFailed(f"{what} raised {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _hand_over(
    loop: asyncio.AbstractEventLoop, results: list[tuple["asyncio.Future[Any]", Any]]
) -> None:
    def settle() -> None:
        for future, result in results:
            if future.done():
                continue
            if isinstance(result, StopIteration):  # a future cannot hold one
                future.set_exception(ModelFailed("a callback returned a StopIteration"))
            elif isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(settle)
