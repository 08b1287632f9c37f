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
from typing import NamedTuple, Protocol, TypeVar

from headway.core.batching.sizing import HAND_OVER_S, Sizing
from headway.core.costs import Costs
from headway.core.policy import Policy

_MOST = 2048  # arrivals of a replay …
_LEAST = 256  # … and at least: fewer are replayed over and over
_FIRST, _EVERY = 16, 512  # arrivals before the first rehearsal, and at most between two others
_CHANGED = 1.4  # times as many or as few arrivals a second: all settings are tried again
_SLICE = 24  # batches of a replay between two pauses
_EARLY, _EARLY_SLICES = 1024, 6  # up to so many arrivals, so many slices at once
_LOOK_UP = 12  # batches of a replay take as long as to reckon once how many rows leave
_STEP_S = 2e-6  # what one batch of a replay takes, about
_SHARE = 0.01  # of the time is spent on rehearsing, at most, …
_LENT_S = 0.1  # … and so much at the start
_WINDOWS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 4.0)  # times what one item takes
_MEAN_COUNTS = 0.3  # times what the tail does
_BETTER = math.log(0.98)  # of the present score: less is chance
_TAIL = 0.01  # of the items are the tail
_LATE_STEPS = 200  # shares of late items that differ by less than half a percent are alike
_BAR = 0.8  # of the best tail so far: a better one need not be known exactly
_HEADROOM = 1.0  # times what comes: what a batch size must be able to serve
_NO_LONGER = 1.002  # times what a smaller batch takes
_LATELY = 96  # arrivals that say how many come just now, …
_SURELY = 1.25  # … if they are so many times what a batch size serves: less may be chance
_CAPPED = math.log(0.97)  # a cap must be this much better than none, as it is worse when more come
_BUSY = 0.8  # of the time
_SHORTEST_S = 1e-9  # no answer is sooner: what is less is rounding


class Setting(NamedTuple):
    """A batch leaves at so many rows, or when its oldest item has waited so long."""

    window_s: float
    cap_rows: int | None  # None: as many as `sizing` says, of those who are here


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
    rate_rps: float
    slo_s: float
    found: dict[Setting, Replayed]

    def best(self) -> Setting:
        return min(self.found, key=self.score)

    def score(self, setting: Setting) -> float:
        is_capped = setting.cap_rows is not None
        return self.found[setting].score - (_CAPPED if is_capped else 0.0)

    def capacity_rps(self, items: int, power: float = 1.0) -> float:
        """What so many workers can serve that take so many items at once."""
        items = min(items, len(self.seconds) - 1)
        return items * power / self.seconds[items]


