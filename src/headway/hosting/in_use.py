"""Keeps a model open between finding it and calling it."""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_LATELY_S = 1.0


class InUse:
    """The base class of hosted models."""

    clock: Callable[[], float]

    def __init__(self) -> None:
        self._holders = 0
        self._held_at = -math.inf
        self._left: asyncio.Event | None = None  # set when no caller needs it any more

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the model from being retired: for callers that reach the queue after an `await`."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            self._held_at = self.clock()
            self._look_whether_left()

    @property
    def is_busy(self) -> bool:
        return bool(self._holders)

    @property
    def is_asked(self) -> bool:
        """Whether it has requests now, or had some a moment ago."""
        return self.is_busy or self.idle_s < _LATELY_S

    @property
    def idle_s(self) -> float:
        """Seconds since the last answer; infinite if there was none."""
        return self.clock() - self._held_at

    @property
    def _is_needed(self) -> bool:
        return bool(self._holders)

    def _look_whether_left(self) -> None:
        if self._left is not None and not self._is_needed:
            self._left.set()

    async def retire(self, *, drain_s: float | None) -> None:
        """Close, once all requests that have found it are done. New requests do not find it.

        A request that is queued or runs is the model's own to drain. One that comes to the queue
        later (it is being prepared, or has more rows to bring) holds the model meanwhile.
        """
        loop = asyncio.get_running_loop()
        end_at = None if drain_s is None else loop.time() + drain_s
        await self._wait_left(end_at)
        await self.close(drain_s=None if end_at is None else max(0.0, end_at - loop.time()))

    async def close(self, *, drain_s: float | None = 30.0) -> None:
        raise NotImplementedError

    async def _wait_left(self, end_at: float | None) -> None:
        """Wait until no caller needs it, or until this time if there is one."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end_at):
                while self._is_needed:
                    self._left = asyncio.Event()
                    await self._left.wait()
