"""Work of connections that takes longer than a moment, shared out among clients.

In one turn of the event loop one slice is done, of one client after the other: however much some of
them send, and over however many connections, everybody else waits for one slice at a time.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator

SLICE_S = 0.001  # a slice ends after the step that exceeds it
FIRST_S = 0.003  # for all that begins in one turn, while no other work waits: 64 plain calls


class RoundRobin:
    """Work is an iterator. Each `next` does one step, which takes far less time than a slice, and
    gives the seconds of work that it left to the next turn (its tasks): they count as well."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Iterator[float]]] = {}  # by client, the next one first
        self._is_due = False  # work was done in this turn; `_turn` comes with the next
        self._ends_at = 0.0  # when this turn has had its slice

    def begin(self, client: str, steps: Iterator[float]) -> None:
        """Now, until this turn has had its slice; the rest in turns."""
        loop = asyncio.get_running_loop()
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._turn, loop)
            self._ends_at = loop.time() + FIRST_S
        elif self._waiting or loop.time() >= self._ends_at:
            self._wait(client, steps)
            return
        if not self._is_done(steps, loop):
            self._wait(client, steps)

    def call(self, client: str, callback: Callable[[], object]) -> None:
        """At once, or when it is this client's turn: one of these in a turn."""
        self.begin(client, self._ending(callback))

    def _ending(self, callback: Callable[[], object]) -> Iterator[float]:
        callback()
        self._ends_at = -math.inf  # what it wakes has its work in the next turn
        yield from ()

    def _wait(self, client: str, steps: Iterator[float]) -> None:
        waiting = self._waiting.get(client)
        if waiting is None:
            self._waiting[client] = deque((steps,))
        else:
            waiting.append(steps)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = bool(self._waiting)
        if not self._is_due:
            return
        loop.call_soon(self._turn, loop)  # first: a step may raise, and the others wait
        self._ends_at = loop.time() + SLICE_S
        is_over = False
        while self._waiting and not is_over:
            client = next(iter(self._waiting))
            waiting = self._waiting.pop(client)
            steps = waiting.popleft()
            if waiting:
                self._waiting[client] = waiting  # behind the others
            if not self._is_done(steps, loop):
                self._wait(client, steps)
            is_over = loop.time() >= self._ends_at

    def _is_done(self, steps: Iterator[float], loop: asyncio.AbstractEventLoop) -> bool:
        for left_s in steps:
            self._ends_at -= left_s
            if loop.time() >= self._ends_at:
                return False
        return True
