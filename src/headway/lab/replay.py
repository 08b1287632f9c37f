"""The textbook rule of a window and a batch size, written independently of the scheduler.

A batch leaves when it is full or its oldest item has waited the window; if every worker is busy
then, as soon as one is free, with the items that have arrived by then. Of several free workers
the fastest takes it.
"""

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np

from headway.lab.sources import ClosedSource
from headway.lab.workload import ClosedLoop, Times


class Fixed(NamedTuple):
    """Fire at `max_rows`, or when the oldest item has waited `window_s`."""

    window_s: float
    max_rows: int

    def __str__(self) -> str:
        """The setting as a user types it after `--policy`."""
        return f"window:{self.window_s * 1e3:g},{self.max_rows}"


class Replay(NamedTuple):
    latencies_s: Times  # by item, in the order of arrival
    largest: int  # the most rows in one batch
    span_s: float = math.nan  # from the first arrival to the last answer


class RunPace(NamedTuple):
    """How batch times of a run differ from the profile."""

    speeds: tuple[float, ...] = (1.0,)  # by worker: the factor for its batch times
    factors: Times | None = None  # by batch, in the order of starting
    drift: Callable[[float], float] | None = None  # by time

    def stray(self) -> Iterator[float]:
        return iter(repeat(1.0) if self.factors is None else self.factors.tolist())

    def at(self, now: float) -> float:
        return 1.0 if self.drift is None else self.drift(now)


@dataclass(frozen=True, slots=True)
class AnswerDelay:
    """From the end of a batch to its answers, at their clients and one after the other; with it,
    the way of a request to the queue."""

    fixed_s: float = 0.0
    each_s: float = 0.0

    def of(self, place: int) -> float:
        """Of the first, second, … row of a batch, from 0."""
        return self.fixed_s + self.each_s * place


AT_ONCE = AnswerDelay()


def replay_window(
    arrivals: Times | ClosedLoop,
    seconds: Sequence[float],
    fixed: Fixed,
    *,
    pace: RunPace | None = None,
    max_queue: int | None = None,
) -> Replay | None:
    """Replay item by item, with one worker for each speed. None: the queue overflowed."""
    pace = pace or RunPace()
    if isinstance(arrivals, ClosedLoop):
        return _Closed(arrivals, seconds, fixed, pace).run()
    return _replay_open(arrivals, seconds, fixed, pace, max_queue)


def _replay_open(
    arrivals: Times, seconds: Sequence[float], fixed: Fixed, pace: RunPace, max_queue: int | None
) -> Replay | None:
    window_s, max_rows = fixed
    count = len(arrivals)
    limit = count if max_queue is None else min(max_queue, count)
    times: list[float] = [*arrivals.tolist(), *repeat(math.inf, max(max_rows, limit))]
    stray, speeds = pace.stray(), pace.speeds
    free = [-math.inf] * len(speeds)
    ends: list[float] = []
    firsts: list[int] = []
    first = worker = 0
    while first < count:
        start = times[first] + window_s
        full_at = times[first + max_rows - 1]
        if full_at < start:
            start = full_at
        if len(free) > 1:
            start = max(start, min(free))
            worker = _fastest(free, speeds, start)
        elif free[0] > start:
            start = free[0]
        if times[first + limit] <= start:
            return None
        beyond = bisect_right(times, start, first + 1, first + max_rows)
        ran_s = seconds[beyond - first] * next(stray) * speeds[worker]
        free[worker] = start + (ran_s if pace.drift is None else ran_s * pace.drift(start))
        ends.append(free[worker])
        firsts.append(first)
        first = beyond
    rows = np.diff([*firsts, count])
    span_s = max(ends) - times[0] if ends else 0.0
    return Replay(np.repeat(ends, rows) - arrivals, int(rows.max(initial=0)), span_s)


def _fastest(free: Sequence[float], speeds: Sequence[float], start: float) -> int:
    return min((speeds[i], at, i) for i, at in enumerate(free) if at <= start)[2]


class _Closed:
    """The same for a closed loop, event by event."""

    def __init__(
        self, loop: ClosedLoop, seconds: Sequence[float], fixed: Fixed, pace: RunPace
    ) -> None:
        self._source = ClosedSource(loop)
        self._seconds = seconds
        self._fixed = fixed
        self._pace = pace
        self._stray = pace.stray()
        self._queue: deque[int] = deque()
        self._free = sorted(range(len(pace.speeds)), key=lambda i: pace.speeds[i])
        self._running: list[tuple[float, int, list[int]]] = []
        self._arrived: list[float] = []
        self._latencies: list[float] = []
        self._largest = 0

    def run(self) -> Replay:
        now = last = 0.0
        while True:
            wake = self._fire(now)
            now = min(self._source.next_at, wake, self._running[0][0] if self._running else wake)
            if now == math.inf:
                break
            while self._running and self._running[0][0] <= now:
                last, worker, items = heapq.heappop(self._running)
                self._free.append(worker)
                self._free.sort(key=lambda i: self._pace.speeds[i])
                for item in items:
                    self._latencies[item] = last - self._arrived[item]
                self._source.left(items, now)
            while self._source.next_at <= now:
                self._queue.append(len(self._arrived))
                self._arrived.append(self._source.take())
                self._latencies.append(math.nan)
        span_s = last - self._arrived[0] if self._arrived else 0.0
        return Replay(np.array(self._latencies), self._largest, span_s)

    def _fire(self, now: float) -> float:
        """Start batches that may start. Returns when to look again without an event."""
        window_s, max_rows = self._fixed
        queue = self._queue
        while queue and self._free:
            due = self._arrived[queue[0]] + window_s
            if len(queue) < max_rows and due > now:
                return due
            items = [queue.popleft() for _ in range(min(max_rows, len(queue)))]
            worker = self._free.pop(0)
            ran_s = self._seconds[len(items)] * next(self._stray) * self._pace.speeds[worker]
            heapq.heappush(self._running, (now + ran_s * self._pace.at(now), worker, items))
            self._largest = max(self._largest, len(items))
        return math.inf
