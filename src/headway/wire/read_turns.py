"""Connections that send much are read on one at a time."""

import asyncio
from collections import deque
from collections.abc import Callable


class ReadTurns:
    """Of one port. In each turn of the event loop, one of them reads on: however many there are,
    everybody else waits for one."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def wait(self, read_on: Callable[[], object]) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting.append(read_on)

    def _next(self) -> None:
        read_on = self._waiting.popleft()
        if self._waiting:  # first: one may raise, and the others wait
            asyncio.get_running_loop().call_soon(self._next)
        read_on()
