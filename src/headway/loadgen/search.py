"""The highest rate that meets an objective: what an objective is, and probes until it is found.

Which rates to try is decided in `rate_search.py`. What is found has held for longer, with fresh
arrivals: a rate that has not is never called good.
"""

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.errors import ConfigError
from headway.loadgen.rate_search import LONGER, RateProbe, RateSearch
from headway.loadgen.report import Point
from headway.loadgen.samples import CANCELLED
from headway.loadgen.statistics import PERCENTILES, Summary

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
            f"{LONGER} times as long{failed}"
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
        self._end = clock() + budget_s - LONGER * probe_s
        self._narrow_by = self._end - (LONGER + 1) * probe_s

    def run(self, first_rps: float) -> Found:
        search = RateSearch(
            first_rps, precision=self._precision, narrow_by=self._narrow_by, end=self._end
        )
        points: list[Point] = []
        while isinstance(asked := search.next(self._clock()), RateProbe):
            point = self._probe(asked.rate_rps, len(points) + 1, asked.times)
            points.append(point)
            if point.summary.was_away:
                return self._found(None, "the server went away", points)
            strain = self._objective.strain(point.summary)
            search.measured(asked, strain, has_room=point.summary.has_room)
        return self._found(search.held_rps, asked.why, points)

    def _found(self, rate: float | None, stopped: str, points: list[Point]) -> Found:
        """With the lowest rate above it that failed, and not for want of the client's room: at
        higher rates it would have none either, if it were the limit."""
        failed = [
            each
            for each in points
            if (each.rate_rps or 0.0) > (rate or 0.0) and self._objective.strain(each.summary) > 0
        ]
        failed = [each for each in failed if each.summary.has_room] or failed
        if not failed:
            return Found(self._text, rate, None, "", stopped, True, tuple(points))
        lowest = min(failed, key=lambda each: each.rate_rps or 0.0)
        limit = self._objective.broken_by(lowest.summary)
        bound = "more and more requests wait" if limit is None else _told(limit, lowest.summary)
        had_room = lowest.summary.has_room
        return Found(self._text, rate, lowest.rate_rps, bound, stopped, had_room, tuple(points))


def _told(limit: Limit, summary: Summary) -> str:
    value = limit.value(summary)
    if limit.name == "errors":
        return f"errors {value:.2%}"
    if summary.is_saturated or not math.isfinite(value):
        return f"{limit.name} grows without end"
    return f"{limit.name} {value * 1e3:.3g} ms"
