"""What one window and batch size would have made of the latest arrivals, batch by batch.

Arrivals and batch times are given, so a replay is a loop over numbers. It pauses now and then, says
how much it has done since the last pause, and ends early where the result cannot be the best.
"""

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import NamedTuple

# Spans of so many of the latest arrivals, and how many of them are surely no chance: one standard
# deviation less. Few tell a burst from its beginning on, many tell a little more from chance.
_SPANS = tuple((span, span - math.sqrt(span)) for span in (32, 96, 288, 864))
_SPELL = 20  # batches of one item: how long such arrivals are expected to go on
_SLICE = 24  # batches between two pauses; to sort so many waits costs as much as one
_MEAN_COUNTS = 0.3  # the weight of the mean in a score, where the tail has 1
_TAIL = 0.01  # the share of the items that are the tail
_LATE_STEPS = 200  # shares of late items that differ by less than half a percent are equal
_SHORTEST_S = 1e-9  # shorter times are rounding errors


class Replayed(NamedTuple):
    tail_s: float
    mean_s: float
    late: float  # the share of items that miss the SLO
    largest: int  # items of a batch

    @property
    def score(self) -> float:
        """Lower is better. No tail and no mean makes up for answers that are late."""
        late = round(self.late * _LATE_STEPS)
        tail_s, mean_s = max(self.tail_s, _SHORTEST_S), max(self.mean_s, _SHORTEST_S)
        return 100 * late + math.log(tail_s) + _MEAN_COUNTS * math.log(mean_s)


class Traffic:
    """What is replayed: arrivals, and what their batches take. Counts items, not rows."""

    __slots__ = ("before_s", "seconds", "slo_s", "times")

    def __init__(self, times: list[float], seconds: list[float], slo_s: float) -> None:
        self.times = times  # of arrivals, ascending, since the first
        self.seconds = seconds  # of a batch, by items
        self.slo_s = slo_s
        self.before_s = [0.0, *accumulate(times)]  # the sum of the times before each


def replay(
    traffic: Traffic,
    window_s: float,
    share: "Capped",
    speeds: Sequence[float],
    *,
    bar_s: float = 0.0,
    worst: float = math.inf,
) -> Generator[int, None, Replayed]:
    """The rule, batch by batch. Yields the work since the last pause, in batches.

    Waits below `bar_s` are not looked at: a tail below it is as good as the bar. A score above
    `worst` is not needed exactly: what is answered then is a bound below it.
    """
    times, seconds, count = traffic.times, traffic.seconds, len(traffic.times)
    cap = share.cap
    free, free_at, is_equal = [-math.inf] * len(speeds), -math.inf, max(speeds) == min(speeds)
    tail = _Tail(traffic, bar_s, min(seconds[1:]) * min(1.0, *speeds))
    waits, bar_s = tail.waits, tail.bar_s
    first = largest = batches = 0
    ends_s = 0.0
    while first < count:
        oldest = times[first]
        start, last = oldest + window_s, first + cap - 1
        if last < count and times[last] < start:
            start = times[last]
        start = free_at if start < free_at else start
        here = bisect_right(times, start, first + 1)
        items = here - first
        if items > cap:
            items = share.take(items, times, here)
        if is_equal:
            end = start + seconds[items]
            heapq.heapreplace(free, end)
            free_at = free[0]
        else:
            end = _first_done(free, speeds, start, seconds[items])
            free_at = min(free)
        largest = items if items > largest else largest
        ends_s += end * items
        beyond = first + items
        if end - oldest > bar_s:
            waits += [end - at for at in times[first:beyond]]
        first = beyond
        batches += 1
        if batches == _SLICE:
            yield batches + tail.look()
            batches, bar_s = 0, tail.bar_s
            bound = tail.result(ends_s, first, count)
            if bound.score > worst:
                return bound
    yield batches + tail.look()
    return tail.result(ends_s, count, largest)


