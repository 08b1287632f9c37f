"""Large bodies are read, unpacked and written in a few threads, in short steps.

Python runs one thread at a time, and what msgspec, zlib or numpy do in one call is not interrupted:
a thread alone would hold the event loop up all the same. So work that takes long is cut into steps
of about a millisecond, and rests between them. Clients take turns: a body waits for one of every
other client, not for all that a client has sent.
"""

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias, TypeVar

from headway.errors import DeadlineExceeded
from headway.runtime.calling.threads import Lanes, whose

T = TypeVar("T")
THREADS = 2  # more would only wait for each other
_REST_S = 0.0002
_TURN_S = 0.02  # of work that others wait for, before one of theirs goes first


class Abandoned(Exception):
    """The caller of this work has left."""


class Steps:
    """What work calls between two steps. This one is for work that need not share its thread."""

    __slots__ = ()

    def rest(self) -> None:
        """Raises Abandoned."""


AT_ONCE = Steps()
Work: TypeAlias = Callable[[Steps], bytes]  # bytes that take too long to make in the event loop


class _ThreadSteps(Steps):
    """Lets the event loop run, and ends what its caller has left. Where others have waited long
    enough, one piece of their work is done first, and then as long nothing of theirs."""

    __slots__ = ("_others", "_turn_ends_at", "is_abandoned")

    def __init__(self, others: Callable[[], bool]) -> None:
        """`others`: does one piece of work of another client; whether there was one."""
        self.is_abandoned = False
        self._others = others
        self._turn_ends_at = math.inf

    def begin(self) -> None:
        """Work that is itself done in another's rest lets nobody in."""
        self._turn_ends_at = time.monotonic() + _TURN_S

    def rest(self) -> None:
        if self.is_abandoned:
            raise Abandoned
        time.sleep(_REST_S)  # 0 would give the lock away and mostly take it back at once
        now = time.monotonic()
        if now >= self._turn_ends_at and self._others():
            ended = time.monotonic()
            self._turn_ends_at = ended + max(_TURN_S, ended - now)


class _Work(NamedTuple):
    work: Callable[[Steps], Any]
    steps: _ThreadSteps
    result: "Future[Any]"


class Background:
    """A few threads. Work waits its turn; each body is held, and counted, meanwhile."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._lanes: Lanes[_Work] = Lanes()
        self.started = 0  # so many pieces of work, ever

    async def run(self, work: Callable[[Steps], T], *, timeout_s: float | None = None) -> T:
        """Raises what the work does, and DeadlineExceeded where its caller's time is up before it
        is done. Work that has not begun by then never runs; what has, ends with its step."""
        client = whose.get()
        self.started += 1
        steps = _ThreadSteps(lambda: self._run_one(client))
        try:
            async with asyncio.timeout(timeout_s) as limit:
                # Under no name: a future that fails holds its error, which holds this frame.
                return await asyncio.wrap_future(self._queue(client, work, steps))
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded("the deadline passed while the body was being read") from None
        finally:
            steps.is_abandoned = True

    def _queue(self, client: str, work: Callable[[Steps], T], steps: _ThreadSteps) -> "Future[T]":
        result: Future[T] = Future()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "headway-background")
        self._lanes.put(client, _Work(work, steps, result))
        self._pool.submit(self._run_one)
        return result

    def _run_one(self, but: str | None = None) -> bool:
        """In a thread: the next piece of work, not of the client `but`. Whether there was one."""
        found = self._lanes.take(but)
        if found is not None and found.result.set_running_or_notify_cancel():
            _run(found, is_nested=but is not None)
        return found is not None


def _run(found: _Work, *, is_nested: bool) -> None:
    work, steps, result = found
    if not is_nested:
        steps.begin()
    try:
        result.set_result(work(steps))
    except BaseException as error:  # noqa: BLE001 - its caller is told
        result.set_exception(error)
    finally:
        del found, result  # an error's frames must not hold what holds the error


background = Background()  # for all front ends of this process


async def made(found: bytes | Work) -> bytes:
    """As it is, or as the work makes it."""
    return found if isinstance(found, bytes) else await background.run(found)
