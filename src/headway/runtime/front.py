"""Prepares values and finishes results off the event loop, in one thread, many at a time.

Tokenising takes milliseconds: in the loop it would hold up every other caller. One hop to the
thread serves all values that came in meanwhile.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from headway.errors import HeadwayError, ModelFailed

_HAND_OVER_S = 0.001  # values prepared within this time cross back to the loop together


class _Errand(NamedTuple):
    what: str
    function: Callable[[Any], Any]
    value: Any
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"


class FrontThread:
    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: queue.SimpleQueue[_Errand | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_running = False
        self._is_stopped = False

    async def run(self, what: str, function: Callable[[Any], Any], value: Any) -> Any:
        """`function(value)`, computed in the thread; `what` names it in errors."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            self._inbox.put(_Errand(what, function, value, loop, future))
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
                if self._is_stopped:  # results of the last batches are still to be finished
                    self._stop_thread()
        return await future

    def stop(self) -> None:
        """After all that is under way. What comes later gets a thread that ends again."""
        with self._lock:
            self._is_stopped = True
            if self._is_running:
                self._stop_thread()

    def _stop_thread(self) -> None:
        self._inbox.put(None)
        self._is_running = False

    def _work(self) -> None:
        while (errand := self._inbox.get()) is not None:
            hand_over_at = time.monotonic() + _HAND_OVER_S
            done: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
            stop = False
            while errand is not None:
                result = _call_in_thread(errand.what, errand.function, errand.value)
                done.setdefault(errand.loop, []).append((errand.future, result))
                errand = None
                if time.monotonic() < hand_over_at:
                    with suppress(queue.Empty):
                        errand = self._inbox.get_nowait()
                        stop = errand is None
            for loop, results in done.items():
                _hand_over(loop, results)
            if stop:
                return


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
