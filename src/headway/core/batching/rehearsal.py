"""Which window and batch size would have served the latest arrivals best.

The last arrivals are replayed against the learned batch times, under one window and batch size
after the other; whatever would have given the best tail and mean is used from then on. Arrivals
that do not depend on our answers are the same whatever we decide, so a replay is what would have
happened. Callers that wait for their answers before they ask again are another matter: `linger`.

The work is done in slices, when there is nothing else to decide, and takes a bounded share of the
time.
"""

import heapq
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from headway.core.costs import Costs
from headway.core.policy import Policy

_MOST = 2048  # arrivals of a replay …
_LEAST = 256  # … and at least: fewer are replayed over and over
_FIRST, _EVERY = 16, 512  # arrivals before the first rehearsal, and at most between two others
_CHANGED = 1.4  # times as many or as few arrivals a second: all settings are tried again
_SLICE = 24  # batches of a replay between two pauses
_EARLY, _EARLY_SLICES = 1024, 6  # up to so many arrivals, so many slices at once
_STEP_S = 2e-6  # what one batch of a replay takes, about
_SHARE = 0.01  # of the time is spent on rehearsing, at most, …
_LENT_S = 0.1  # … and so much at the start
_WINDOWS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 4.0)  # times what one item takes
_MEAN_COUNTS = 0.3  # times what the tail does
_BETTER = math.log(0.98)  # of the present score: less is chance
_TAIL = 0.01  # of the items are the tail
_LATE_STEPS = 200  # shares of late items that differ by less than half a percent are alike
_BAR = 0.8  # of the best tail so far: a better one need not be known exactly
_HEADROOM = 1.02  # times what comes: what a batch size must be able to serve
_BUSY = 0.8  # of the time
_SHORTEST_S = 1e-9  # no answer is sooner: what is less is rounding
_STEADY = 0.05  # batch times that vary no more than this count as constant


class Setting(NamedTuple):
    """A batch leaves at so many rows, or when its oldest item has waited so long."""

    window_s: float
    cap_rows: int


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


class _Round(NamedTuple):
    """One rehearsal: what is replayed, and what came of it so far. Counts items, not rows."""

    times: list[float]  # of arrivals, ascending, since the first
    seconds: list[float]  # of a batch, by items
    factors: list[float]  # batches take so many times as long, in turn
    rate_rps: float
    slo_s: float
    found: dict[Setting, Replayed]

    def best(self) -> Setting:
        return min(self.found, key=lambda setting: self.found[setting].score)

    def keeps_up(self, items: int, power: float) -> bool:
        """Do so many workers that take so many items at once serve all arrivals?"""
        slower = sum(self.factors) / len(self.factors)
        needed = _HEADROOM * self.rate_rps * self.seconds[items] * slower
        return items * power > needed


