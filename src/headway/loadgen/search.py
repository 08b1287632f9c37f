"""The highest rate that meets an objective.

Probes bracket it, an interpolation narrows the bracket, and what is found must pass again with
fresh arrivals: a rate that has not passed is never called good.
"""

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.errors import ConfigError
from headway.loadgen.report import Point
from headway.loadgen.statistics import PERCENTILES, Summary

_STEP = 1.25  # from rate to rate until one passes and one fails
_CONFIRMATIONS = 3
_LOWER = 0.98  # what was not confirmed is tried again at so much of its rate
_MIDDLE = 0.1  # of the bracket, at both ends, is not probed: little would be learned there
_SLOWEST, _FASTEST = 0.1, 1e6
_SCALES = {"ms": 1e-3, "s": 1.0, "%": 0.01}


@dataclass(frozen=True, slots=True)
class Limit:
    """One condition: `p99<=50ms`, `mean<=10ms`, `errors<=0.1%`."""

    text: str
    name: str
    most: float  # seconds, or a share

    def value(self, summary: Summary) -> float:
        if self.name == "errors":
            return summary.error_share
        if self.name == "mean":
            return summary.mean_s
        if self.name == "max":
            return summary.max_s
        return summary.percentiles_s[float(self.name[1:])].value


@dataclass(frozen=True, slots=True)
class Objective:
    limits: tuple[Limit, ...]

    @classmethod
    def parse(cls, text: str) -> "Objective":
        names = ["errors", "mean", "max", *(f"p{each:g}" for each in PERCENTILES)]
        limits = []
        for part in text.split(","):
            found = re.fullmatch(r"\s*([a-z0-9.]+)\s*<=?\s*([0-9.]+)\s*(ms|s|%)\s*", part)
            if (
                found is None
                or found[1] not in names
                or (found[3] == "%") != (found[1] == "errors")
            ):
                raise ConfigError(
                    f"{part!r} does not have the form p99<=50ms or errors<=0.1%; there are "
                    f"{', '.join(names)}"
                )
            limits.append(Limit(part.strip(), found[1], float(found[2]) * _SCALES[found[3]]))
        if all(each.name == "errors" for each in limits):
            raise ConfigError(f"{text!r} bounds no latency: say p99<=… too")
        return cls(tuple(limits))

    @property
    def longest_s(self) -> float:
        """No latency that passes is much longer than this."""
        return max(each.most for each in self.limits if each.name != "errors")

    def broken_by(self, summary: Summary) -> Limit | None:
        """The limit that is missed the most; None: all hold."""
        worst, limit = 1.0, None
        for each in self.limits:
            value = each.value(summary)
            ratio = value / each.most if each.most else math.inf if value else 0.0
            if not ratio <= worst:  # NaN: nothing was answered
                worst, limit = ratio, each
        return limit


@dataclass(frozen=True, slots=True)
class Found:
    """What a search ends with."""

    objective: str
    rate_rps: float | None  # None: no rate passed
    failed_rps: float | None  # the lowest that failed
    bound_by: str  # the limit that it broke
    stopped: str  # why: "precision", "time" or "no limit in sight"
    had_room: bool  # the client, at the rate that failed; if not, it may be the limit
    probes: tuple[Point, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "objective": self.objective,
            "pass_rps": self.rate_rps,
            "fail_rps": self.failed_rps,
            "bound_by": self.bound_by,
            "stopped": self.stopped,
            "client_had_room": self.had_room,
        }

    def told(self) -> str:
        if self.rate_rps is None:
            rates = [each.rate_rps or 0.0 for each in self.probes]
            if not rates:
                return f"no rate was tried ({self.stopped})"
            return f"none of {min(rates):.4g} to {max(rates):.4g}/s passed ({self.stopped})"
        failed = ""
        if self.failed_rps is not None:
            failed = f"; {self.failed_rps:.4g}/s fails: {self.bound_by}"
            if not self.had_room:
                failed += " (but there the client had no room: it may be the limit)"
        return (
            f"{self.rate_rps:.4g}/s is the highest rate with {self.objective}; it passed "
            f"with {_CONFIRMATIONS} fresh seeds{failed}"
        )


