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

# Spans of the latest arrivals: their count, and the count less one standard deviation, so that
# chance is not taken for load. Short spans show a burst early, long spans a slightly higher rate.
_SPANS = tuple((span, span - math.sqrt(span)) for span in (32, 96, 288, 864))
_SPELL = 20  # how long a burst is expected to last, in batches of the smallest size
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
    capped: "Capped",
    speeds: Sequence[float],
    *,
    ignored_s: float = 0.0,
    worst: float = math.inf,
) -> Generator[int, None, Replayed]:
    """Answer all arrivals, batch by batch. Yields the work since the last pause, in batches.

    Waits up to `ignored_s` are not recorded: a shorter tail counts as `ignored_s`. Once the score
    is sure to be above `worst`, the replay ends, with a bound that is better than its real result.
    """
    times, seconds, count = traffic.times, traffic.seconds, len(traffic.times)
    cap = capped.cap
    ends = [-math.inf] * len(speeds)  # by worker: when its batch ends; a heap, if all are equal
    first_free_at = -math.inf
    are_equal = max(speeds) == min(speeds)
    tail = _Tail(traffic, ignored_s, min(seconds[1:]) * min(1.0, *speeds))
    waits, ignored_s = tail.waits, tail.ignored_s
    first = largest = batches = 0  # `first`: the oldest item that waits
    sum_of_ends_s = 0.0  # over all items answered so far
    while first < count:
        # A batch starts when the cap is reached or the window ends, once a worker is free.
        oldest = times[first]
        start, last = oldest + window_s, first + cap - 1
        if last < count and times[last] < start:
            start = times[last]
        start = first_free_at if start < first_free_at else start
        arrived = bisect_right(times, start, first + 1)
        items = arrived - first
        if items > cap:
            items = capped.items_to_take(items, times, arrived)
        if are_equal:
            end = start + seconds[items]
            heapq.heapreplace(ends, end)
            first_free_at = ends[0]
        else:
            end = _run_where_first_done(ends, speeds, start, seconds[items])
            first_free_at = min(ends)
        largest = items if items > largest else largest
        sum_of_ends_s += end * items
        beyond = first + items
        if end - oldest > ignored_s:
            waits += [end - at for at in times[first:beyond]]
        first = beyond
        batches += 1
        if batches == _SLICE:
            yield batches + tail.forget_short_waits()
            batches, ignored_s = 0, tail.ignored_s
            bound = tail.result(sum_of_ends_s, first, count)
            if bound.score > worst:
                return bound
    yield batches + tail.forget_short_waits()
    return tail.result(sum_of_ends_s, count, largest)


class _Tail:
    """The longest waits so far. Waits that cannot be in the tail any more are forgotten."""

    __slots__ = (
        "_in_tail",
        "_least_s",
        "_sorted",
        "_traffic",
        "ignored_s",
        "waits",
    )

    def __init__(self, traffic: Traffic, ignored_s: float, least_s: float) -> None:
        """`least_s`: no answer takes less."""
        self._traffic = traffic
        self._least_s = least_s
        self._in_tail = max(1, int(_TAIL * len(traffic.times)))
        self._sorted = 0  # the first waits that are sorted already
        self.ignored_s = min(ignored_s, traffic.slo_s)  # waits up to this need not be recorded
        self.waits: list[float] = []

    def forget_short_waits(self) -> int:
        """Raise `ignored_s` to the shortest wait of the tail. Returns the work, in batches."""
        waits = self.waits
        work = (len(waits) - self._sorted) // _SLICE
        waits.sort()
        if len(waits) > self._in_tail:
            self.ignored_s = min(max(self.ignored_s, waits[-self._in_tail]), self._traffic.slo_s)
            del waits[: min(bisect_left(waits, self.ignored_s), len(waits) - self._in_tail)]
        self._sorted = len(waits)
        return work

    def result(self, sum_of_ends_s: float, answered: int, largest: int) -> Replayed:
        """The result over all items. Items not yet answered count with the best case."""
        traffic, waits, count = self._traffic, self.waits, len(self._traffic.times)
        is_reached = len(waits) >= self._in_tail
        tail_s = max(self.ignored_s, waits[-self._in_tail]) if is_reached else self.ignored_s
        late = (len(waits) - bisect_right(waits, traffic.slo_s)) / count
        left_s = (count - answered) * self._least_s
        mean_s = (sum_of_ends_s - traffic.before_s[answered] + left_s) / count
        return Replayed(tail_s, mean_s, late, largest)


