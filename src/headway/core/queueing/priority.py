"""Classes: a higher one goes first, a lower one gets what is left, and never nothing.

`Ageing` bounds starvation. Where a class has waited long and higher classes would take everything,
it is let in for a small part of the work: one unit in `FLOOR`. What it was given anyway counts, so
wherever anything is left over for it, ageing changes nothing.

`Usage` remembers how much of the capacity each class has used lately, so that lower classes can be
served in portions that leave the higher ones what they need.

Knows neither items nor batches. `Class` is an index: 0 is the highest.
"""

import math
from collections.abc import Sequence
from typing import Final

FLOOR: Final = 32  # an aged class gets at least one unit of work in this many
_MOST_AHEAD: Final = 64  # units: what a class was given counts against later claims up to this
MEMORY_S: Final = 2.0  # how long use is remembered
_LEAST_S: Final = 0.1  # use is not computed from less time than this


class Ageing:
    """Items that have waited so long that they go before higher classes."""

    __slots__ = ("_ageing_s", "_claims")

    def __init__(self, ageing_s: float, classes: int) -> None:
        self._ageing_s = ageing_s
        self._claims = [1.0] * classes  # units; from 1 on, the next turn is an aged one's

    def is_aged(self, waiting_since: float, now: float) -> bool:
        return now - waiting_since > self._ageing_s

    def may_lead(self, index: int, waiting_since: float, now: float) -> bool:
        """May the class go before higher ones, if its oldest has waited since then?"""
        return now - waiting_since > self._ageing_s and self._claims[index] >= 1.0

    def served(self, amounts: Sequence[int]) -> None:
        """This much work of each class was served together."""
        gain = sum(amounts) / FLOOR
        claims = self._claims
        for index, amount in enumerate(amounts):
            claim = claims[index] + gain - amount
            claims[index] = 1.0 if claim > 1.0 else max(claim, -_MOST_AHEAD)


class ClassUsage:
    """The share of the capacity that each class has used lately."""

    __slots__ = ("_seconds", "_updated_at", "_watched_s")

    def __init__(self, classes: int) -> None:
        self._seconds = [0.0] * classes
        self._watched_s = 0.0  # seconds that are remembered; less at the start
        self._updated_at = -math.inf

    def add(self, index: int, seconds: float, now: float) -> None:
        """The class uses this many seconds of a worker at the best rate."""
        self._fade(now)
        self._seconds[index] += seconds

    def above(self, index: int, now: float) -> float:
        """The share of one worker's time that the classes above this one use; 0: none lately."""
        self._fade(now)
        used = 0.0
        for each in self._seconds[:index]:
            used += each
        return used / max(self._watched_s, _LEAST_S) if used > 1e-3 * MEMORY_S else 0.0

    def _fade(self, now: float) -> None:
        passed_s = now - self._updated_at
        if passed_s <= 0.0:
            return
        if passed_s == math.inf:  # the first time
            self._updated_at = now
            return
        factor = math.exp(-passed_s / MEMORY_S)
        self._watched_s = MEMORY_S - (MEMORY_S - self._watched_s) * factor
        self._seconds = [each * factor for each in self._seconds]
        self._updated_at = now
