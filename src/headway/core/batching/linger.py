"""How long it pays to hold a free worker for company: learned from the gaps between events.

Two decayed histograms are kept: gaps that follow an arrival, and gaps that follow a completion
(clients in a closed loop come back right after they are answered). Both stay valid whatever we
decide, because arrivals are seen either way. From them follows the wait with the best expected
gain; mostly that is no wait at all.
"""

import itertools
import math
import operator
from collections import deque
from collections.abc import Sequence

from headway.core.batching.returns import Returns

_SHORTEST = -16  # the first bin ends at 2**-16.5 s (11 µs), the last at 2**5 s
_BINS = 2 * (6 - _SHORTEST)
_DECAY = 0.998  # about the last 500 gaps: fewer are too noisy to tell a burst from chance
_REFRESH_EVERY = 32  # arrivals between two recomputations
_AFTER_COMPLETION = 0.3  # of the gain counts there: those who wait have waited a batch already
_BUSY_PENALTY = 0.5  # a busy worker's wait delays those who come later, too
_MIN_GAIN = 0.02  # of the batch's own time: less is noise
_TOGETHER = 0.02  # of a batch's time: arrivals no further apart came together
_WINDOW = 16  # batches over which the most items at once are remembered
_LOAD_RATE = 0.02  # of each batch goes into how busy the workers are, and how many come
_TAIL = 2.0
_MOST_CAME = 96  # arrivals after one answer that are looked at: a batch and a half
_MOST_NOTED = 256  # arrivals that wait to be learned from
_HALF = math.sqrt(0.5)
_EDGES = tuple(2.0 ** (i / 2 + _SHORTEST - 0.5) for i in range(_BINS))
_MIDDLES = tuple(edge * 2**-0.25 for edge in _EDGES)


def _bin(gap_s: float) -> int:
    """Two bins an octave, by the float's own exponent: no logarithm on the hot path."""
    if gap_s <= 0.0:
        return 0
    mantissa, exponent = math.frexp(gap_s)
    i = 2 * (exponent - _SHORTEST) + (1 if mantissa > _HALF else 0)
    return 0 if i < 0 else i if i < _BINS else _BINS


class GapHistogram:
    """Gaps in logarithmic bins; old ones fade. New weight grows instead of old weight shrinking."""

    __slots__ = ("_weight", "bins", "total")

    def __init__(self) -> None:
        self.bins = [0.0] * (_BINS + 1)
        self.total = 0.0
        self._weight = 1.0

    def add(self, gap_s: float) -> None:
        weight = self._weight = self._weight * (1 / _DECAY)
        self.bins[_bin(gap_s)] += weight
        self.total += weight
        if weight > 1e12:
            self._rescale()

    def _rescale(self) -> None:
        self.bins = [weight / self._weight for weight in self.bins]
        self.total /= self._weight
        self._weight = 1.0

    def best_wait(
        self,
        items: int,
        cap_s: float,
        batch_s: float,
        row_s: float,
        credit: float,
        joining: float = 1.0,
    ) -> float:
        """The wait with the best expected gain in item-seconds, 0 where none is worth it.

        Each of the `joining` newcomers within the wait saves almost a whole batch time, of which
        `credit` counts; everyone here pays for it.
        """
        if not self.total:
            return 0.0
        best_wait, best_gain = 0.0, _MIN_GAIN * batch_s
        gained, seen = 0.0, 0.0
        saved = joining * (credit * batch_s - items * row_s)
        price = joining * credit + items
        for weight, middle, edge in zip(self.bins, _MIDDLES, _EDGES, strict=False):
            if edge > cap_s:
                break
            share = weight / self.total
            gained += share * (saved - price * middle)
            seen += share
            gain = gained - (1.0 - seen) * items * edge
            if gain > best_gain:
                best_wait, best_gain = edge, gain
        return best_wait


