"""Slow code of others (imports, loading weights) off the event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from headway.errors import NotReady
from headway.runtime.calling.faults import name_of, readable, text_of

T = TypeVar("T")
_RETRY_S = 1.0
# Who sent the current request: a tenant or an address. Clients take turns.
current_client: ContextVar[str] = ContextVar("current_client", default="")


def start_thread(target: Callable[..., object], *arguments: Any, name: str) -> threading.Thread:
    """Start a daemon thread, which cannot keep the interpreter from ending if user code hangs.
    Raises NotReady if the system has no more threads; a later call may succeed."""
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise NotReady(f"{name} cannot run: {error}", retry_after_s=_RETRY_S) from error
    return thread


class Lanes(Generic[T]):
    """Waiting work, by client. Clients take turns, so a client with one piece waits for at most one
    piece of every other client. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[T]] = {}  # the next client first

    def put(self, client: str, piece: T) -> None:
        with self._lock:
            self._waiting.setdefault(client, deque()).append(piece)

    def take(self, but: str | None = None) -> T | None:
        """None: there is no work, except of the client `but`."""
        with self._lock:
            client = next((each for each in self._waiting if each != but), None)
            if client is None:
                return None
            waiting = self._waiting.pop(client)
            piece = waiting.popleft()
            if waiting:
                self._waiting[client] = waiting  # behind the others
            return piece


class ThreadPool:
    """A few lasting threads for many short pieces of work: to start a thread takes longer than to
    tokenise a short text. Used in one event loop."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._started = 0
        self._lanes: Lanes[Callable[[], None]] = Lanes()
        self._wake: SimpleQueue[bool] = SimpleQueue()  # True for each piece of work; False: end

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """As `run_in_thread`, in turns with the work of other clients. Raises NotReady."""
        loop = asyncio.get_running_loop()
        if getattr(loop, "is_virtual", False):
            return function(*arguments)
        if self._started < self._count:
            start_thread(self._serve, name=self._name)
            self._started += 1
        future: asyncio.Future[T] = loop.create_future()
        self._lanes.put(current_client.get(), lambda: _work(loop, future, function, arguments))
        self._wake.put(True)
        return await future

    def close(self) -> None:
        """Threads end with the work that they have."""
        for _ in range(self._started):
            self._wake.put(False)
        self._started = 0

    def _serve(self) -> None:
        while self._wake.get():
            work = self._lanes.take()
            assert work is not None, "there is no work"
            work()


async def run_in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """`function(*arguments)` in a thread of its own; on virtual time, which has none, right here.

    A daemon's, unlike `asyncio.to_thread`: a load that never ends cannot keep the process alive.
    A caller that is cancelled leaves it behind.
    """
    loop = asyncio.get_running_loop()
    if getattr(loop, "is_virtual", False):
        return function(*arguments)
    future: asyncio.Future[T] = loop.create_future()
    start_thread(_work, loop, future, function, arguments, name="headway-load")
    return await future


def _work(
    loop: asyncio.AbstractEventLoop,
    future: "asyncio.Future[T]",
    function: Callable[..., T],
    arguments: tuple[Any, ...],
) -> None:
    """In a thread: call the function and report to the loop, unless the caller has left."""
    if future.done():
        return
    result: Any = None
    failure: BaseException | None = None
    try:
        result = function(*arguments)
    except BaseException as error:  # noqa: BLE001  user code; sys.exit() ends the load, not the server
        failure = awaitable(error)
    with suppress(RuntimeError):  # the loop is closed: no caller waits any more
        loop.call_soon_threadsafe(_settle, future, result, failure)


def _settle(future: "asyncio.Future[T]", result: T, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def awaitable(error: BaseException) -> Exception:
    """An equivalent error that a future can hold and a task may raise."""
    error = readable(error)
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failure = RuntimeError(f"{name_of(error)}: {text_of(error)}")
    failure.__cause__ = error
    return failure
