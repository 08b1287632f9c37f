"""When callers that think are back, and how many of them a batch should start with.

A free worker that starts at once with those who are here leaves the others behind: they form a
batch of their own, and the two groups never meet. A worker that waits for all idles. Between the
two lies the size at which most are answered, and it follows from how many callers there are, how
soon they are back, and what batches take.
"""

import bisect
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

_BATCHES = 32  # after which returns are remembered, …
_ENOUGH = 256  # … or so many of them
_ROUNDS = 8  # batches are followed one by one; of callers that think longer as many stay away
_STEPS = 4  # until the size of a batch agrees with the time it leaves for thinking
_LOOKS = 12  # moments at which some are back that are looked at
_IN_STEP = 0.25  # of what a batch of one takes
_HALF = 0.5  # of a caller is away: none is
GAIN = 1.05  # times the answers a second: for less nobody is kept waiting
EQUAL = 1.01  # times the answers a second: less is no loss


class Start(NamedTuple):
    """When a batch leaves in a closed loop."""

    items: float  # of each batch
    waits: bool  # are they worth a wait, if they are not yet here?
    rate_rps: float  # answers a second


class Away:
    """The share of the callers that think which is still away so long after an answer."""

    def __init__(self, times: list[float], shares: list[float], hazard: float) -> None:
        self.times = times  # ascending, of each that came back
        self._shares = shares  # since then
        self._hazard = hazard  # of one caller, beyond what was seen

    def at(self, seconds: float) -> float:
        i = bisect.bisect_right(self.times, seconds) - 1
        if i < 0:
            return 1.0
        if i < len(self.times) - 1 or seconds <= self.times[i]:
            return self._shares[i]
        return self._shares[i] * math.exp((self.times[i] - seconds) * self._hazard)

    def is_in_step(self, alone_s: float) -> bool:
        """Are most callers back so close to each other that it is no chance?"""
        few = len(self.times) // 10
        spread_s = self.times[-1 - few] - self.times[few]
        return spread_s <= min(_IN_STEP * alone_s, self.times[len(self.times) // 2])


class _Seen(NamedTuple):
    """What came of one answer."""

    at: float
    came: Sequence[float]  # when callers came, …
    seen_s: float  # … until the next answer
    thinking: int  # these, and those that did not come


class Returns:
    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=_BATCHES)

    def learn(self, came: Sequence[float], since: float, until: float, thinking: int) -> None:
        """Of so many callers that thought since an answer, these came until the next one."""
        self._seen.append(_Seen(since, came, until - since, max(thinking, len(came))))

    def away(self) -> Away | None:
        """By Kaplan and Meier: who is not back by the next answer is lost from sight, no more.
        None: nobody came back yet.

        Of batches after which few were away nothing is learned: callers that wait for each other
        do not come while others of them are here.
        """
        most = max([each.thinking for each in self._seen], default=0)
        gaps: list[float] = []
        lost: list[_Seen] = []
        for each in reversed(self._seen):
            if 2 * each.thinking > most and len(gaps) < _ENOUGH:
                gaps += [max(0.0, at - each.at) for at in each.came]
                lost.append(each)
        if not gaps:
            return None
        gaps.sort()
        lost.sort(key=lambda each: each.seen_s)
        left, thought_s = 0, sum(gaps)
        for each in lost:
            left += each.thinking
            thought_s += each.seen_s * (each.thinking - len(each.came))
        share, gone = 1.0, 0
        shares: list[float] = []
        for gap in gaps:
            while gone < len(lost) and lost[gone].seen_s < gap:
                left -= lost[gone].thinking - len(lost[gone].came)
                gone += 1
            share *= 1.0 - 1.0 / left
            shares.append(share)
            left -= 1
        return Away(gaps, shares, len(gaps) / thought_s if thought_s > 0.0 else math.inf)


def starts(away: Away, callers: int, seconds: Sequence[float], most: int) -> list[Start]:
    """What comes of each wait that is worth a look; the first is of none at all.

    `seconds`: what a batch takes, by items, up to `most`. Batches start at equal distances: one
    batch's time, and the wait before it. Who is back before the next one starts joins it. So of all
    callers, each batch has one part of as many as a caller meets starts from one of its own to the
    next.
    """
    times, all_ = away.times, min(callers, most)
    looks = times[:: max(1, len(times) // _LOOKS)]
    half_s = seconds[max(1, all_ // 2)]
    waits = {*looks, *[(at - half_s) / 2 for at in looks if at > half_s]}
    waits.add(_all_back_s(away, callers))
    return [_at(wait_s, away, callers, seconds, most) for wait_s in (0.0, *sorted(waits - {0.0}))]


def together(away: Away, callers: int, seconds: Sequence[float], most: int) -> Start:
    """All of them, always."""
    all_ = min(callers, most)
    return Start(float(all_), True, all_ / (seconds[all_] + _all_back_s(away, callers)))


def best_of(found: Sequence[Start]) -> Start:
    """Of those that are as good as the best the largest: who is left behind waits for two."""
    best_rps = max([each.rate_rps for each in found])
    return max([each for each in found if each.rate_rps * EQUAL >= best_rps])


def _all_back_s(away: Away, callers: int) -> float:
    times = away.times
    return times[min(len(times) - 1, int(len(times) * (1.0 - _HALF / callers)))]


def _at(wait_s: float, away: Away, callers: int, seconds: Sequence[float], most: int) -> Start:
    """With this wait before each batch."""
    items = float(min(callers, most))
    missed = away.at(wait_s)
    if missed * callers < _HALF:
        missed = 0.0
    for step in range(_STEPS):
        cycle_s = _between(seconds, items) + wait_s
        starts, still = 1.0 + missed, missed
        for round_ in range(1, _ROUNDS):
            still = away.at(wait_s + round_ * cycle_s)
            if still * callers < _HALF:
                break
            starts += still
        else:
            starts += still * away.at(cycle_s) / max(1.0 - away.at(cycle_s), 1.0 / callers)
        found = min(float(most), callers / starts)
        items = found if not step else (items + found) / 2
    return Start(items, wait_s > 0.0, items / (_between(seconds, items) + wait_s))


def _between(seconds: Sequence[float], items: float) -> float:
    low = max(1, int(items))
    if low + 1 >= len(seconds) or items <= low:
        return seconds[low]
    return seconds[low] + (seconds[low + 1] - seconds[low]) * (items - low)