class _Tail:
    """The longest waits so far. Those that cannot be in the tail any more are forgotten."""

    __slots__ = (
        "_in_tail",
        "_least_s",
        "_looked_at",
        "_traffic",
        "bar_s",
        "waits",
    )

    def __init__(self, traffic: Traffic, bar_s: float, least_s: float) -> None:
        """`least_s`: no answer takes less."""
        self._traffic = traffic
        self._least_s = least_s
        self._in_tail = max(1, int(_TAIL * len(traffic.times)))
        self._looked_at = 0
        self.bar_s = min(bar_s, traffic.slo_s)  # shorter ones do not matter
        self.waits: list[float] = []  # ascending, once looked at

    def look(self) -> int:
        """Raise the bar to what the tail has reached; answers the work, in batches."""
        waits = self.waits
        work = (len(waits) - self._looked_at) // _SLICE
        waits.sort()
        if len(waits) > self._in_tail:
            self.bar_s = min(max(self.bar_s, waits[-self._in_tail]), self._traffic.slo_s)
            del waits[: min(bisect_left(waits, self.bar_s), len(waits) - self._in_tail)]
        self._looked_at = len(waits)
        return work

    def result(self, ends_s: float, answered: int, largest: int) -> Replayed:
        """Of all items; at the best, if some are still to be answered."""
        traffic, waits, count = self._traffic, self.waits, len(self._traffic.times)
        is_reached = len(waits) >= self._in_tail
        tail_s = max(self.bar_s, waits[-self._in_tail]) if is_reached else self.bar_s
        late = (len(waits) - bisect_right(waits, traffic.slo_s)) / count
        left_s = (count - answered) * self._least_s
        mean_s = (ends_s - traffic.before_s[answered] + left_s) / count
        return Replayed(tail_s, mean_s, late, largest)


def _rate_rps(times: Sequence[float], here: int) -> float:
    """What comes a second just now, after so many arrivals: the most of what any span says."""
    rate_rps = 0.0
    for span, count in _SPANS:
        if here < span:
            break
        rate_rps = max(rate_rps, count / max(times[here - 1] - times[here - span], _SHORTEST_S))
    return rate_rps


def _first_done(free: list[float], speeds: Sequence[float], start: float, ran_s: float) -> float:
    """Gives the batch to the worker that is done with it first, and says when."""
    end, worker = min(
        (max(start, at) + ran_s * speed, i)
        for i, (at, speed) in enumerate(zip(free, speeds, strict=True))
    )
    free[worker] = end
    return end


class Capped:
    """So many at once, and more where more come than that serves."""

    def __init__(self, cap: int, most: int, sustained: "Sustained", item_rows: float) -> None:
        self.cap = cap  # so many leave at once; so many or fewer leave together
        self._cap_rows = round(cap * item_rows)
        self._most = most
        self._surge, self._item_rows = Surge(sustained), item_rows

    def take(self, waiting: int, times: Sequence[float], here: int) -> int:
        rows = round(waiting * self._item_rows)
        rows = self._surge.rows_to_take(rows, self._cap_rows, times, here)
        return max(1, min(int(rows / self._item_rows), self._most, waiting))


class Sustained:
    """What each batch size serves, and which to use while more come than was rehearsed."""

    def __init__(self, sizes: Sequence[tuple[int, float, float]] = ()) -> None:
        """Rows, what they serve a second, and what a batch of them takes; ascending in rows."""
        self._sizes: list[tuple[int, float, float]] = []
        for size in sizes:
            if not self._sizes or size[1] > self._sizes[-1][1]:  # a begun tile serves fewer
                self._sizes.append(size)
        self._served_rps = {rows: rps for rows, rps, _ in sizes}
        self._long = {rows: rows + rps * batch_s for rows, rps, batch_s in sizes}
        self._shared: dict[tuple[int, int], int] = {}

    def serves(self, cap_rows: int, rate_rps: float) -> bool:
        return rate_rps <= self._served_rps.get(cap_rows, math.inf)

    def cap_for(self, cap_rows: int, rate_rps: float) -> int:
        """With so many rows at once, or more, the items that come at the end of a spell of such
        arrivals are answered soonest: they wait for the queue that has grown until then, and for
        their batch."""
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
        """So many rows that the last of them waits as long for its batch as in it."""
        return self._long.get(cap_rows, math.inf)

    def share(self, waiting: int, cap_rows: int) -> int:
        """Of a queue that several workers share: as many as answer its last row soonest."""
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
    """Several workers take more at once while more come than was rehearsed.

    That a rate is higher for a moment may be chance, and so may be a queue; a queue that is better
    served in larger batches, and a rate that made it, are not.
    """

    def __init__(self, sustained: Sustained) -> None:
        self.sustained = sustained
        self._is_on = False

    def cap_for(self, cap_rows: int, times: Sequence[float], here: int) -> int:
        """So many rows at once, or more."""
        if not self._is_on:
            return cap_rows
        rate = _rate_rps(times, here)
        self._is_on = not self.sustained.serves(cap_rows, rate)
        return self.sustained.cap_for(cap_rows, rate) if self._is_on else cap_rows

    def rows_to_take(self, waiting: int, cap_rows: int, times: Sequence[float], here: int) -> int:
        """So many as the cap says, or more of a queue that has outgrown it."""
        if waiting <= cap_rows:
            return waiting
        sustained = self.sustained
        rows = sustained.share(waiting, cap_rows)
        self._is_on |= rows > cap_rows or waiting > sustained.long_queue(cap_rows)
        if self._is_on:
            cap_rows = self.cap_for(cap_rows, times, here)
            rows = sustained.share(waiting, cap_rows)
        return rows
