"""Connections that send much are read on in turns, a slice of each turn of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable

SLICE_S = 0.001  # of a turn of the event loop; it ends after the read that exceeds it


class ReadTurns:
    """The turns of one port. However many connections send much, others wait only one slice."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_due = False  # `_run` is scheduled for the next turn

    def wait(self, read_on: Callable[[], object]) -> None:
        self._waiting.append(read_on)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + SLICE_S
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if loop.time() >= ends_at:
                    break
        finally:  # one may raise, and the others wait
            self._is_due = bool(self._waiting)
            if self._is_due:
                loop.call_soon(self._run)
