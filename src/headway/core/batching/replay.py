"""What one window and batch size would have made of the latest arrivals, batch by batch.

Arrivals and batch times are given, so a replay is a loop over numbers. It pauses now and then, says
how much it has done since the last pause, and ends early where the result cannot be the best.
"""

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from headway.core.batching.sizing import Sizing
from headway.core.batching.stragglers import Stragglers

# Spans of so many of the latest arrivals, and how many of them are surely no chance: one standard
# deviation less. Few tell a burst from its beginning on, many tell a little more from chance.
_SPANS = tuple((span, span - math.sqrt(span)) for span in (32, 96, 288, 864))
# With one worker, whose batches are longer, it is two and a half deviations less.
_SPAN_ALONE = ((96, 96 / 1.25),)
_SPELL = 20  # batches of one item: how long such arrivals are expected to go on
_SLICE = 24  # batches between two pauses
# The work of a replay is counted in batches:
_LOOK_UP = 12  # to ask a `Share` how many items leave costs as much as so many batches
_WAITS = 24  # to sort so many waits costs as much as one batch
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

    __slots__ = ("_stragglers", "before_s", "seconds", "slo_s", "times")

    def __init__(
        self,
        times: list[float],
        seconds: list[float],
        slo_s: float,
        stragglers: Stragglers | None = None,
    ) -> None:
        """`stragglers`: None where a slow batch delays nobody but its own items."""
        self.times = times  # of arrivals, ascending, since the first
        self.seconds = seconds  # of a batch, by items
        self.slo_s = slo_s
        self._stragglers = stragglers
        self.before_s = [0.0, *accumulate(times)]  # the sum of the times before each

    def late_by_stragglers(self, items: int, batches: int, oldest_s: float) -> float:
        """The share of all items, where so many leave in so many batches. `oldest_s`: how long the
        oldest items of these batches take to be answered, summed up."""
        if self._stragglers is None:
            return 0.0
        batch_s = self.seconds[items // batches]
        waited_s = max(0.0, oldest_s / batches - batch_s)
        return batches * self._stragglers.late_s(waited_s, batch_s) / self.times[-1]


def replay(
    traffic: Traffic,
    window_s: float,
    share: "Share",
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
    full, all_up_to, known = share.full, share.all_up_to, share.known
    free, free_at, is_equal = [-math.inf] * len(speeds), -math.inf, max(speeds) == min(speeds)
    tail = _Tail(traffic, bar_s, min(seconds[1:]) * min(1.0, *speeds))
    waits, bar_s = tail.waits, tail.bar_s
    first = largest = batches = 0
    ends_s = oldest_s = 0.0
    while first < count:
        oldest = times[first]
        start, last = oldest + window_s, first + full - 1
        if last < count and times[last] < start:
            start = times[last]
        start = free_at if start < free_at else start
        here = bisect_right(times, start, first + 1)
        items = here - first
        if items > all_up_to:
            items = known.get(items) or share.take(items, times, here)
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
        longest_s = end - oldest
        oldest_s += longest_s
        if longest_s > bar_s:
            waits += [end - at for at in times[first:beyond]]
        first = beyond
        batches += 1
        if batches == _SLICE:
            yield batches + tail.look(batches, first, oldest_s) + _LOOK_UP * share.looked_up()
            batches, bar_s, oldest_s = 0, tail.bar_s, 0.0
            bound = tail.result(ends_s, first, count)
            if bound.score > worst:
                return bound
    yield batches + tail.look(batches, count, oldest_s) + _LOOK_UP * share.looked_up()
    return tail.result(ends_s, count, largest)


class _Tail:
    """The longest waits so far. Those that cannot be in the tail any more are forgotten."""

    __slots__ = (
        "_answered",
        "_in_tail",
        "_least_s",
        "_looked_at",
        "_slow_late",
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
        self._answered, self._slow_late = 0, 0.0
        self.bar_s = min(bar_s, traffic.slo_s)  # shorter ones do not matter
        self.waits: list[float] = []  # ascending, once looked at

    def look(self, batches: int, answered: int, oldest_s: float) -> int:
        """Raise the bar to what the tail has reached; answers the work, in batches.

        Since the last look there were so many batches; so many items are answered by now.
        """
        if batches:
            items, self._answered = answered - self._answered, answered
            self._slow_late += self._traffic.late_by_stragglers(items, batches, oldest_s)
        waits = self.waits
        work = (len(waits) - self._looked_at) // _WAITS
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
        return Replayed(tail_s, mean_s, min(1.0, late + self._slow_late), largest)


def _rate_rps(
    times: Sequence[float], here: int, spans: Sequence[tuple[int, float]] = _SPANS
) -> float:
    """What comes a second just now, after so many arrivals: the most of what any span says."""
    rate_rps = 0.0
    for span, count in spans:
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


class Share(Protocol):
    """How many of the waiting items leave."""

    full: int  # items that leave at once
    all_up_to: int  # so many or fewer leave together
    known: dict[int, int]  # how many of so many leave, as far as that has been asked

    def take(self, waiting: int, times: Sequence[float], here: int) -> int:
        """After so many of these arrivals."""
        ...

    def looked_up(self) -> int:
        """Answers since the last time that took some reckoning."""
        ...


class Capped:
    """So many at once, and more where more come than that serves."""

    def __init__(self, cap: int, most: int, sustained: "Sustained", item_rows: float) -> None:
        self.full = self.all_up_to = cap
        self.known: dict[int, int] = {}
        self._cap_rows = round(cap * item_rows)
        self._most = most
        self._surge, self._item_rows = Surge(sustained), item_rows

    def take(self, waiting: int, times: Sequence[float], here: int) -> int:
        rows = round(waiting * self._item_rows)
        rows = self._surge.rows_to_take(rows, self._cap_rows, times, here)
        return max(1, min(int(rows / self._item_rows), self._most, waiting))

    def looked_up(self) -> int:
        return 0


class Sized:
    """As many as `sizing` says."""

    all_up_to = 0

    def __init__(self, sizing: Sizing, size: int, item_rows: float, most: int) -> None:
        self.full, self._size, self._item_rows = most, size, item_rows
        self._sizing = sizing
        self.known: dict[int, int] = {}
        self._before = 0

    def take(self, waiting: int, times: Sequence[float], here: int) -> int:
        rows = self._sizing.rows_to_take(round(waiting * self._item_rows), self._size)
        taken = self.known[waiting] = max(1, min(waiting, int(rows / self._item_rows)))
        return taken

    def looked_up(self) -> int:
        asked, self._before = len(self.known) - self._before, len(self.known)
        return asked


class Sustained:
    """What each batch size serves, and which to use while more come than was rehearsed."""

    def __init__(
        self, sizes: Sequence[tuple[int, float, float]] = (), *, is_alone: bool = False
    ) -> None:
        """Rows, what they serve a second, and what a batch of them takes; ascending in rows.
        `is_alone`: there is one worker."""
        self.is_alone = is_alone
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

    def half(self, waiting: int, cap_rows: int, rate_rps: float) -> int:
        """In whole caps: where rows are computed in tiles, the cap is full tiles. As many as keep
        up with what surely comes, if more than two caps wait."""
        half = waiting // 2
        rows = max(cap_rows, half - half % cap_rows)
        if waiting <= 2 * cap_rows or not self._sizes:
            return rows
        keeping_up = (size for size, rps, _ in self._sizes if rps >= rate_rps)
        return max(rows, next(keeping_up, self._sizes[-1][0]))

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
        if sustained.is_alone:
            rate = _rate_rps(times, here, _SPAN_ALONE) if waiting > 2 * cap_rows else 0.0
            return min(waiting, sustained.half(waiting, cap_rows, rate))
        rows = sustained.share(waiting, cap_rows)
        self._is_on |= rows > cap_rows or waiting > sustained.long_queue(cap_rows)
        if self._is_on:
            cap_rows = self.cap_for(cap_rows, times, here)
            rows = sustained.share(waiting, cap_rows)
        return rows