def _rate_rps(times: Sequence[float], arrived: int) -> float:
    """The current arrival rate, after `arrived` of the `times`: the highest over all spans."""
    rate_rps = 0.0
    for span, count in _SPANS:
        if arrived < span:
            break
        span_s = times[arrived - 1] - times[arrived - span]
        rate_rps = max(rate_rps, count / max(span_s, _SHORTEST_S))
    return rate_rps


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


class Capped:
    """How many items a replayed batch takes: `cap`, or more while more arrive than that serves."""

    def __init__(self, cap: int, most: int, sustained: "Sustained", item_rows: float) -> None:
        self.cap = cap  # a batch leaves once this many items wait, and takes at least as many
        self._cap_rows = round(cap * item_rows)
        self._most = most
        self._surge, self._item_rows = Surge(sustained), item_rows

    def items_to_take(self, waiting: int, times: Sequence[float], arrived: int) -> int:
        rows = round(waiting * self._item_rows)
        rows = self._surge.rows_to_take(rows, self._cap_rows, times, arrived)
        return max(1, min(int(rows / self._item_rows), self._most, waiting))


class Sustained:
    """The rate that each batch size sustains, and the size for times when more items arrive."""

    def __init__(self, sizes: Sequence[tuple[int, float, float]] = ()) -> None:
        """`sizes`: (rows, rows served per second, seconds of a batch), ascending in rows."""
        self._sizes: list[tuple[int, float, float]] = []
        for size in sizes:
            if not self._sizes or size[1] > self._sizes[-1][1]:  # a partly filled tile serves fewer
                self._sizes.append(size)
        self._served_rps = {rows: rps for rows, rps, _ in sizes}
        self._long = {rows: rows + rps * batch_s for rows, rps, batch_s in sizes}
        self._shared: dict[tuple[int, int], int] = {}

    def serves(self, cap_rows: int, rate_rps: float) -> bool:
        return rate_rps <= self._served_rps.get(cap_rows, math.inf)

    def cap_for(self, cap_rows: int, rate_rps: float) -> int:
        """The batch size, `cap_rows` or more, that answers the last item of a burst soonest.

        That item waits for the queue that has grown until then, and for its own batch.
        """
        if not self._sizes:
            return cap_rows
        spell_s = _SPELL * self._sizes[0][2]
        soonest_s, best = math.inf, cap_rows
        for rows, rps, batch_s in self._sizes:
            answer_s = batch_s + max(0.0, rate_rps / rps - 1.0) * spell_s
            if rows >= cap_rows and answer_s < soonest_s:
                soonest_s, best = answer_s, rows
        return best

    def long_queue(self, cap_rows: int) -> float:
        """The rows in a queue whose last row waits as long for its batch as its batch runs."""
        return self._long.get(cap_rows, math.inf)

    def share(self, waiting: int, cap_rows: int) -> int:
        """How many rows each worker should take so that the last row is answered soonest."""
        key = waiting, cap_rows
        rows = self._shared.get(key)
        if rows is None:
            rows = self._shared[key] = self._share(waiting, cap_rows)
        return rows

    def _share(self, waiting: int, cap_rows: int) -> int:
        soonest_s, best = math.inf, cap_rows
        for rows, rps, batch_s in self._sizes:
            end_s = batch_s + max(0, waiting - rows) / rps
            if rows >= cap_rows and end_s < soonest_s:
                soonest_s, best = end_s, rows
        return min(best, waiting)


class Surge:
    """Lets several workers take larger batches while more items arrive than were rehearsed.

    A high rate alone may be chance, and so may a long queue. Both together are not: a queue that
    larger batches serve better, and a rate that explains it.
    """

    def __init__(self, sustained: Sustained) -> None:
        self.sustained = sustained
        self._is_on = False

    def cap_for(self, cap_rows: int, times: Sequence[float], arrived: int) -> int:
        """The rows of a full batch: `cap_rows`, or more in a surge.

        `times`: of arrivals, of which the first `arrived` have happened.
        """
        if not self._is_on:
            return cap_rows
        rate = _rate_rps(times, arrived)
        self._is_on = not self.sustained.serves(cap_rows, rate)
        return self.sustained.cap_for(cap_rows, rate) if self._is_on else cap_rows

    def rows_to_take(
        self, waiting: int, cap_rows: int, times: Sequence[float], arrived: int
    ) -> int:
        """How many of `waiting` rows to take: up to `cap_rows`, or more if the queue outgrew it."""
        if waiting <= cap_rows:
            return waiting
        sustained = self.sustained
        rows = sustained.share(waiting, cap_rows)
        self._is_on |= rows > cap_rows or waiting > sustained.long_queue(cap_rows)
        if self._is_on:
            cap_rows = self.cap_for(cap_rows, times, arrived)
            rows = sustained.share(waiting, cap_rows)
        return rows
