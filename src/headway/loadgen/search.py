"""The highest rate that meets an objective.

Probes bracket it, and a line through them says where the limit lies. What fails is measured twice.
What is found must hold for longer, with fresh arrivals: a rate that has not is never called good.
"""

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.errors import ConfigError
from headway.loadgen.report import Point
from headway.loadgen.samples import CANCELLED
from headway.loadgen.statistics import PERCENTILES, Summary

_STEP = 1.25  # from rate to rate until one passes and one fails
_LONGER = 3  # times a probe: how long what is found is confirmed
_CHANCE = 0.02  # what one probe's latency may differ from another's
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
            meant = summary.errors.get(CANCELLED, 0)
            return (summary.failed - meant) / max(1, summary.offered)
        if self.name == "mean":
            return summary.mean_s
        if self.name == "max":
            return summary.max_s
        return summary.percentiles_s[float(self.name[1:])].value

    def ratio(self, summary: Summary) -> float:
        value = self.value(summary)
        if math.isnan(value):  # nothing was answered
            return math.inf
        return value / self.most if self.most else math.inf if value else 0.0


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
        worst = max(self.limits, key=lambda each: each.ratio(summary))
        return None if worst.ratio(summary) <= 1.0 else worst

    def strain(self, summary: Summary) -> float:
        """How near it is to its limits: a logarithm, 0 where one is just met."""
        if summary.server_faults:
            return math.inf
        worst = max(each.ratio(summary) for each in self.limits)
        return math.log(worst) if worst else -math.inf


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

    @property
    def was_away(self) -> bool:
        """The server, at the end."""
        return bool(self.probes) and self.probes[-1].summary.was_away

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
            tried = f"{min(rates):.4g} to {max(rates):.4g}/s"
            return f"no rate of {tried} held for long ({self.stopped})"
        failed = ""
        if self.failed_rps is not None:
            failed = f"; {self.failed_rps:.4g}/s fails: {self.bound_by}"
            if not self.had_room:
                failed += " (but there the client had no room: it may be the limit)"
        return (
            f"{self.rate_rps:.4g}/s is the highest rate with {self.objective}; it held in a run "
            f"{_LONGER} times as long{failed}"
        )


class Search:
    """Finds a rate. `probe(rate_rps, seed, times)` measures one, `times` as long as usual."""

    def __init__(
        self,
        probe: Callable[[float, int, int], Point],
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
        # Time to confirm what is found is kept back, twice.
        self._end = clock() + budget_s - _LONGER * probe_s
        self._narrow_by = self._end - (_LONGER + 1) * probe_s
        self._strains: dict[float, float] = {}  # by rate, as it was last measured
        self._failed: dict[float, Summary] = {}  # by rate, unless it passed later
        self._firm: set[float] = set()  # rates that failed twice
        self._points: list[Point] = []

    def run(self, first_rps: float) -> Found:
        stopped = self._narrow(min(max(first_rps, _SLOWEST), _FASTEST))
        confirmed = self._confirmed()
        if self._is_away():
            confirmed, stopped = None, "the server went away"
        elif confirmed is None and stopped == "precision":
            stopped = "time"
        failed = min((each for each in self._failed if each > (confirmed or 0.0)), default=None)
        bound, had_room = "", True
        if failed is not None:
            summary = self._failed[failed]
            limit, had_room = self._objective.broken_by(summary), summary.has_room
            bound = "more and more requests wait" if limit is None else _told(limit, summary)
        return Found(self._text, confirmed, failed, bound, stopped, had_room, tuple(self._points))

    @property
    def _low(self) -> float | None:
        """The highest rate that passed."""
        return max((each for each in self._strains if each not in self._failed), default=None)

    @property
    def _high(self) -> float | None:
        """The lowest failed rate above `_low`. Lower ones failed because of a short disturbance."""
        return min((each for each in self._failed if each > (self._low or 0.0)), default=None)

    def _narrow(self, rate: float) -> str:
        factor = _STEP
        while True:
            is_good = self._try(rate)
            if self._clock() > self._narrow_by or self._is_away():
                return "time"
            low, high = self._low, self._high
            if low is None or high is None:
                rate = rate * factor if is_good else rate / factor
                factor *= _STEP  # a first guess that is far off is left faster and faster
                if not _SLOWEST <= rate <= _FASTEST:
                    return "no limit in sight"
                continue
            (rate, chance), factor = self._root(low, high), _STEP
            is_close = high <= low * (1 + max(self._precision, chance))
            if is_close or any(
                abs(each / rate - 1) <= self._precision / 4 for each in self._strains
            ):
                if high in self._firm:
                    return "precision"
                rate = high  # a moment's trouble of the machine is not the server's limit

    def _root(self, low: float, high: float) -> tuple[float, float]:
        """Where the limits are just met, and its share of chance: on a line through the logarithms
        of the probes, of which those count most that came nearest; else in the middle."""
        found = [(math.log(rate), y) for rate, y in self._strains.items() if math.isfinite(y)]
        if len(found) > 1 and math.isfinite(self._strains[high]):
            x, y = np.array(found).T
            weights = (y**2 + _CHANCE**2) ** -2.0
            slope, level = np.polyfit(x, y, 1, w=weights**0.5)
            root = math.exp(min(-level / slope, 50.0)) if slope > 0 else 0.0
            if low / _STEP < root < high:
                off = np.average((y - level - slope * x) ** 2, weights=weights)
                return root, min(math.sqrt(off) / slope, 3 * self._precision)
        return math.sqrt(low * high), 0.0

    def _confirmed(self) -> float | None:
        """A rate that holds for longer, with fresh arrivals."""
        most, margin = math.inf, self._precision / 3
        while (low := self._low) is not None and self._clock() < self._end and not self._is_away():
            high = self._high
            rate, chance = (low, 0.0) if high is None else self._root(low, high)
            rate *= 1 - max(margin, chance)
            most, margin = min(most * (1 - margin / 2), rate), 2 * margin
            if self._try(most, _LONGER):
                return most
        return None

    def _is_away(self) -> bool:
        return self._points[-1].summary.was_away

    def _try(self, rate: float, times: int = 1) -> bool:
        seed = len(self._points) + 1
        point = self._probe(rate, seed, times)
        if not self._is_good(point) and not point.summary.has_room:  # once may be chance
            point = self._probe(rate, seed, times)
        self._points.append(point)
        self._strains[rate] = self._objective.strain(point.summary)
        # A client without room makes latencies longer, never shorter: what passes has passed.
        if self._is_good(point):
            self._failed.pop(rate, None)
            return True
        if rate in self._failed:
            self._firm.add(rate)
        self._failed[rate] = point.summary
        return False

    def _is_good(self, point: Point) -> bool:
        return self._objective.strain(point.summary) <= 0


def _told(limit: Limit, summary: Summary) -> str:
    value = limit.value(summary)
    if limit.name == "errors":
        return f"errors {value:.2%}"
    if summary.is_saturated or not math.isfinite(value):
        return f"{limit.name} grows without end"
    return f"{limit.name} {value * 1e3:.3g} ms"
