"""Work of connections that takes longer than a moment, shared out among clients.

In one turn of the event loop one slice is done, of one client after the other: however much some of
them send, and over however many connections, everybody else waits for one slice at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

SLICE_S = 0.001  # a slice ends after the step that exceeds it
FIRST_S = 0.002  # the same, for the first slice of a turn in which no other work waits


class RoundRobin:
    """Work is an iterator. Each `next` does one step, which takes far less time than a slice."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Iterator[object]]] = {}  # by client, the next one first
        self._is_due = False  # this turn has had its slice; `_turn` comes with the next

    def begin(self, client: str, steps: Iterator[object]) -> None:
        """A slice of it now, unless this turn has had one; the rest in turns."""
        if self._is_due:
            self._wait(client, steps)
            return
        loop = asyncio.get_running_loop()
        self._is_due = True
        loop.call_soon(self._turn, loop)
        if not _is_done(steps, loop, FIRST_S):
            self._wait(client, steps)

    def call(self, client: str, callback: Callable[[], object]) -> None:
        """At once, or when it is this client's turn: one of these in a turn."""
        self.begin(client, (callback() for _ in range(1)))

    def _wait(self, client: str, steps: Iterator[object]) -> None:
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
        client = next(iter(self._waiting))
        waiting = self._waiting.pop(client)
        steps = waiting.popleft()
        if waiting:
            self._waiting[client] = waiting  # behind the others
        if not _is_done(steps, loop, SLICE_S):
            self._wait(client, steps)


def _is_done(steps: Iterator[object], loop: asyncio.AbstractEventLoop, slice_s: float) -> bool:
    ends_at = loop.time() + slice_s
    return all(loop.time() < ends_at for _ in steps)
