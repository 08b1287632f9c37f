"""When callers that wait for their answers ask again: how long after an answer they come back.

Counts, for every batch that ends, how many items arrive how long afterwards. For callers that are
known to be missing, that says how soon each will be here.
"""

import bisect
import math
from typing import NamedTuple

_SHORTEST = -16  # the first bin ends at 2**-16.5 s (11 µs), the last at 2**5 s
_BINS = 2 * (6 - _SHORTEST)
_EDGES = tuple(math.pow(2.0, i / 2 + _SHORTEST - 0.5) for i in range(_BINS))
_HALF = math.sqrt(0.5)
_DECAY = 0.97  # about the last 30 batches
_MOST = 64  # arrivals looked at for one batch
_ALL = 0.1  # of a caller is still missing: all are here
_KNOWN = 2  # batches before anything is expected


class Held(NamedTuple):
    """A batch that may wait for callers to come back."""

    items: int  # in it now
    missing: int  # callers that may join
    most_s: float  # the longest wait for all of them
    patient_s: float  # the longest wait for some
    saved_s: float  # by each that joins


class Returns:
    """Counts fade: new weight grows instead of old weight shrinking."""

    def __init__(self) -> None:
        self._counts = [0.0] * (_BINS + 1)
        self._weight = 1.0
        self._seen = 0

    def learn(self, ended_at: float, arrivals: list[float]) -> None:
        """After the batch that ended then, these arrived until the next one ended."""
        weight = self._weight = self._weight * (1 / _DECAY)
        self._seen += 1
        if arrivals:
            if len(arrivals) == 1:
                self._counts[_bin(arrivals[0] - ended_at)] += weight
            else:
                stride = -(-len(arrivals) // _MOST)
                self._count(ended_at, sorted(arrivals[::stride]), weight * stride)
        if weight > 1e12:
            self._counts = [count / weight for count in self._counts]
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

    def best_wait(self, since_s: float, held: Held) -> float:
        """How much longer it pays to hold the batch, `since_s` after the last answer; 0: not at
        all.

        Until all missing callers are here, if that is within `most_s`: a caller that is left behind
        waits for a whole batch, and makes the tail. Otherwise, within `patient_s`, as long as the
        callers that join save more (`saved_s` each) than all others lose: the callers that wait,
        and those that will find the worker busy.
        """
        items, missing, most_s, patient_s, saved_s = held
        if self._seen < _KNOWN or most_s <= 0.0:
            return 0.0
        first = _bin(since_s)
        if first >= _BINS:
            return 0.0
        begin_s = _EDGES[first - 1] if first else 0.0
        # Of one caller's returns: those that would be later than now.
        counts = [self._counts[first] * (_EDGES[first] - since_s) / (_EDGES[first] - begin_s)]
        counts += self._counts[first + 1 :]
        later = sum(counts)
        if later <= 0.0:
            return 0.0
        best_wait, best_gain = 0.0, 0.0
        share, joined_s, low = 0.0, 0.0, since_s
        for count, high in zip(counts, _EDGES[first:], strict=False):
            wait = high - since_s
            if wait > most_s:
                break
            share += count / later
            if (1.0 - share) * missing <= _ALL:
                return wait
            joined_s += missing * count / later * (saved_s - (low + high) / 2 + since_s)
            low = high
            gain = joined_s - (items + (1.0 - share) * missing) * wait
            if gain > best_gain and wait <= patient_s:
                best_wait, best_gain = wait, gain
        return best_wait


def _bin(gap_s: float) -> int:
    """Two bins an octave, by the float's own exponent."""
    if gap_s <= 0.0:
        return 0
    mantissa, exponent = math.frexp(gap_s)
    i = 2 * (exponent - _SHORTEST) + (1 if mantissa > _HALF else 0)
    return 0 if i < 0 else i if i < _BINS else _BINS
