"""How long it pays to hold a free worker for company: learned from the gaps between events.

Two decayed histograms are kept: gaps that follow an arrival, and gaps that follow a completion
(clients in a closed loop come back right after they are answered). Both stay valid whatever we
decide, because arrivals are seen either way. From them follows the wait with the best expected
gain; mostly that is no wait at all.
"""

import math

_SHORTEST_S = 1e-5
_BINS_PER_OCTAVE = 2
_BINS = 44
_DECAY = 0.99
_REFRESH_EVERY = 32  # events between two recomputations
_OTHERS_SHARE = 0.5  # what a joining item gains is shared with those whom the wait delays later
_MIN_GAIN = 0.02  # of the batch's own time: less is noise
_EDGES = tuple(_SHORTEST_S * 2 ** (i / _BINS_PER_OCTAVE) for i in range(_BINS))
_MIDDLES = (_SHORTEST_S / 2, *(math.sqrt(a * b) for a, b in zip(_EDGES, _EDGES[1:], strict=False)))


class GapHistogram:
    """Gaps in logarithmic bins; old ones fade. New weight grows instead of old weight shrinking."""

    __slots__ = ("_weight", "bins", "total")

    def __init__(self) -> None:
        self.bins = [0.0] * (_BINS + 1)
        self.total = 0.0
        self._weight = 1.0

    def add(self, gap_s: float) -> None:
        if gap_s <= _SHORTEST_S:
            i = 0
        else:
            i = 1 + int(_BINS_PER_OCTAVE * math.log2(gap_s / _SHORTEST_S))
            if i > _BINS:
                i = _BINS
        self._weight *= 1 / _DECAY
        self.bins[i] += self._weight
        self.total += self._weight
        if self._weight > 1e12:
            self._rescale()

    def _rescale(self) -> None:
        self.bins = [weight / self._weight for weight in self.bins]
        self.total /= self._weight
        self._weight = 1.0

    def best_wait(self, items: int, cap_s: float, batch_s: float, row_s: float) -> float:
        """The wait with the best expected gain in item-seconds, 0 where none is worth it.

        A newcomer within the wait saves almost a whole batch time; everyone here pays for it.
        """
        if not self.total:
            return 0.0
        best_wait, best_gain = 0.0, _MIN_GAIN * batch_s
        gained, seen = 0.0, 0.0
        saved = _OTHERS_SHARE * batch_s - items * row_s
        price = _OTHERS_SHARE + items
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

    __slots__ = (
        "_after_arrival",
        "_after_completion",
        "_cache",
        "_events",
        "_last_arrival",
        "_last_completion",
        "arrivals",
    )

    def __init__(self) -> None:
        self._after_arrival = GapHistogram()
        self._after_completion = GapHistogram()
        self._last_arrival = -math.inf
        self._last_completion = -math.inf
        self._cache: dict[tuple[bool, int], float] = {}
        self._events = 0
        self.arrivals = 0

    def arrived(self, now: float) -> None:
        self.arrivals += 1
        if self._last_arrival < self._last_completion:
            self._after_completion.add(now - self._last_completion)
        if self._last_arrival > -math.inf:
            self._after_arrival.add(now - self._last_arrival)
        self._last_arrival = now
        self._tick()

    def completed(self, now: float) -> None:
        self._last_completion = now
        self._tick()

    def best_wait(self, items: int, cap_s: float, batch_s: float, row_s: float) -> float:
        after_completion = self._last_completion >= self._last_arrival
        key = (after_completion, items)
        wait = self._cache.get(key)
        if wait is None:
            histogram = self._after_completion if after_completion else self._after_arrival
            wait = self._cache[key] = histogram.best_wait(items, cap_s, batch_s, row_s)
        return min(wait, cap_s)

    def _tick(self) -> None:
        self._events += 1
        if self._events % _REFRESH_EVERY == 0:
            self._cache.clear()


class PeakConcurrency:
    """The most items seen at once lately: who is 'everyone'.

    Kept over two windows of batches, so that callers who left are forgotten.
    """

    __slots__ = ("_batches", "_current", "_previous")

    def __init__(self) -> None:
        self._current = 0
        self._previous = 0
        self._batches = 0

    def saw(self, items: int) -> None:
        if items > self._current:
            self._current = items

    def batch_done(self, window: int = 16) -> None:
        self._batches += 1
        if self._batches >= window:
            self._previous, self._current, self._batches = self._current, 0, 0

    @property
    def items(self) -> int:
        return self._current if self._current > self._previous else self._previous