class Rehearsal:
    def __init__(self, policy: Policy, costs: Costs) -> None:
        self._costs = costs
        self._max_rows = policy.max_batch_size
        self._max_wait_s = math.inf if policy.max_wait_s is None else policy.max_wait_s
        self._slo_s = math.inf if policy.slo_s is None else policy.slo_s
        self.speeds: tuple[float, ...] = (1.0,) * policy.workers
        self.size = 0  # of an item, on average
        self.item_rows = 1.0  # likewise
        self._recent = array("d")  # when items arrived
        self._arrivals = 0
        self._due = _FIRST  # arrivals
        self._since = self._not_before = -math.inf
        self.replayed_batches = 0  # replayed so far
        self._rate_rps = 0.0  # when all settings were tried last
        self._round: Iterator[None] | None = None
        self.setting: Setting | None = None  # None: nothing is known yet

    def arrived(self, times: Sequence[float]) -> None:
        recent = self._recent
        recent.extend(times)
        if len(recent) > 2 * _MOST:
            del recent[:-_MOST]
        self._arrivals += len(times)

    def step(self, now: float) -> None:
        """Do a little, if something is to be done."""
        if self._round is None:
            if self._arrivals < self._due or now < self._not_before:
                return
            self._due = self._arrivals + min(self._arrivals, _EVERY)
            if self._since == -math.inf:
                self._since = now
            self._round = self._rehearse()
        for _ in range(_EARLY_SLICES if self._arrivals < _EARLY else 1):
            if next(self._round, self) is self:
                self._round = None
                # What the first rounds take is lent: those that follow wait until it is paid back.
                spent_s = self.replayed_batches * _STEP_S
                self._not_before = self._since + (spent_s - _LENT_S) / _SHARE
                return

    def _rehearse(self) -> Iterator[None]:
        round_ = self._new_round()
        if round_ is None:
            return
        windows = self._windows(round_)
        before = self.setting or Setting(0.0, self._costs.best_rows(self.size))
        before = before._replace(window_s=min(before.window_s, windows[-1]))
        yield from self._try(before, round_)
        rates = sorted((round_.rate_rps, self._rate_rps))
        is_wide = len(self._recent) < _MOST or rates[1] > _CHANGED * rates[0]
        caps = self._caps(round_)
        if is_wide:
            self._rate_rps = round_.rate_rps
        else:
            windows = _around(windows, before.window_s)
            caps = _around(caps, before.cap_rows)
        yield from self._try_windows(windows, round_)
        yield from self._try_caps(caps, round_)
        if is_wide and round_.best().cap_rows != before.cap_rows:
            yield from self._try_windows(windows, round_)
        best, found = round_.best(), round_.found
        is_better = self.setting is None or found[best].score < found[before].score + _BETTER
        self.setting = best if is_better else before

    def _new_round(self) -> _Round | None:
        by_rows, scale = self._costs.by_rows(self.size)
        most = max(1, int(self._max_rows / self.item_rows))
        seconds = [0.0]
        for items in range(1, most + 1):
            batch_s = by_rows[min(self._max_rows, round(items * self.item_rows))]
            if batch_s is None:
                return None
            seconds.append(batch_s * scale)
        recent = sorted(self._recent[-_MOST:])
        # Since the first of them: by a clock that has run for months, sums of times round away
        # what a fast batch takes.
        times = [at - recent[0] for at in recent]
        own = len(times)
        span_s = times[-1] * own / (own - 1)
        if span_s <= 0.0:
            return None
        while len(times) < _LEAST:
            times += [at + span_s for at in times[-own:]]
        is_steady = self._costs.error_at(99.0) - self._costs.error_at(1.0) <= _STEADY
        factors = [1.0] if is_steady else self._costs.recent_ratios()
        return _Round(times, seconds, factors, own / span_s, self._slo_s, {})

    def _try_windows(self, windows: Sequence[float], round_: _Round) -> Iterator[None]:
        cap_rows = round_.best().cap_rows
        for window_s in windows:
            if window_s > round_.found[round_.best()].tail_s:
                return
            yield from self._try(Setting(window_s, cap_rows), round_)

    def _try_caps(self, caps: Sequence[int], round_: _Round) -> Iterator[None]:
        window_s = round_.best().window_s
        for cap_rows in caps:
            setting = Setting(window_s, cap_rows)
            yield from self._try(setting, round_)
            if round_.found[setting].largest < self._items(cap_rows):
                return  # no batch would be larger

    def _try(self, setting: Setting, round_: _Round) -> Iterator[None]:
        if setting in round_.found:
            return
        bar_s = _BAR * round_.found[round_.best()].tail_s if round_.found else 0.0
        cap = min(self._items(setting.cap_rows), len(round_.seconds) - 1)
        for result in _replay(round_, setting.window_s, cap, self.speeds, bar_s):
            self.replayed_batches += _SLICE
            if result is not None:
                round_.found[setting] = result
            yield

    def _items(self, rows: int) -> int:
        return max(1, int(rows / self.item_rows))

    def _windows(self, round_: _Round) -> list[float]:
        """None for a single worker that is busy most of the time: others come while it runs."""
        best = min(self._items(self._costs.best_rows(self.size)), len(round_.seconds) - 1)
        if len(self.speeds) == 1 and not round_.keeps_up(best, _BUSY):
            return [0.0]
        alone_s = round_.seconds[1]
        return sorted({min(times * alone_s, self._max_wait_s) for times in _WINDOWS})

    def _caps(self, round_: _Round) -> list[int]:
        """Those with which the workers keep up."""
        best = self._costs.best_rows(self.size)
        sizes, rows = {self._max_rows, best}, 1
        while rows < self._max_rows:
            sizes |= {rows, min(self._max_rows, 3 * rows // 2)}
            rows *= 2
        power = sum(1.0 / speed for speed in self.speeds)
        return [
            rows
            for rows in sorted(sizes)
            if rows >= best
            or round_.keeps_up(min(self._items(rows), len(round_.seconds) - 1), power)
        ]


_Number = TypeVar("_Number", int, float)


def _around(values: Sequence[_Number], value: _Number) -> list[_Number]:
    """Those next to it."""
    at = bisect_left(values, value)
    return list(values[max(0, at - 1) : at + 2])


def rows_to_take(waiting: int, cap_rows: int, most: int, workers: int) -> int:
    """So many as the cap says; but where the queue has grown far beyond it, a good part of that:
    half, and less where several workers share it. In whole caps: where rows are computed in tiles,
    the cap is full tiles."""
    part = 3 * waiting // (2 * workers + 4)
    return min(max(cap_rows, part - part % cap_rows), most, waiting)


def _replay(
    round_: _Round, window_s: float, cap: int, speeds: Sequence[float], bar_s: float
) -> Iterator[Replayed | None]:
    """The rule, batch by batch; pauses now and then, and answers at the end.

    Waits below the bar are not looked at: a tail below it is as good as the bar.
    """
    times, seconds, factors, _, slo_s, _ = round_
    workers = _Workers(speeds) if len(speeds) > 1 else _Worker()
    count, most, drawn = len(times), len(seconds) - 1, len(factors)
    first = batches = largest = 0
    waits: list[float] = []
    ends_s, bar_s = 0.0, min(bar_s, slo_s)
    while first < count:
        oldest = times[first]
        start = oldest + window_s
        if first + cap <= count:
            start = min(start, times[first + cap - 1])
        start = max(start, workers.free_at)
        beyond = bisect_right(times, start, first + 1)
        items = beyond - first
        if items > cap:
            items = rows_to_take(items, cap, most, len(speeds))
            beyond = first + items
        end = workers.run(start, seconds[items] * factors[batches % drawn])
        largest = max(largest, items)
        ends_s += end * items
        if end - oldest > bar_s:
            waits += [end - at for at in times[first:beyond]]
        first = beyond
        batches += 1
        if not batches % _SLICE:
            yield None
    waits.sort()
    in_tail = max(1, int(_TAIL * count))
    tail_s = max(bar_s, waits[-in_tail]) if len(waits) >= in_tail else bar_s
    late = len(waits) - bisect_right(waits, slo_s)
    yield Replayed(tail_s, (ends_s - sum(times)) / count, late / count, largest)


class _Worker:
    """The only one there is."""

    def __init__(self) -> None:
        self.free_at = -math.inf

    def run(self, start: float, ran_s: float) -> float:
        self.free_at = end = start + ran_s
        return end


class _Workers:
    """Several. A batch goes to the one that is done with it first."""

    def __init__(self, speeds: Sequence[float]) -> None:
        self._speeds = speeds
        self._is_unequal = max(speeds) != min(speeds)
        self._free = [-math.inf] * len(speeds)
        self.free_at = -math.inf

    def run(self, start: float, ran_s: float) -> float:
        free = self._free
        if self._is_unequal:
            end, worker = min(
                (max(start, at) + ran_s * speed, i)
                for i, (at, speed) in enumerate(zip(free, self._speeds, strict=True))
            )
            free[worker] = end
            self.free_at = min(free)
        else:
            end = start + ran_s
            heapq.heapreplace(free, end)
            self.free_at = free[0]
        return end
