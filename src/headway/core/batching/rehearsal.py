"""How long a free worker of a pool waits for more items, and how many rows its batches take.

The latest arrivals are replayed against the learned batch times, under one window and batch size
after the other. The setting that would have given the best tail and mean is used from then on.
Arrivals that do not depend on our answers are the same whatever we decide, so a replay shows what
would have happened. In a closed loop they do depend on them: see `arrivals`.

The work is done in slices, when there is nothing else to decide, and takes a bounded share of the
time.
"""

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headway.core.batching.replay import Replayed, Sharing, Traffic, replay
from headway.core.costs import Costs
from headway.core.costs.sizes import WORTH_IT
from headway.core.policy import Policy
from headway.core.queueing.running import Running

_MOST = 2048  # arrivals in one replay, at most
_LEAST = 256  # arrivals in one replay, at least: fewer are repeated
_FIRST, _EVERY = 16, 512  # arrivals before the first rehearsal, and at most between two
_STEP_S = 2.5e-6  # about the time that replaying one batch takes (see `benchmarks decisions`)
_SHARE = 0.01  # the largest share of the time that rehearsals may take, …
_LENT_S = 0.1  # … and the seconds that they may take in advance, at the start
_WINDOWS = 8  # windows that are tried, each half of the one before
_LONGEST = 4.0  # the longest of them, in batches of one item
# A batch size may serve less than the observed rate, by this many standard deviations of a Poisson
# count: the rate may be high by chance. A size that is too large delays every request; one that is
# too small delays only the requests of a growing queue, and a growing queue lifts it.
_CHANCE = 0.5
_HAND_OVER_S = 50e-6  # the time for sending a batch to a worker and back


class Setting(NamedTuple):
    """A batch leaves at `cap_rows` rows, or when its oldest item has waited for `window_s`."""

    window_s: float
    cap_rows: int


class _Round(NamedTuple):
    """One rehearsal: the traffic to replay, and the results so far."""

    traffic: Traffic
    rate_rps: float
    found: dict[Setting, Replayed]

    def best(self) -> Setting:
        return min(self.found, key=self.score)

    def score(self, setting: Setting) -> float:
        return self.found[setting].score


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
        self._arrivals = 0  # in all
        self._due = _FIRST  # the number of arrivals at which the next round begins, …
        self._not_before = -math.inf  # … but not before this moment
        self._since = -math.inf  # when the first round began
        self._work = 0  # of all rounds so far, in replayed batches
        self._round: Iterator[int] | None = None
        self.setting: Setting | None = None  # None: nothing is known yet
        self._sharing = Sharing()

    def arrived(self, times: Sequence[float]) -> None:
        recent = self._recent
        recent.extend(times)
        if len(recent) > 2 * _MOST:
            del recent[:-_MOST]
        self._arrivals += len(times)

    def meet(self, size: int, item_rows: float) -> None:
        """Note the average size and rows of the waiting items."""
        self._met = size, item_rows

    def cap_rows_at(self, setting: Setting, rate_rps: float) -> int:
        """The setting's cap; in a burst, the least one above it that keeps up with the arrivals."""
        least = self._items(setting.cap_rows)
        for items, rps, _ in self._sharing.sizes:
            if items >= least and rps >= rate_rps * (1.0 - WORTH_IT):
                return max(setting.cap_rows, round(items * self._item_rows))
        return setting.cap_rows

    def rows_to_take(self, waiting: int, cap_rows: int) -> int:
        """How many of `waiting` rows to take, given the usual `cap_rows`."""
        if waiting <= cap_rows:
            return waiting
        items = self._sharing.items_to_take(self._items(waiting), self._items(cap_rows))
        return min(waiting, round(items * self._item_rows))

    def start_over(self) -> None:
        """The speeds of the workers have changed: rehearse at once, and try all settings."""
        self._round, self._due = None, max(_FIRST, self._arrivals)
        self.setting = None

    def step(self, now: float) -> None:
        """Do a slice of the work, if a round is due. (One worker has nothing to choose.)"""
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
        # The first rounds take their time in advance: later rounds wait until it is made up for.
        self._not_before = self._since + (self.spent_s - _LENT_S) / _SHARE

    @property
    def spent_s(self) -> float:
        """About how many seconds all rehearsals have taken so far."""
        return self._work * _STEP_S

    def _rehearse(self) -> Iterator[int]:
        round_ = self._new_round()
        if round_ is None:
            return
        windows = self._windows(round_)
        before = self.setting or Setting(0.0, self._costs.best_rows(self._size))
        before = before._replace(window_s=min(before.window_s, windows[-1]))
        caps = self._caps(round_)
        if before.cap_rows < caps[0]:
            before = before._replace(cap_rows=caps[0])  # the present one is too small
        yield from self._try(before, round_)
        yield from self._try_windows(windows, round_)
        yield from self._try_caps(caps, round_)
        if round_.best().cap_rows != before.cap_rows:
            yield from self._try_windows(windows, round_)
        self.setting = round_.best()

    def _new_round(self) -> _Round | None:
        self._size, self._item_rows = self._met
        # Expected batch times. Which batches are slow is chance: if slow batches were replayed, the
        # luckiest setting would win.
        most = max(1, int(self._max_rows / self._item_rows))
        seconds = self._costs.by_items(most, self._size, self._item_rows)
        if len(seconds) <= most:
            return None
        seconds = [each + _HAND_OVER_S for each in seconds]
        recent = sorted(self._recent[-_MOST:])
        # Times count from the first arrival: if the clock has run for months, rounding errors in
        # sums of its times are as large as a fast batch's time.
        times = [at - recent[0] for at in recent]
        own = len(times)
        span_s = times[-1] * own / (own - 1)
        if span_s <= 0.0:
            return None
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
        worst = round_.score(round_.best()) if round_.found else math.inf
        round_.found[setting] = yield from replay(
            round_.traffic,
            setting.window_s,
            self._items(min(setting.cap_rows, self._max_rows)),
            self._sharing,
            self._running.speeds,
            worst=worst,
        )

    def _items(self, rows: int) -> int:
        return max(1, int(rows / self._item_rows))

    def _windows(self, round_: _Round) -> list[float]:
        longest_s = _LONGEST * round_.traffic.seconds[1]
        windows = {min(longest_s / 2**halved, self._max_wait_s) for halved in range(_WINDOWS)}
        return [0.0, *sorted(windows - {0.0})]

    def _caps(self, round_: _Round) -> list[int]:
        """The caps with which the workers keep up with the arrivals, ascending."""
        best, seconds = self._costs.best_rows(self._size), round_.traffic.seconds
        power = sum(1.0 / speed for speed in self._running.speeds)
        sizes = []
        for rows in _cap_sizes(self._max_rows, best):
            items = self._items(rows)
            sizes.append((rows, items, items * power / seconds[items]))
        self._sharing = Sharing(
            [(items, rps, seconds[items]) for rows, items, rps in sizes if rows <= best]
        )
        seen = min(len(self._recent), _MOST)
        needed_rps = round_.rate_rps * (1.0 - _CHANCE / math.sqrt(seen))
        return [rows for rows, _, rps in sizes if rows >= best or rps >= needed_rps]


def _cap_sizes(max_rows: int, best: int) -> list[int]:
    """Powers of two, one and a half times each, and the best size."""
    sizes, rows = {max_rows, best}, 1
    while rows < max_rows:
        sizes |= {rows, min(max_rows, rows + rows // 2)}
        rows *= 2
    return sorted(sizes)
