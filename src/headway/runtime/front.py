"""Prepares values and finishes results off the event loop, in one thread, many at a time.

Tokenising takes milliseconds: in the loop it would hold up every other caller. One hop to the
thread serves all values that came in meanwhile.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from headway.errors import HeadwayError, ModelFailed


class _Errand(NamedTuple):
    function: Callable[[Any], Any]
    value: Any
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"


class FrontThread:
    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: queue.SimpleQueue[_Errand | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[[Any], Any], value: Any) -> Any:
        """`function(value)`, computed in the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._inbox.put(_Errand(function, value, loop, future))
        return await future

    def stop(self) -> None:
        if self._thread is not None:
            self._inbox.put(None)

    def _work(self) -> None:
        while (errand := self._inbox.get()) is not None:
            done: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
            stop = False
            while errand is not None:
                result = call_user_code(errand.function, errand.value)
                done.setdefault(errand.loop, []).append((errand.future, result))
                try:
                    errand = self._inbox.get_nowait()
                    stop = errand is None
                except queue.Empty:
                    errand = None
            for loop, results in done.items():
                _hand_over(loop, results)
            if stop:
                return


def call_user_code(function: Callable[[Any], Any], value: Any) -> Any:
    """The function's result, or the exception as a value: ours as it is, theirs as ModelFailed."""
    try:
        return function(value)
    except HeadwayError as error:
        return error
    except Exception as error:  # noqa: BLE001  prepare, size and finish are user code
        name = getattr(function, "__name__", "a callback")
        failure = ModelFailed(f"{name} raised {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure


def _hand_over(
    loop: asyncio.AbstractEventLoop, results: list[tuple["asyncio.Future[Any]", Any]]
) -> None:
    def settle() -> None:
        for future, result in results:
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(settle)
