"""How long a free worker lingers: which window and batch size would have served the latest
arrivals best.

The last arrivals are replayed against the learned batch times, under one window and batch size
after the other; whatever would have given the best tail and mean is used from then on. Arrivals
that do not depend on our answers are the same whatever we decide, so a replay is what would have
happened. Callers that wait for their answers before they ask again are another matter: `arrivals`.

The work is done in slices, when there is nothing else to decide, and takes a bounded share of the
time.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from headway.core.batching.replay import Capped, Replayed, Surge, Sustained, Traffic, replay
from headway.core.costs import Costs
from headway.core.costs.sizes import WORTH_IT
from headway.core.policy import Policy
from headway.core.queueing.running import Running

_MOST = 2048  # arrivals of a replay …
_LEAST = 256  # … and at least: fewer are replayed over and over
_FIRST, _EVERY = 16, 512  # arrivals before the first rehearsal, and at most between two
_STEP_S = 2.5e-6  # what one batch of a replay takes, about: `benchmarks decisions` measures it
_SHARE = 0.01  # of the time is spent on rehearsing, at most, …
_LENT_S = 0.1  # … and so much at the start
_WINDOWS = 8  # are looked at, each half of the one before; the longest: …
_LONGEST = 4.0  # times what one item takes
_BETTER = math.log(0.98)  # of the present score: less is chance
_BAR = 0.8  # of the best tail so far: a better one need not be known exactly
# Standard deviations of a Poisson count: a size may serve so much less than the rate that was seen.
# That rate may be chance; a size that is too large costs every request, one that is too small only
# those of the queue that grows, and it is lifted then.
_CHANCE = 0.5
_HAND_OVER_S = 50e-6  # to a worker and back: what each batch takes beside what the model takes


class Setting(NamedTuple):
    """A batch leaves at so many rows, or when its oldest item has waited so long."""

    window_s: float
    cap_rows: int


class _Round(NamedTuple):
    """One rehearsal: what is replayed, and what came of it so far."""

    traffic: Traffic
    rate_rps: float
    found: dict[Setting, Replayed]

    def best(self) -> Setting:
        return min(self.found, key=self.score)

    def score(self, setting: Setting) -> float:
        return self.found[setting].score

    def capacity_rps(self, items: int, power: float = 1.0) -> float:
        """What so many workers can serve that take so many items at once."""
        seconds = self.traffic.seconds
        items = min(items, len(seconds) - 1)
        return items * power / seconds[items]


class Rehearsal:
    def __init__(self, policy: Policy, costs: Costs, running: Running) -> None:
        self._costs = costs
        self._running = running
        self._max_rows = policy.max_batch_size
        self._max_wait_s = math.inf if policy.max_wait_s is None else policy.max_wait_s
        self._slo_s = math.inf if policy.slo_s is None else policy.slo_s
        self._met = 0, 1.0  # the size of an item, and its rows, on average
        self._size, self._item_rows = self._met  # when the round began
        self._recent = array("d")  # when items arrived
        self._arrivals = 0
        self._due = _FIRST  # arrivals
        self._since = self._not_before = -math.inf
        self._work = 0  # so far, in batches of a replay
        self._round: Iterator[int] | None = None
        self.setting: Setting | None = None  # None: nothing is known yet
        self._surge = Surge(Sustained())

    def arrived(self, times: Sequence[float]) -> None:
        recent = self._recent
        recent.extend(times)
        if len(recent) > 2 * _MOST:
            del recent[:-_MOST]
        self._arrivals += len(times)

    def meet(self, size: int, item_rows: float) -> None:
        """Items that wait are of that size, and have so many rows, on average."""
        self._met = size, item_rows

    def cap_now(self, cap_rows: int) -> int:
        """So many rows at once, or what several workers take instead while more come."""
        return self._surge.cap_for(cap_rows, self._recent, len(self._recent))

    def rows_to_take(self, waiting: int, cap_rows: int) -> int:
        """Of so many waiting rows, where so many at once are usual."""
        return self._surge.rows_to_take(waiting, cap_rows, self._recent, len(self._recent))

    def start_over(self) -> None:
        """The workers are not what they seemed to be: rehearse at once, and try all settings."""
        self._round, self._due = None, max(_FIRST, self._arrivals)
        self.setting = None

    def step(self, now: float) -> None:
        """Do a little, if something is to be done. (One worker: there is nothing to choose.)"""
        if self._running.workers == 1:
            return
        if self._round is None:
            if self._arrivals < self._due or now < self._not_before:
                return
            self._due = self._arrivals + min(self._arrivals, _EVERY)
            if self._since == -math.inf:
                self._since = now
            self._round = self._rehearse()
        work = next(self._round, None)
        if work is not None:
            self._work += work
            return
        self._round = None
        # What the first rounds take is lent: those that follow wait until it is paid back.
        self._not_before = self._since + (self.spent_s - _LENT_S) / _SHARE

    @property
    def spent_s(self) -> float:
        """What all rehearsals have taken so far, about."""
        return self._work * _STEP_S

    def _rehearse(self) -> Iterator[int]:
        round_ = self._new_round()
        if round_ is None:
            return
        windows = self._windows(round_)
        before = self.setting or Setting(0.0, self._costs.best_rows(self._size))
        before = before._replace(window_s=min(before.window_s, windows[-1]))
        caps = all_caps = self._caps(round_)
        if before.cap_rows < caps[0]:
            before = before._replace(cap_rows=caps[0])  # the one in force does not keep up
        yield from self._try(before, round_)
        is_wide = self.setting is None or len(self._recent) < _MOST
        if not is_wide:
            windows = _around(windows, before.window_s)
            caps = _around(caps, before.cap_rows)
        yield from self._try_windows(windows, round_)
        yield from self._try_caps(caps, round_)
        if is_wide and round_.best().cap_rows != before.cap_rows:
            yield from self._try_windows(windows, round_)
        best = round_.best()
        is_better = self.setting is None or round_.score(best) < round_.score(before) + _BETTER
        self.setting = self._reached(best if is_better else before, round_, all_caps)

    def _reached(self, setting: Setting, round_: _Round, caps: Sequence[int]) -> Setting:
        """With the least cap that is the same as far as was seen: when more come it is lifted, but
        one that is too large is not lowered."""
        largest = round(round_.found[setting].largest * self._item_rows)
        least = caps[min(bisect_left(caps, largest), len(caps) - 1)]
        return setting._replace(cap_rows=min(setting.cap_rows, least))

    def _new_round(self) -> _Round | None:
        self._size, self._item_rows = self._met
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
            seconds.append(batch_s * scale + _HAND_OVER_S)
        recent = sorted(self._recent[-_MOST:])
        # Since the first of them: by a clock that has run for months, sums of times round away
        # what a fast batch takes.
        times = [at - recent[0] for at in recent]
        own = len(times)
        span_s = times[-1] * own / (own - 1)
        if span_s <= 0.0:
            return None
        items = self._items(self._costs.best_rows(self._size))
        while len(times) < _LEAST:
            times += [at + span_s for at in times[-own:]]
        traffic = Traffic(times, seconds, self._slo_s)
        return _Round(traffic, own / span_s, {})

    def _try_windows(self, windows: Sequence[float], round_: _Round) -> Iterator[int]:
        cap_rows = round_.best().cap_rows
        for window_s in windows:
            if window_s > round_.found[round_.best()].tail_s:
                return
            yield from self._try(Setting(window_s, cap_rows), round_)

    def _try_caps(self, caps: Sequence[int], round_: _Round) -> Iterator[int]:
        window_s = round_.best().window_s
        for cap_rows in caps:
            setting = Setting(window_s, cap_rows)
            yield from self._try(setting, round_)
            if round_.found[setting].largest < self._items(cap_rows):
                return  # no batch would be larger

    def _try(self, setting: Setting, round_: _Round) -> Iterator[int]:
        if setting in round_.found:
            return
        bar_s, worst = 0.0, math.inf
        if round_.found:
            best = round_.best()
            bar_s = _BAR * round_.found[best].tail_s
            worst = round_.score(best)
        round_.found[setting] = yield from replay(
            round_.traffic,
            setting.window_s,
            self._share(setting),
            self._running.speeds,
            bar_s=bar_s,
            worst=worst,
        )

    def _share(self, setting: Setting) -> Capped:
        most = self._items(self._costs.best_rows(self._size))
        cap = self._items(min(setting.cap_rows, self._max_rows))
        return Capped(cap, most, self._surge.sustained, self._item_rows)

    def _items(self, rows: int) -> int:
        return max(1, int(rows / self._item_rows))

    def _windows(self, round_: _Round) -> list[float]:
        longest_s = _LONGEST * round_.traffic.seconds[1]
        windows = {min(longest_s / 2**halved, self._max_wait_s) for halved in range(_WINDOWS)}
        return [0.0, *sorted(windows - {0.0})]

    def _caps(self, round_: _Round) -> list[int]:
        """Those with which the workers keep up."""
        best = self._costs.best_rows(self._size)
        power = sum(1.0 / speed for speed in self._running.speeds)
        sizes = []
        for rows in _cap_sizes(self._max_rows, best, self._costs.by_rows(self._size)[0]):
            rps = round_.capacity_rps(self._items(rows), power)
            sizes.append((rows, rps, self._items(rows) * power / rps))
        self._surge.sustained = Sustained([each for each in sizes if each[0] <= best])
        seen = min(len(self._recent), _MOST)
        needed_rps = round_.rate_rps * (1.0 - _CHANCE / math.sqrt(seen))
        return [rows for rows, rps, _ in sizes if rows >= best or rps >= needed_rps]


def _cap_sizes(max_rows: int, best: int, by_rows: Sequence[float | None]) -> list[int]:
    """Powers of two, one and a half times each, and the best; where rows are computed in tiles, as
    many more as take no longer."""
    sizes, rows = {max_rows, best}, 1
    while rows < max_rows:
        sizes |= {rows, min(max_rows, 3 * rows // 2)}
        rows *= 2
    return sorted({_stretched(each, by_rows) for each in sizes})


def _stretched(rows: int, by_rows: Sequence[float | None]) -> int:
    enough_s = (by_rows[rows] or 0.0) * (1.0 + WORTH_IT / rows)
    while rows + 1 < len(by_rows) and (by_rows[rows + 1] or math.inf) <= enough_s:
        rows += 1
    return rows


_Number = TypeVar("_Number", int, float)


def _around(values: Sequence[_Number], value: _Number) -> list[_Number]:
    """Those next to it."""
    at = bisect_left(values, value)
    return list(values[max(0, at - 1) : at + 2])
