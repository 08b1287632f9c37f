"""When the callers of a closed loop come back, and how many of them a batch should start with.

Between its answer and its next request, a caller *thinks*. A free worker that starts at once with
the callers that are back leaves the others behind: they form a batch of their own, and the two
groups never meet. A worker that waits for all callers idles. The batch size with the most answers
per second is between the two. It follows from how many callers there are, how soon they are back,
and how long batches run.
"""

import bisect
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from headway.core.costs.sizes import WORTH_IT

_BATCHES = 32  # the last batches after which returns are remembered
_ENOUGH = 256  # returns: older batches are left out once there are this many
_ROUNDS = 8  # starts a caller may miss that are counted one by one; later ones form a geometric sum
_STEPS = 4  # iterations until batch size and batch time agree
_LOOKS = 12  # waits that are tried, out of the times after which callers came back
_IN_STEP = 0.25  # callers are in step if most return within this part of a batch of one item
_HALF = 0.5  # if less than half a caller is away, none is
GAIN = 1.05  # callers are kept waiting only for at least this factor in answers per second
EQUAL = 1.01  # rates within this factor of each other count as equal


class Start(NamedTuple):
    """When a batch leaves in a closed loop."""

    items: float  # in each batch
    waits: bool  # is a batch held until that many are here?
    rate_rps: float  # answers per second


class Away:
    """The share of the callers that are still away, by the time since their answer."""

    def __init__(self, times: list[float], shares: list[float], hazard: float) -> None:
        self.times = times  # after which a caller came back, ascending
        self._shares = shares  # still away after each of these times
        self._hazard = hazard  # returns per caller and second, beyond the last of these times

    def at(self, seconds: float) -> float:
        i = bisect.bisect_right(self.times, seconds) - 1
        if i < 0:
            return 1.0
        if i < len(self.times) - 1 or seconds <= self.times[i]:
            return self._shares[i]
        return self._shares[i] * math.exp((self.times[i] - seconds) * self._hazard)

    def is_in_step(self, alone_s: float) -> bool:
        """Do most callers come back so close to each other that it is no coincidence?"""
        few = len(self.times) // 10
        spread_s = self.times[-1 - few] - self.times[few]
        return spread_s <= min(_IN_STEP * alone_s, self.times[len(self.times) // 2])


class _Seen(NamedTuple):
    """Which callers came back after one batch was answered."""

    at: float
    came: Sequence[float]  # when callers came, until the next answer
    seen_s: float  # from this answer to the next
    thinking: int  # callers that came, and callers that did not


class Returns:
    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=_BATCHES)

    def learn(self, came: Sequence[float], since: float, until: float, thinking: int) -> None:
        """Learn that of `thinking` callers idle since an answer, those in `came` returned before
        the next one."""
        self._seen.append(_Seen(since, came, until - since, max(thinking, len(came))))

    def away(self) -> Away | None:
        """The survival curve of absences, by Kaplan and Meier. None: no caller came back yet.

        A caller that is not back by the next answer counts as late, not as gone.
        """
        gaps: list[float] = []
        lost: list[_Seen] = []
        for each in reversed(self._seen):
            if len(gaps) < _ENOUGH:
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
    """The start that results from each wait worth trying; the first is without a wait.

    `seconds`: the time of a batch, by items, up to `most`. Suppose a batch starts every l + w
    seconds: its own time l, and the wait w before it. A caller that is back before a start joins
    that batch. So if a caller joins every k-th batch on average, each batch has callers ÷ k items.
    """
    times, all_ = away.times, min(callers, most)
    looks = times[:: max(1, len(times) // _LOOKS)]
    half_s = seconds[max(1, all_ // 2)]
    waits = {*looks, *[(at - half_s) / 2 for at in looks if at > half_s]}
    waits.add(_all_back_s(away, callers))
    return [_at(wait_s, away, callers, seconds, most) for wait_s in (0.0, *sorted(waits - {0.0}))]


def together(away: Away, callers: int, seconds: Sequence[float], most: int) -> Start:
    """The start that always waits for all callers, up to `most`."""
    all_ = min(callers, most)
    return Start(float(all_), True, all_ / (seconds[all_] + _all_back_s(away, callers)))


def best_of(found: Sequence[Start], callers: int) -> Start:
    """The largest start whose rate is as good as the best.

    The largest, because a caller that is left behind waits for two batches: for the tail it is
    worth a little more if nobody is.
    """
    best_rps, largest = max([each.rate_rps for each in found]), max(found)
    if largest.items > callers - _HALF and largest.rate_rps >= best_rps * (1.0 - WORTH_IT):
        return largest
    return max([each for each in found if each.rate_rps * EQUAL >= best_rps])


def _all_back_s(away: Away, callers: int) -> float:
    times = away.times
    return times[min(len(times) - 1, int(len(times) * (1.0 - _HALF / callers)))]


def _at(wait_s: float, away: Away, callers: int, seconds: Sequence[float], most: int) -> Start:
    """The start that results from a wait of `wait_s` before each batch."""
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
