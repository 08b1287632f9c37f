"""Large bodies are read, unpacked and written in a few threads, in short steps.

Python runs one thread at a time, and what msgspec, zlib or numpy do in one call is not interrupted:
a thread alone would hold the event loop up all the same. So work that takes long is cut into steps
of about a millisecond, and rests between them.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headway.errors import DeadlineExceeded

T = TypeVar("T")
THREADS = 2  # more would only wait for each other
_REST_S = 0.0002
_JOINED_AT_ONCE = 4 * 2**20  # bytes


class Abandoned(Exception):
    """The caller of this work has left."""


class Steps:
    """What work calls between two steps. This one is for work that need not share its thread."""

    __slots__ = ()

    def rest(self) -> None:
        """Raises Abandoned."""


AT_ONCE = Steps()


class _ThreadSteps(Steps):
    """Lets the event loop run, and ends what its caller has left."""

    __slots__ = ("is_abandoned",)

    def __init__(self) -> None:
        self.is_abandoned = False

    def rest(self) -> None:
        if self.is_abandoned:
            raise Abandoned
        time.sleep(_REST_S)  # 0 would give the lock away and mostly take it back at once


class Background:
    """A few threads. Work waits its turn; each body is held, and counted, meanwhile."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self.started = 0  # so many pieces of work, ever

    async def run(self, work: Callable[[Steps], T], *, timeout_s: float | None = None) -> T:
        """Raises what the work does, and DeadlineExceeded where its caller's time is up before it
        is done. Work that has not begun by then never runs; what has, ends with its step."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "headway-background")
        self.started += 1
        steps = _ThreadSteps()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                # Under no name: a future that fails holds its error, which holds this frame.
                return await loop.run_in_executor(self._pool, work, steps)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded("the deadline passed while the body was being read") from None
        finally:
            steps.is_abandoned = True


background = Background()  # for all front ends of this process


async def joined(parts: Sequence[bytes]) -> bytes:
    """A body that came in many parts: to copy a large one takes milliseconds."""
    if len(parts) == 1:
        return parts[0]
    if sum(map(len, parts)) <= _JOINED_AT_ONCE:
        return b"".join(parts)
    return await background.run(lambda _: b"".join(parts))  # other threads run meanwhile
