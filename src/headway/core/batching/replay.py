"""Replays the latest arrivals, batch by batch, under one window and batch size.

Arrivals and batch times are given, so a replay is a loop over numbers. It pauses now and then,
yields the work done since the last pause, and ends early if its result cannot be the best.
"""

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import NamedTuple

_MEANWHILE = 1.5  # a queue that has outgrown a batch is expected to grow by this factor
_SLICE = 24  # batches between two pauses; also the waits that take as long to sort as one batch
_MEAN_COUNTS = 0.3  # the weight of the mean in a score; the tail has 1
_TAIL = 0.01  # the share of the items that form the tail
_LATE_STEPS = 200  # the share of late items is rounded to this many steps
_SHORTEST_S = 1e-9  # shorter times are rounding errors


class Replayed(NamedTuple):
    tail_s: float
    mean_s: float
    late: float  # the share of items that miss the SLO
    largest: int  # the items of the largest batch

    @property
    def score(self) -> float:
        """Lower is better. No tail and no mean makes up for late answers."""
        late = round(self.late * _LATE_STEPS)
        tail_s, mean_s = max(self.tail_s, _SHORTEST_S), max(self.mean_s, _SHORTEST_S)
        return 100 * late + math.log(tail_s) + _MEAN_COUNTS * math.log(mean_s)


class Traffic:
    """The arrivals to replay, and the times of their batches. Counts items, not rows."""

    __slots__ = ("before_s", "seconds", "slo_s", "times")

    def __init__(self, times: list[float], seconds: list[float], slo_s: float) -> None:
        self.times = times  # of arrivals, ascending, since the first
        self.seconds = seconds  # the time of a batch, by items
        self.slo_s = slo_s
        self.before_s = [0.0, *accumulate(times)]  # by arrival: the sum of the times before it


def replay(
    traffic: Traffic,
    window_s: float,
    cap: int,
    sharing: "Sharing",
    speeds: Sequence[float],
    *,
    worst: float = math.inf,
) -> Generator[int, None, Replayed]:
    """Answer all arrivals, batch by batch. Yields the work since the last pause, in batches.

    Ends early with the best case if even that has a score above `worst`. Its `largest` is then the
    highest possible: the batches that were not replayed are unknown.
    """
    times, seconds = traffic.times, traffic.seconds
    count = len(times)
    ends = [-math.inf] * len(speeds)  # by worker: when its batch ends; a heap, if all are equal
    first_free_at = -math.inf
    are_equal = max(speeds) == min(speeds)
    answers = _Answers(traffic, min(seconds[1:]) * min(1.0, *speeds))
    first = batches = 0  # `first`: the oldest item that waits
    while first < count:
        # A batch starts when the cap is reached or the window ends, once a worker is free.
        start, last = times[first] + window_s, first + cap - 1
        if last < count and times[last] < start:
            start = times[last]
        start = first_free_at if start < first_free_at else start
        arrived = bisect_right(times, start, first + 1)
        items = sharing.items_to_take(arrived - first, cap)
        if are_equal:
            end = start + seconds[items]
            heapq.heapreplace(ends, end)
            first_free_at = ends[0]
        else:
            end = _run_where_first_done(ends, speeds, start, seconds[items])
            first_free_at = min(ends)
        answers.add(first, first + items, end)
        first += items
        batches += 1
        if batches == _SLICE:
            yield batches + answers.forget_short_waits()
            batches = 0
            best_case = answers.result(first)
            if best_case.score > worst:
                return best_case._replace(largest=count)
    yield batches + answers.forget_short_waits()
    return answers.result(count)


class _Answers:
    """The answers of a replay. Waits that cannot be in the tail any more are forgotten."""

    def __init__(self, traffic: Traffic, least_s: float) -> None:
        """`least_s`: no answer takes less."""
        self._traffic = traffic
        self._least_s = least_s
        self._in_tail = max(1, int(_TAIL * len(traffic.times)))
        self._waits: list[float] = []
        self._tail_s = 0.0  # the shortest wait of the tail
        self._late = self._largest = 0
        self._sum_s = 0.0  # of the times of all answers

    def add(self, first: int, beyond: int, end: float) -> None:
        """The items from `first` up to `beyond` were answered at `end`."""
        traffic, items = self._traffic, beyond - first
        longest_s = end - traffic.times[first]
        if longest_s > self._tail_s:
            self._waits += [end - at for at in traffic.times[first:beyond]]
        if longest_s > traffic.slo_s:
            in_time = end - traffic.slo_s
            self._late += bisect_left(traffic.times, in_time, first, beyond) - first
        self._largest = max(self._largest, items)
        self._sum_s += end * items

    def forget_short_waits(self) -> int:
        """Returns the work, in batches."""
        waits = self._waits
        work = len(waits) // _SLICE
        waits.sort()
        del waits[: -self._in_tail]
        self._tail_s = waits[0] if len(waits) == self._in_tail else 0.0
        return work

    def result(self, answered: int) -> Replayed:
        """The result over all items. Items not yet answered count with the best case."""
        count = len(self._traffic.times)
        left_s = (count - answered) * self._least_s
        mean_s = (self._sum_s - self._traffic.before_s[answered] + left_s) / count
        return Replayed(self._tail_s, mean_s, self._late / count, self._largest)


def _run_where_first_done(
    ends: list[float], speeds: Sequence[float], start: float, ran_s: float
) -> float:
    """Gives the batch to the worker that is done with it first. Returns when it is done."""
    end, worker = min(
        (max(start, at) + ran_s * speed, i)
        for i, (at, speed) in enumerate(zip(ends, speeds, strict=True))
    )
    ends[worker] = end
    return end


class Sharing:
    """How workers share a queue that has grown longer than a batch: in larger batches."""

    def __init__(self, sizes: Sequence[tuple[int, float, float]] = ()) -> None:
        """`sizes`: (items, items served per second, seconds of a batch), ascending in items."""
        self.sizes: list[tuple[int, float, float]] = []
        for size in sizes:
            if not self.sizes or size[1] > self.sizes[-1][1]:  # a partly filled tile serves fewer
                self.sizes.append(size)

    def items_to_take(self, waiting: int, cap: int) -> int:
        """How many of `waiting` items to take: up to `cap`; of more, so that the last is answered
        soonest."""
        if waiting <= cap:
            return waiting
        waiting_then = _MEANWHILE * waiting
        soonest_s, best = math.inf, cap
        for items, rps, batch_s in self.sizes:
            answer_s = batch_s + max(0.0, waiting_then - items) / rps
            if items >= cap and answer_s < soonest_s:
                soonest_s, best = answer_s, items
        return min(best, waiting)
