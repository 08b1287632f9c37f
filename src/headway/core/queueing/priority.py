"""Classes: a higher class goes first, a lower class gets the remaining capacity, and never none.

`Ageing` bounds starvation. If a class has waited long and higher classes would take everything, it
gets a small part of the work: one unit in `FLOOR`. Work that it got anyway counts, so ageing
changes nothing while capacity is left for the class.

`ClassUsage` remembers how much of the capacity each class has used lately, so that lower classes
can be served in portions that leave the higher ones the capacity they need.

Knows neither items nor batches. `Class` is an index: 0 is the highest.
"""

import math
from collections.abc import Sequence
from typing import Final

FLOOR: Final = 32  # an aged class gets at least one unit of work in this many
_MOST_AHEAD: Final = 64  # units of work already received that count against later claims, at most
MEMORY_S: Final = 2.0  # how long use is remembered
_LEAST_S: Final = 0.1  # use is not computed from less time than this


class Ageing:
    """Items that have waited so long that they go before higher classes."""

    __slots__ = ("_ageing_s", "_claims")

    def __init__(self, ageing_s: float, classes: int) -> None:
        self._ageing_s = ageing_s
        self._claims = [1.0] * classes  # by class, in units of work; from 1 on, the class may lead

    def is_aged(self, waiting_since: float, now: float) -> bool:
        return now - waiting_since > self._ageing_s

    def may_lead(self, index: int, waiting_since: float, now: float) -> bool:
        """May the class go before higher ones, if its oldest item has waited since then?"""
        return now - waiting_since > self._ageing_s and self._claims[index] >= 1.0

    def served(self, amounts: Sequence[int]) -> None:
        """One batch served these amounts of work, by class."""
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
        """Note that the class uses a worker for `seconds`, at the best rate."""
        self._fade(now)
        self._seconds[index] += seconds

    def above(self, index: int, now: float) -> float:
        """The share of one worker's time that higher classes use; 0: none used any lately."""
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
