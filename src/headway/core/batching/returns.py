"""Who comes back after an answer, and when: callers that send again once they are answered.

For every batch that ends it is counted how many arrive how long afterwards. Arrivals that have
nothing to do with answers are spread evenly; callers in a closed loop are not. What lies above an
even spread is expected to come again after the next batch: several at once, and as late as they
think, which the gap to a single next arrival does not tell.
"""

import bisect
import math
import statistics

_SHORTEST = -16  # the first bin ends at 2**-16.5 s (11 µs), the last at 2**5 s
_BINS = 2 * (6 - _SHORTEST)
_EDGES = tuple(2.0 ** (i / 2 + _SHORTEST - 0.5) for i in range(_BINS))
_HALF = math.sqrt(0.5)
_DECAY = 0.97  # about the last 30 batches
_MOST = 64  # arrivals looked at for one batch
_EVEN = 1.3  # times an even spread: less is chance
_LEAST = 0.05  # of an arrival: fewer are chance, too
_KNOWN = 8  # batches before anything is expected


class Returns:
    """Counts fade: new weight grows instead of old weight shrinking."""

    def __init__(self) -> None:
        self._counts = [0.0] * (_BINS + 1)
        self._batches = 0.0
        self._weight = 1.0
        self._seen = 0

    def learn(self, ended_at: float, arrivals: list[float]) -> None:
        """After the batch that ended then, these arrived until the next one ended."""
        weight = self._weight = self._weight * (1 / _DECAY)
        self._batches += weight
        self._seen += 1
        if arrivals:
            if len(arrivals) == 1:
                self._counts[_bin(arrivals[0] - ended_at)] += weight
            else:
                stride = -(-len(arrivals) // _MOST)
                self._count(ended_at, sorted(arrivals[::stride]), weight * stride)
        if weight > 1e12:
            self._counts = [count / weight for count in self._counts]
            self._batches /= weight
            self._weight = 1.0

    def _count(self, ended_at: float, arrivals: list[float], weight: float) -> None:
        """Bin by bin, not one by one: most are in few."""
        counts, last = self._counts, _bin(arrivals[-1] - ended_at)
        before = 0
        for bin_ in range(_bin(arrivals[0] - ended_at), last):
            upto = bisect.bisect_right(arrivals, ended_at + _EDGES[bin_], before)
            counts[bin_] += weight * (upto - before)
            before = upto
        counts[last] += weight * (len(arrivals) - before)

    def best_wait(self, since_s: float, items: int, most_s: float, saved_s: float) -> float:
        """How much longer it pays to hold a batch of so many items, `since_s` after the last
        answer; 0: not at all. Each that joins saves `saved_s`, of which the wait takes its part.
        """
        if self._seen < _KNOWN or most_s <= 0.0:
            return 0.0
        first, last = _bin(since_s), _bin(since_s + most_s)
        even = self._even(last)
        best_wait, best_gain = 0.0, 0.0
        expected, weighted = 0.0, 0.0
        low = since_s
        for i in range(first, min(last + 1, _BINS)):
            high = _EDGES[i]
            wait = high - since_s
            if wait > most_s:
                break
            start = _EDGES[i - 1] if i else 0.0
            share = (high - low) / (high - start)
            count = self._counts[i] / self._batches * share - _EVEN * even * (high - low)
            if count > _LEAST:
                expected += count
                weighted += count * ((low + high) / 2 - since_s)
            low = high
            gain = expected * (saved_s - wait) + weighted - items * wait
            if gain > best_gain:
                best_wait, best_gain = wait, gain
        return best_wait

    def _even(self, last: int) -> float:
        """Arrivals a second that come however long ago the last answer was."""
        bins = range(max(1, last - 8), min(last + 1, _BINS))
        if not bins:
            return 0.0
        rates = [self._counts[i] / (_EDGES[i] - _EDGES[i - 1]) for i in bins]
        return float(statistics.median(rates)) / self._batches


def _bin(gap_s: float) -> int:
    """Two bins an octave, by the float's own exponent."""
    if gap_s <= 0.0:
        return 0
    mantissa, exponent = math.frexp(gap_s)
    i = 2 * (exponent - _SHORTEST) + (1 if mantissa > _HALF else 0)
    return 0 if i < 0 else i if i < _BINS else _BINS
