"""Arrivals of a run, one after the other.

Items are numbered in the order of arrival. In a closed loop the next arrival depends on the
answers, so the simulator reports them to the source.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from headway.lab.workload import ClosedLoop, Times


class Source(Protocol):
    next_at: float  # the next arrival; infinite: none is known

    def take(self) -> float:
        """Return the next arrival, and move on to the one after it."""

    def left(self, items: Iterable[int], now: float) -> None:
        """These items were answered or refused at `now`."""

    @property
    def has_more(self) -> bool:
        """Would a client send another item after an answer?"""


def source_of(arrivals: Times | ClosedLoop) -> Source:
    return ClosedSource(arrivals) if isinstance(arrivals, ClosedLoop) else OpenSource(arrivals)


class OpenSource:
    def __init__(self, arrivals: Times) -> None:
        self._times = iter(arrivals.tolist())
        self.next_at: float = next(self._times, math.inf)

    def take(self) -> float:
        now = self.next_at
        self.next_at = next(self._times, math.inf)
        return now

    def left(self, items: Iterable[int], now: float) -> None:
        pass

    @property
    def has_more(self) -> bool:
        return False


class ClosedSource:
    def __init__(self, loop: ClosedLoop) -> None:
        self._thoughts: deque[float] = deque(loop.think_s.tolist())
        self._pace: list[float] | None = None if loop.pace is None else loop.pace.tolist()
        self._clients = loop.clients
        self._is_barrier = loop.is_barrier
        self._at_barrier: list[int] = []
        self._due: list[tuple[float, int]] = []
        self._client_of: list[int] = []  # by item
        self.next_at = math.inf
        self._think(range(loop.clients), 0.0)

    def take(self) -> float:
        now, client = heapq.heappop(self._due)
        self._client_of.append(client)
        self.next_at = self._due[0][0] if self._due else math.inf
        return now

    def left(self, items: Iterable[int], now: float) -> None:
        clients = [self._client_of[item] for item in items]
        if self._is_barrier:
            self._at_barrier += clients
            if len(self._at_barrier) < self._clients:
                return
            clients, self._at_barrier = self._at_barrier, []
        self._think(clients, now)

    def _think(self, clients: Iterable[int], now: float) -> None:
        for client in clients:
            if not self._thoughts:
                break
            think_s = self._thoughts.popleft()
            if self._pace is not None:
                think_s *= self._pace[client]
            heapq.heappush(self._due, (now + think_s, client))
        if self._due:
            self.next_at = self._due[0][0]

    @property
    def has_more(self) -> bool:
        return bool(self._thoughts)