class Rehearsal:
    def __init__(self, policy: Policy, costs: Costs, sizing: Sizing) -> None:
        self._costs = costs
        self._sizing = sizing
        self._max_rows = policy.max_batch_size
        self._max_wait_s = math.inf if policy.max_wait_s is None else policy.max_wait_s
        self._slo_s = math.inf if policy.slo_s is None else policy.slo_s
        self.speeds: tuple[float, ...] = (1.0,) * policy.workers
        self.size = 0  # of an item, on average
        self.item_rows = 1.0  # likewise
        self._size, self._item_rows = 0, 1.0  # the same, when the round began
        self._recent = array("d")  # when items arrived
        self._arrivals = 0
        self._due = _FIRST  # arrivals
        self._since = self._not_before = -math.inf
        self.replayed_batches = 0  # replayed so far
        self._rate_rps = 0.0  # when all settings were tried last
        self._round: Iterator[None] | None = None
        self.setting: Setting | None = None  # None: nothing is known yet
        self._sustained = Sustained([])

    def arrived(self, times: Sequence[float]) -> None:
        recent = self._recent
        recent.extend(times)
        if len(recent) > 2 * _MOST:
            del recent[:-_MOST]
        self._arrivals += len(times)

    def sustained_rows(self) -> int:
        """How many rows at once keep up with what has come lately."""
        recent = self._recent
        is_known = len(recent) >= _LATELY
        return self._sustained.rows_for(recent[-1] - recent[-_LATELY] if is_known else math.inf)

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
        is_alone = len(self.speeds) == 1
        before = self.setting
        if before is None:
            before = Setting(0.0, None if is_alone else self._costs.best_rows(self._size))
        before = before._replace(window_s=min(before.window_s, windows[-1]))
        caps = self._caps(round_)
        if before.cap_rows is not None and before.cap_rows < caps[0]:
            before = before._replace(cap_rows=caps[0])  # the one in force does not keep up
        yield from self._try(before, round_)
        rates = sorted((round_.rate_rps, self._rate_rps))
        is_wide = len(self._recent) < _MOST or rates[1] > _CHANGED * rates[0]
        if is_wide:
            self._rate_rps = round_.rate_rps
        else:
            windows = _around(windows, before.window_s)
            caps = caps if before.cap_rows is None else _around(caps, before.cap_rows)
        yield from self._try_windows(windows, round_)
        yield from self._try_caps(caps, round_)
        if is_alone:
            yield from self._try(Setting(round_.best().window_s, None), round_)
        if is_wide and round_.best().cap_rows != before.cap_rows:
            yield from self._try_windows(windows, round_)
        best = round_.best()
        is_better = self.setting is None or round_.score(best) < round_.score(before) + _BETTER
        self.setting = best if is_better else before

    def _new_round(self) -> _Round | None:
        self._size, self._item_rows = self.size, self.item_rows
        by_rows, scale = self._costs.by_rows(self._size)
        # What batches take on average. Which of them are slow is chance, and met by another setting
        # in another place: of settings that are replayed with it, the luckiest would win.
        scale *= self._costs.mean_ratio()
        most = max(1, int(self._max_rows / self._item_rows))
        seconds = [0.0]
        for items in range(1, most + 1):
            batch_s = by_rows[min(self._max_rows, round(items * self._item_rows))]
            if batch_s is None:
                return None
            seconds.append(batch_s * scale + HAND_OVER_S)
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
        return _Round(times, seconds, own / span_s, self._slo_s, {})

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
        for result in _replay(round_, setting.window_s, self._share(setting), self.speeds, bar_s):
            self.replayed_batches += _SLICE
            if result is not None:
                round_.found[setting] = result
            yield

    def _share(self, setting: Setting) -> "_Share":
        most = self._items(self._costs.best_rows(self._size))
        if setting.cap_rows is None:
            return _Sized(self._sizing, self._size, self._item_rows, most)
        cap = self._items(min(setting.cap_rows, self._max_rows))
        return _Capped(cap, most, len(self.speeds), self._sustained, self._item_rows)

    def _items(self, rows: int) -> int:
        return max(1, int(rows / self._item_rows))

    def _windows(self, round_: _Round) -> list[float]:
        """None for a single worker that is busy most of the time: others come while it runs."""
        best = self._items(self._costs.best_rows(self._size))
        if len(self.speeds) == 1 and round_.rate_rps > _BUSY * round_.capacity_rps(best):
            return [0.0]
        alone_s = round_.seconds[1]
        return sorted({min(times * alone_s, self._max_wait_s) for times in _WINDOWS})

    def _caps(self, round_: _Round) -> list[int]:
        """Those with which the workers keep up."""
        best = self._costs.best_rows(self._size)
        power = sum(1.0 / speed for speed in self.speeds)
        sizes = [
            (rows, round_.capacity_rps(self._items(rows), power))
            for rows in _cap_sizes(self._max_rows, best, self._costs.by_rows(self._size)[0])
        ]
        self._sustained = Sustained([each for each in sizes if each[0] <= best])
        needed_rps = _HEADROOM * round_.rate_rps
        return [rows for rows, rps in sizes if rows >= best or rps >= needed_rps]


class Sustained:
    """How many rows at once keep up with what has come lately."""

    def __init__(self, sizes: Sequence[tuple[int, float]]) -> None:
        """Rows and what they serve a second, ascending in rows."""
        self._rows: list[int] = []
        self._rates_rps: list[float] = []
        for rows, rps in sizes:
            if not self._rates_rps or rps > self._rates_rps[-1]:  # a begun tile serves fewer
                self._rows.append(rows)
                self._rates_rps.append(rps)

    def rows_for(self, lately_s: float) -> int:
        """`lately_s`: the time in which the latest came."""
        if not self._rows:
            return 1
        rate_rps = _LATELY / (_SURELY * lately_s) if lately_s > 0.0 else math.inf
        at = bisect_left(self._rates_rps, rate_rps)
        return self._rows[min(at, len(self._rows) - 1)]


