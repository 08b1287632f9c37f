"""Runs points of load one after the other, and stops where the server has had enough."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from headway.errors import ConfigError
from headway.lab import workload
from headway.lab.traces import replay
from headway.lab.workload import Times
from headway.loadgen.driver import Driver, Tick
from headway.loadgen.report import Point
from headway.loadgen.statistics import Window, closed_summary, open_summary
from headway.loadgen.tokens import TokenLimits

_MANY = 20_000_000  # requests of one point


@dataclass(frozen=True, slots=True)
class ArrivalLaw:
    """When requests are due, at any rate: a law of `headway simulate`, or a trace."""

    kind: str
    options: tuple[tuple[str, float], ...] = ()
    trace: Times | None = None

    def due(self, rate_rps: float, seconds: float, seed: int) -> Times:
        """The arrivals of that many seconds."""
        rng = np.random.default_rng([seed, 0])
        requests = int(rate_rps * seconds * 1.1 + 10 * (rate_rps * seconds) ** 0.5) + 16
        while True:
            if requests > _MANY:
                raise ConfigError(f"{rate_rps:g}/s for {seconds:g} s are over {_MANY:,} requests")
            if self.trace is not None:
                times = replay(self.trace, requests, rate_rps)
            else:
                law = workload.OPEN_LOOPS[self.kind]
                times = law(requests, rate_rps, rng, **dict(self.options))
            if times[-1] >= seconds:
                due = times[times < seconds]
                if not len(due):
                    raise ConfigError(f"at {rate_rps:g}/s no request is due in {seconds:g} s")
                return due
            requests *= 2


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a point lasts."""

    seconds: float
    warm_s: float
    drain_s: float  # most seconds to wait for the last answers

    @property
    def end_s(self) -> float:
        return self.warm_s + self.seconds

    def window(self, slo_s: float | None, limits: TokenLimits) -> Window:
        return Window(self.warm_s, self.end_s, slo_s, limits)


@dataclass(frozen=True, slots=True)
class Bench:
    """Measures points of load on one server."""

    driver: Driver
    law: ArrivalLaw
    timing: Timing
    seed: int = 0
    slo_s: float | None = None
    url: str = ""
    token_limits: TokenLimits = field(default_factory=TokenLimits)

    def at_rate(
        self,
        rate_rps: float,
        *,
        seed: int | None = None,
        stop_when: Callable[[Tick], bool] | None = None,
    ) -> Point:
        """`stop_when`: the point is lost anyway; what is not answered by then never is."""
        timing = self.timing
        seed = self.seed if seed is None else seed
        due = self.law.due(rate_rps, timing.end_s, seed)
        last_s = timing.end_s + timing.drain_s
        samples = self.driver.open_loop(due, last_s=last_s, stop_when=stop_when)
        summary = open_summary(samples, timing.window(self.slo_s, self.token_limits))
        return Point(f"{self.law.kind} {rate_rps:g}/s", rate_rps, None, summary, self.url)

    def with_connections(self, connections: int) -> Point:
        timing = self.timing
        samples = self.driver.closed_loop(connections, timing.end_s)
        summary = closed_summary(samples, timing.window(self.slo_s, self.token_limits))
        return Point(f"{connections} in a closed loop", None, connections, summary, self.url)


def swept(rates: Iterable[float], measure: Callable[[float], Point]) -> Iterator[Point]:
    """Rising rates, until one is more than the server can do."""
    for rate in rates:
        point = measure(rate)
        yield point
        if point.summary.is_saturated:
            return
