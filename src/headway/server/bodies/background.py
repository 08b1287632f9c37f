"""Large bodies are parsed, unpacked and written in a few threads, so that the event loop goes on.

Python runs one thread at a time, and one call of msgspec or numpy is not interrupted: limits on the
size of a body bound how long that is.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headway.errors import DeadlineExceeded

T = TypeVar("T")
THREADS = 2  # more would only wait for each other


class Background:
    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, "headway-background")
        self.started = 0  # how many pieces of work, ever

    async def run(self, work: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Raises what the work does, and DeadlineExceeded if its caller's time is up before it is
        done. Work that has not begun by then never runs."""
        self.started += 1
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await loop.run_in_executor(self._pool, work)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded("the deadline passed while the body was being read") from None


background = Background()  # for all front ends of this process