class Linger:
    """Watches arrivals and completions; says how long to wait for company."""

    def __init__(self) -> None:
        self._everyone = 0
        self._most_here = 0  # in this window of batches
        self._most_here_before = 0  # in the one before: who left is forgotten after two
        self.batches = 0
        self._here = 0
        self._clump = 0  # of the arrivals that follow a completion; 0: it is over
        self._mean_clump = 1.0
        self._after_arrival = GapHistogram()
        self._after_completion = GapHistogram()
        self._first_arrival = math.inf
        self._last_arrival = -math.inf
        self._last_completion = -math.inf
        self._returns = Returns()  # after an answer …
        self._followers = Returns()  # … and after the first who comes then
        self._came_since: list[float] = []  # since the last completion
        self._cache: dict[tuple[bool, int], float] = {}
        # Arrivals are noted one by one, and learned from together, when somebody wants to know.
        self._noted: list[float] = []
        self._noted_here: list[int] = []
        # Sorted in only when a decision needs them: the latest suffice.
        self._gaps: deque[float] = deque(maxlen=4 * _REFRESH_EVERY)
        self._refresh_at = 0
        self._elapsed_s = 0.0  # between completions, on average
        self._ran_s = 0.0
        self._came = 0.0  # between completions, on average
        self._arrivals_before = 0  # the last completion
        self._arrivals = 0

    def arrived(self, now: float, here: int) -> None:
        """Somebody came; with them so many are here, queued or running."""
        noted = self._noted
        noted.append(now)
        self._noted_here.append(here)
        if len(noted) >= _MOST_NOTED:
            self._learn_arrivals()

    def arrived_together(self, times: Sequence[float], here: int) -> None:
        """As `arrived` for each of several in a row; `here`: before the first of them."""
        self._noted += times
        self._noted_here += range(here + 1, here + 1 + len(times))
        if len(self._noted) >= _MOST_NOTED:
            self._learn_arrivals()

    def _learn_arrivals(self) -> None:
        """From those noted, as if from each when it came."""
        times, here = self._noted, self._noted_here
        if not times:
            return
        if len(times) == 1:
            self._learn_arrival(times.pop(), here.pop())
            return
        self._noted, self._noted_here = [], []
        self._arrivals += len(times)
        if self._last_arrival == -math.inf:
            self._first_arrival = times[0]
        room = _MOST_CAME - len(self._came_since)
        if room > 0:
            self._came_since += times[:room]
        gaps = list(map(operator.sub, times, itertools.chain((self._last_arrival,), times)))
        self._learn_clump(times[0], self._last_arrival, gaps)
        self._note_gaps(gaps, here)
        self._last_arrival, self._here = times[-1], here[-1]

    def _learn_arrival(self, now: float, here: int) -> None:
        """As `_learn_arrivals`, from one: where few come, that is what a decision waits for."""
        self._arrivals += 1
        last, self._last_arrival = self._last_arrival, now
        if last == -math.inf:
            self._first_arrival = now
        if len(self._came_since) < _MOST_CAME:
            self._came_since.append(now)
        if self._clump or last < self._last_completion:
            self._learn_clump(now, last, (now - last,))
        if self._here < self._everyone:
            self._gaps.append(now - last)
        self._here = here
        if here > self._most_here:
            self._most_here = here
            self._everyone = max(self._everyone, here)

    def _learn_clump(self, first_at: float, last: float, gaps: Sequence[float]) -> None:
        """Callers that were answered together often come back together: how many at once?"""
        if last < self._last_completion:
            self._after_completion.add(first_at - self._last_completion)
            self._clump, gaps = 1, gaps[1:]
        if not self._clump:
            return
        together_s = _TOGETHER * self._ran_s
        if max(gaps, default=0.0) <= together_s:
            self._clump += len(gaps)
        else:
            self._clump += next(i for i, gap_s in enumerate(gaps) if gap_s > together_s)
            self._end_clump()

    def _end_clump(self) -> None:
        self._mean_clump += (self._clump - self._mean_clump) * 0.1
        self._clump = 0

    def _note_gaps(self, gaps: Sequence[float], here: Sequence[int]) -> None:
        """With everyone here, the gap that follows does not say how soon a missing one comes."""
        everyone, most = self._everyone, max(here)
        if self._here < everyone:
            self._gaps.append(gaps[0])
        if max(here[:-1], default=0) < everyone:
            self._gaps.extend(gaps[1:])
        else:
            for gap_s, before in zip(gaps[1:], here, strict=False):
                if before < everyone:
                    self._gaps.append(gap_s)
                else:
                    everyone = before
        self._most_here = max(self._most_here, most)
        self._everyone = max(self._everyone, most)

    def completed(self, now: float, ran_s: float) -> None:
        self._learn_arrivals()
        since, self._last_completion = self._last_completion, now
        if since > -math.inf:
            came = self._came_since
            self._returns.learn(since, came)
            if came:
                self._followers.learn(came[0], came[1:])
        self._came_since = []
        if self._clump:
            self._end_clump()
        self.batches += 1
        if since == -math.inf:
            since = min(self._first_arrival, now)
        if now > since:
            rate = max(_LOAD_RATE, 1.0 / self.batches)  # at first, the mean of all
            self._elapsed_s += (now - since - self._elapsed_s) * rate
            self._ran_s += (ran_s - self._ran_s) * rate
            self._came += (self._arrivals - self._arrivals_before - self._came) * rate
            self._arrivals_before = self._arrivals
        if self.batches % _WINDOW == 0:
            self._most_here_before, self._most_here = self._most_here, 0
            self._everyone = self._most_here_before

    def _learn_gaps(self) -> None:
        for gap_s in self._gaps:
            self._after_arrival.add(gap_s)
        self._gaps.clear()

    @property
    def arrivals(self) -> int:
        return self._arrivals + len(self._noted)

    @property
    def everyone(self) -> int:
        """The most items seen at once lately."""
        self._learn_arrivals()
        return self._everyone

    @property
    def rate_rps(self) -> float:
        """Arrivals a second, lately."""
        if self._elapsed_s:
            return self._came / self._elapsed_s
        self._learn_arrivals()
        seen_s = self._last_arrival - self._first_arrival
        return (self._arrivals - 1) / seen_s if seen_s > 0.0 and self._arrivals > 2 else 0.0

    @property
    def busy(self) -> float:
        """The share of the time that a worker has been running lately."""
        return min(1.0, self._ran_s / self._elapsed_s) if self._elapsed_s else 0.0

    def best_wait(self, items: int, cap_s: float, batch_s: float, row_s: float) -> float:
        self._learn_arrivals()
        if self._arrivals >= self._refresh_at:
            self._learn_gaps()
            self._cache.clear()
            self._refresh_at = self._arrivals + _REFRESH_EVERY
        after_completion = self._last_completion >= self._last_arrival
        histogram = self._after_completion if after_completion else self._after_arrival
        credit = _AFTER_COMPLETION if after_completion else 1.0 - _BUSY_PENALTY * self.busy
        # Where a worker is always busy, a newcomer's row is paid for in one batch or the next.
        row_s *= 1.0 - self.busy
        joining = max(1.0, self._mean_clump) if after_completion else 1.0
        key = (after_completion, items)
        wait = self._cache.get(key)
        if wait is None:
            wait = histogram.best_wait(items, math.inf, batch_s, row_s, credit, joining)
            self._cache[key] = wait
        if wait <= cap_s:
            return wait
        # Less time is left than that takes: is there a shorter wait that pays?
        return histogram.best_wait(items, cap_s, batch_s, row_s, credit, joining)

    def return_wait(self, now: float, items: int, most_s: float, saved_s: float) -> float:
        """How long to hold for callers who come back together after their answers."""
        self._learn_arrivals()
        # Whoever misses the others waits for their whole batch, and is the tail: it counts twice.
        tail_s = _TAIL * saved_s
        wait = self._returns.best_wait(now - self._last_completion, items, most_s, tail_s)
        if not self._came_since:
            return wait
        since_s = now - self._came_since[0]
        return max(wait, self._followers.best_wait(since_s, items, most_s, saved_s))
