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

_HAND_OVER_S = 0.001  # values prepared within this time cross back to the loop together

Kind: TypeAlias = Literal["prepare", "finish"]


class _Task(NamedTuple):
    kind: Kind
    function: Callable[[Any], Any]
    value: Any
    future: "asyncio.Future[Any]"


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

    async def run(self, kind: Kind, function: Callable[[Any], Any], value: Any) -> Any:
        """`function(value)`, computed in the thread. What has been answered is never refused."""
        if kind == "prepare":
            self.check_room()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._tasks.add(_Task(kind, function, value, future))
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

    def next(self) -> _Task | None:
        """None: nothing is left, and the next task will call."""
        with self._lock:
            for waiting in (self._finishes, self._prepares):
                if waiting:
                    self._taken += 1
                    return waiting.popitem(last=False)[1]
            self._is_awake = False
            return None

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
    while (task := tasks.next()) is not None:
        taken += 1
        if task.future.done():
            continue  # its caller left
        result = _call_in_thread(task.kind, task.function, task.value)
        done.setdefault(task.future.get_loop(), []).append((task.future, result))
        if time.monotonic() >= hand_over_at:
            break
    tasks.hand_over(taken)  # before: a caller may be back with its next value at once
    for loop, results in done.items():
        _hand_over(loop, results)
    return task is not None


def call_user_code(what: str, function: Callable[[Any], Any], value: Any) -> Any:
    """The function's result, or the exception as a value: ours as it is, theirs as ModelFailed."""
    try:
        return function(value)
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