class Search:
    """Finds a rate. `probe` measures one, with the arrivals of a seed."""

    def __init__(
        self,
        probe: Callable[[float, int], Point],
        objective: Objective,
        *,
        text: str,
        precision: float = 0.03,
        budget_s: float = 60.0,
        probe_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe = probe
        self._objective = objective
        self._text = text
        self._precision = precision
        self._clock = clock
        # Time to confirm what is found is kept back.
        self._narrow_by = clock() + max(0.0, budget_s - (_CONFIRMATIONS + 1) * probe_s)
        self._end = clock() + budget_s - probe_s
        self._passed: dict[float, Summary] = {}
        self._failed: dict[float, Summary] = {}
        self._points: list[Point] = []
        self._seed = 0

    def run(self, first_rps: float) -> Found:
        stopped = self._narrow(first_rps)
        confirmed = self._confirmed()
        if confirmed is None and stopped == "precision":
            stopped = "time"
        failed = min(self._failed, default=None)
        limit = None if failed is None else self._objective.broken_by(self._failed[failed])
        bound, had_room = "", True
        if failed is not None:
            summary = self._failed[failed]
            had_room = summary.has_room
            bound = "more and more requests wait" if limit is None else _told(limit, summary)
        return Found(self._text, confirmed, failed, bound, stopped, had_room, tuple(self._points))

    def _narrow(self, rate: float) -> str:
        rate, factor = min(max(rate, _SLOWEST), _FASTEST), _STEP
        while True:
            before = len(self._passed)
            self._try(rate)
            low, high = max(self._passed, default=None), min(self._failed, default=None)
            if low is not None and high is not None and high <= low * (1 + self._precision):
                return "precision"
            if self._clock() > self._narrow_by:
                return "time"
            if low is None or high is None:
                rate = rate * factor if len(self._passed) > before else rate / factor
                factor *= _STEP  # a first guess that is far off is left faster and faster
                if not _SLOWEST <= rate <= _FASTEST:
                    return "no limit in sight"
            else:
                rate = self._between(low, high)

    def _between(self, low: float, high: float) -> float:
        """Where the logarithm of the limit that broke crosses its bound, if it is a line."""
        share, limit = 0.5, self._objective.broken_by(self._failed[high])
        if limit is not None and limit.most:
            below, above = limit.value(self._passed[low]), limit.value(self._failed[high])
            if 0 < below < above and math.isfinite(above) and not self._failed[high].is_saturated:
                share = math.log(limit.most / below) / math.log(above / below)
        return low + (high - low) * min(1 - _MIDDLE, max(_MIDDLE, share))

    def _confirmed(self) -> float | None:
        """The highest rate that passes with fresh arrivals too."""
        rate = max(self._passed, default=None)
        while rate is not None and self._clock() < self._end:
            for _ in range(_CONFIRMATIONS):
                if not self._try(rate):
                    break
            else:
                return rate
            below = max((each for each in self._passed if each < rate), default=0.0)
            rate = max(below, rate * _LOWER)
        return None

    def _try(self, rate: float) -> bool:
        self._seed += 1
        point = self._probe(rate, self._seed)
        if not self._is_good(point) and not point.summary.has_room:  # once may be chance
            point = self._probe(rate, self._seed)
        self._points.append(point)
        # A client without room makes latencies longer, never shorter: what passes has passed.
        is_good = self._is_good(point)
        if is_good:
            self._passed[rate] = point.summary
        else:
            self._failed[rate] = point.summary
            self._passed.pop(rate, None)
        return is_good

    def _is_good(self, point: Point) -> bool:
        is_held = self._objective.broken_by(point.summary) is None
        return is_held and not point.summary.is_saturated


def _told(limit: Limit, summary: Summary) -> str:
    value = limit.value(summary)
    if limit.name == "errors":
        return f"errors {value:.2%}"
    if summary.is_saturated or not math.isfinite(value):
        return f"{limit.name} grows without end"
    return f"{limit.name} {value * 1e3:.3g} ms"
