"""Watches a model's coroutine: between two of its awaits it blocks the event loop.

Meanwhile a server cannot answer any request, not even health checks.
"""

import logging
import time
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any

MOST_S = 0.1  # between two awaits
_log = logging.getLogger(__name__)


class BlockedLoopWatch:
    """Watches one model. Logs one warning."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._has_warned = False

    def watched(self, work: Awaitable[Any]) -> Awaitable[Any]:
        return work if self._has_warned else _stepped(work, self._clock, self._note)

    def _note(self, held_s: float) -> None:
        if held_s <= MOST_S or self._has_warned:
            return
        self._has_warned = True
        _log.warning(
            "%s held the event loop for %.0f ms: its `async def` blocks, and no other request is "
            "read or answered meanwhile. Write `def`, which runs in a thread, or await what takes "
            "time (asyncio.to_thread)",
            *(self._name, held_s * 1e3),
        )


@types.coroutine
def _stepped(
    work: Awaitable[Any], clock: Callable[[], float], note: Callable[[float], None]
) -> Generator[Any, Any, Any]:
    """`await work`, with the time of each of its steps."""
    steps: Any = work.__await__()
    error: BaseException | None = None
    while True:
        began = clock()
        try:
            waits_for = next(steps) if error is None else steps.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            note(clock() - began)
        error = None
        try:
            yield waits_for  # an event loop sends nothing back
        except BaseException as thrown:  # noqa: BLE001  a cancellation, for the model
            error = thrown
