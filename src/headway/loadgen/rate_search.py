"""Which rate to measure next, to find the highest that meets an objective. Pure: it sees no clock
and sends nothing; what comes in is how near each measured rate came to the limit.

A busy moment of the machine makes latencies longer, never shorter. So one rate that fails says
little, and one that passes says much: `LimitBelief` weighs them all, whatever their order.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LONGER = 3  # times a probe: how long what is found is confirmed
SLOWEST, FASTEST = 0.1, 1e6
Array = NDArray[np.float64]
_STEP, _LONGEST_STEP = 1.25, 3.0  # from rate to rate beyond all that was measured
_GRID = 0.01  # of the logarithm of rates
_SLOPES = np.geomspace(0.2, 30.0, 11)  # the limit is neared by so much, per share of the rate
_NOISES = (0.01, 0.03, 0.1, 0.3)  # how much two probes at one rate differ
_BENDS = (0.7, 0.15)  # how far above a line and below it a strain may be, of the line's own
_DISTURBED, _NO_ROOM = 0.2, 0.9  # shares of probes that were held up: usually, and without room
_ROUGHLY = 3  # times the precision
_STALLED = 0.25  # of the disturbed probes, those in which more and more waited


class LimitBelief:
    """Where the limit lies, after all that was measured: the weight of each rate.

    Over the logarithm of the rate, a server's strain is a line up to its limit and a steeper one
    beyond, somewhat bent upwards, and noisy. Some probes are disturbed: the true strain is less.
    """

    def __init__(self) -> None:
        self._rates = np.arange(math.log(SLOWEST / 100), math.log(FASTEST * 100), _GRID)
        # Of the rates measured below the limit, and beyond: by limit, slope and noise.
        self._sides = np.zeros((2, len(self._rates), len(_SLOPES), len(_NOISES)))

    def observe(self, rate: float, strain: float, *, times: int, has_room: bool) -> None:
        """`strain`: 0 where the limit is just met; infinite: more and more requests waited."""
        middle = int(np.searchsorted(self._rates, math.log(rate)))
        disturbed = 1 - (1 - (_DISTURBED if has_room else _NO_ROOM)) ** times
        for side, limits in ((1, slice(0, middle)), (0, slice(middle, None))):
            beyond = math.log(rate) - self._rates[limits, np.newaxis, np.newaxis]
            line = _SLOPES[:, np.newaxis] * beyond
            told, held_up = _likelihoods(strain, line, np.square(_NOISES) / times)
            weight = (1 - disturbed) * told + disturbed * held_up + 1e-12
            self._sides[side, limits] += np.log(weight)

    def shares(self, *shares: float) -> list[float]:
        """The rates below which the limit lies with these probabilities."""
        top = self._sides.max(axis=2, keepdims=True)
        by_noise = (np.log(np.exp(self._sides - top).sum(axis=2)) + top[:, :, 0]).sum(axis=0)
        weights = np.exp(by_noise - by_noise.max()).sum(axis=1)
        total = np.cumsum(weights) / weights.sum()
        return [math.exp(np.interp(each, total, self._rates)) for each in shares]


def _likelihoods(strain: float, line: Array, variance: Array) -> tuple[Array, Array]:
    """Of this strain where the line says that: undisturbed, and disturbed."""
    up, down = (np.sqrt(variance + np.square(bend * line)) for bend in _BENDS)
    if math.isinf(strain):
        return 1 / (1 + np.exp(-np.clip(1.7 * line / up, -30.0, 30.0))), np.full_like(
            line, _STALLED
        )
    above = strain - line
    told = np.exp(-np.square(above / np.where(above > 0, up, down)) / 2) * 2 / (up + down)
    return told, np.where(above > 0, np.exp(-np.maximum(above, 0.0)), 0.0)


@dataclass(frozen=True, slots=True)
class RateProbe:
    """Measure this rate, so many times as long as a probe."""

    rate_rps: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class Ended:
    why: str  # "precision", "time" or "no limit in sight"


class RateSearch:
    """Asks for probes where the limit seems to be, until that is known closely enough, and then for
    a long one a little below. What it ends with has passed such a one."""

    def __init__(self, first_rps: float, *, precision: float, narrow_by: float, end: float) -> None:
        """`narrow_by`: from then on it confirms what it has. `end`: no probe begins later."""
        self._belief = LimitBelief()
        self._first_rps = min(max(first_rps, SLOWEST), FASTEST)
        self._precision = precision
        self._narrow_by = narrow_by
        self._end = end
        self._tried: list[float] = []
        self._highest_failed = 0.0
        self._step = _STEP
        self._late = 0
        self._begun_at = 0.0
        self.held_rps: float | None = None  # the highest that passed a long run

    def measured(self, ask: RateProbe, strain: float, *, has_room: bool) -> None:
        """The client had room: nothing but the server was measured."""
        self._tried.append(ask.rate_rps)
        self._belief.observe(ask.rate_rps, strain, times=ask.times, has_room=has_room)
        if strain > 0:
            self._highest_failed = max(self._highest_failed, ask.rate_rps)
        elif ask.times > 1:
            self.held_rps = max(self.held_rps or 0.0, ask.rate_rps)

    def next(self, now: float) -> RateProbe | Ended:
        if not self._tried:
            self._begun_at = now
            return RateProbe(self._first_rps)
        low, rate, high = self._belief.shares(0.16, 0.5, 0.84)
        chance = (high / low - 1) / 2
        is_held = (self.held_rps or 0.0) >= rate * (1 - self._precision * 2 / 3)
        if is_held and chance <= self._precision / 3 and self._highest_failed > rate:
            return Ended("precision")
        if now > self._end:
            return Ended("time")
        margin = self._precision / 3
        if now <= self._narrow_by:
            # A noisy machine may never let it be known well: half of the time is for trying.
            is_trying = now <= self._begun_at + (self._narrow_by - self._begun_at) / 2
            if chance > self._precision * (1 if is_trying else _ROUGHLY):
                return self._within_reach(rate)
            if self._highest_failed < rate:  # what fails belongs to the answer
                return self._within_reach(max(high, rate * (1 + self._precision)))
        elif self.held_rps is None:  # the last chances
            self._late += 1
            margin *= 1 + 2 * self._late
        return RateProbe(max(SLOWEST, rate * (1 - margin)), LONGER)

    def _within_reach(self, rate: float) -> RateProbe | Ended:
        """What is far from all that was measured is neared in steps that grow."""
        low, high = min(self._tried) / self._step, max(self._tried) * self._step
        if low <= rate <= high:
            self._step = _STEP
        else:
            self._step = min(self._step**2, _LONGEST_STEP)
            rate = min(max(rate, low), high)
        return RateProbe(rate) if SLOWEST <= rate <= FASTEST else Ended("no limit in sight")
