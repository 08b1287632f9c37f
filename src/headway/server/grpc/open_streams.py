"""Streams that need no key (of health, of reflection): how many a client may hold, and how long."""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from headway.wire.http2.status import Status

MOST_OF_A_CLIENT = 256
MOST_S = 3600.0
Watching: TypeAlias = Callable[[Any, Any], Coroutine[Any, Any, None]]


class OpenStreams:
    """The streams under way, by client."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def bounded(self, run: Callable[[Any, Any], Any]) -> Watching:
        """The same method, with a limit."""

        @functools.wraps(run)
        async def bounded(request: Any, context: Any) -> None:
            client = context.peer().rpartition(":")[0]
            if self._counts[client] >= MOST_OF_A_CLIENT:
                await context.abort(
                    Status.RESOURCE_EXHAUSTED,
                    f"at most {MOST_OF_A_CLIENT} streams of one client without a key",
                )
            self._counts[client] += 1
            try:
                async with asyncio.timeout(MOST_S):
                    await _write_all(run(request, context), context)
            except TimeoutError:
                await context.abort(Status.UNAVAILABLE, "watch again: it has been long")
            finally:
                self._counts[client] -= 1
                if not self._counts[client]:
                    del self._counts[client]

        return bounded


async def _write_all(result: Any, context: Any) -> None:
    """A method gives its messages, or writes them itself."""
    if hasattr(result, "__aiter__"):
        async for message in result:
            await context.write(message)
    else:
        await result