def _cap_sizes(max_rows: int, best: int, by_rows: Sequence[float | None]) -> list[int]:
    """Powers of two, one and a half times each, and the best; where rows are computed in tiles, as
    many more as take no longer."""
    sizes, rows = {max_rows, best}, 1
    while rows < max_rows:
        sizes |= {rows, min(max_rows, 3 * rows // 2)}
        rows *= 2
    return sorted({_stretched(each, by_rows) for each in sizes})


def _stretched(rows: int, by_rows: Sequence[float | None]) -> int:
    most_s = _NO_LONGER * (by_rows[rows] or 0.0)
    while rows + 1 < len(by_rows) and (by_rows[rows + 1] or math.inf) <= most_s:
        rows += 1
    return rows


_Number = TypeVar("_Number", int, float)


def _around(values: Sequence[_Number], value: _Number) -> list[_Number]:
    """Those next to it."""
    at = bisect_left(values, value)
    return list(values[max(0, at - 1) : at + 2])


def rows_to_take(
    waiting: int, cap_rows: int, most: int, *, workers: int, sustained_rows: int
) -> int:
    """So many as the cap says. Where more wait it may be too small for what comes just now: then as
    many as keep up with that, and of a queue that has grown far beyond the cap a good part: half,
    and less where several workers share it. In whole caps: where rows are computed in tiles, the
    cap is full tiles."""
    if waiting <= cap_rows:
        return waiting
    part = 3 * waiting // (2 * workers + 4)
    rows = max(cap_rows, part - part % cap_rows)
    if waiting > 2 * cap_rows:
        rows = max(rows, sustained_rows)
    return min(rows, most, waiting)


class _Share(Protocol):
    """How many of the waiting items leave."""

    full: int  # items that leave at once
    looked_up: int  # answers that took some reckoning

    def take(self, waiting: int, lately_s: float) -> int:
        """`lately_s`: the time in which the latest came."""
        ...


class _Capped:
    looked_up = 0

    def __init__(
        self, cap: int, most: int, workers: int, sustained: Sustained, item_rows: float
    ) -> None:
        self.full, self._most, self._workers = cap, most, workers
        self._sustained, self._item_rows = sustained, item_rows

    def take(self, waiting: int, lately_s: float) -> int:
        if waiting <= self.full:
            return waiting
        sustained = max(1, int(self._sustained.rows_for(lately_s) / self._item_rows))
        return rows_to_take(
            waiting, self.full, self._most, workers=self._workers, sustained_rows=sustained
        )


class _Sized:
    def __init__(self, sizing: Sizing, size: int, item_rows: float, most: int) -> None:
        self.full, self._size, self._item_rows = most, size, item_rows
        self._sizing = sizing
        self._taken: dict[int, int] = {}
        self.looked_up = 0

    def take(self, waiting: int, lately_s: float) -> int:
        taken = self._taken.get(waiting)
        if taken is None:
            self.looked_up += 1
            rows = self._sizing.rows_to_take(round(waiting * self._item_rows), self._size)
            taken = self._taken[waiting] = max(1, min(waiting, int(rows / self._item_rows)))
        return taken


def _replay(
    round_: _Round, window_s: float, share: _Share, speeds: Sequence[float], bar_s: float
) -> Iterator[Replayed | None]:
    """The rule, batch by batch; pauses now and then, and answers at the end.

    Waits below the bar are not looked at: a tail below it is as good as the bar.
    """
    times, seconds, _, slo_s, _ = round_
    workers = _Workers(speeds) if len(speeds) > 1 else _Worker()
    count, full = len(times), share.full
    first = batches = largest = paused_at = 0
    waits: list[float] = []
    ends_s, bar_s = 0.0, min(bar_s, slo_s)
    while first < count:
        oldest = times[first]
        start = oldest + window_s
        if first + full <= count:
            start = min(start, times[first + full - 1])
        start = max(start, workers.free_at)
        here = bisect_right(times, start, first + 1)
        lately_s = times[here - 1] - times[here - _LATELY] if here >= _LATELY else math.inf
        items = share.take(here - first, lately_s)
        end = workers.run(start, seconds[items])
        largest = max(largest, items)
        ends_s += end * items
        beyond = first + items
        if end - oldest > bar_s:
            waits += [end - at for at in times[first:beyond]]
        first = beyond
        batches += 1
        if batches + _LOOK_UP * share.looked_up - paused_at >= _SLICE:
            paused_at = batches + _LOOK_UP * share.looked_up
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
