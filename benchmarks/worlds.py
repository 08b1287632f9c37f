"""Whole situations in one value: arrivals, batch times, workers, and how steady they are.

The vocabulary of the grid benchmark and of the fuzz tests: a world is drawn again for every seed,
and a judgement says how `auto` did there beside every fixed setting.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headway.core.policy import Firing
from headway.lab import traces, workload
from headway.lab.oracle import Fixed, Score, best_of, score_grid
from headway.lab.profiles import (
    KneeProfile,
    Noise,
    PowerProfile,
    Profile,
    TileProfile,
    batch_seconds,
    capacity_rps,
    doubled,
)
from headway.lab.simulate import Drift, Outcome, Scenario, simulate
from headway.lab.workload import ClosedLoop, Times

UNBOUNDED = 1_000_000
STEADY = Noise()


@dataclass(frozen=True, slots=True)
class Curve:
    """A model: `alpha + beta * b`, in tiles or with a best size where they are given."""

    alpha_ms: float
    beta_ms: float
    max_rows: int
    exponent: float = 1.0
    tile: int = 1
    best: int = 0

    @property
    def profile(self) -> Profile:
        profile: Profile = PowerProfile(self.alpha_ms / 1e3, self.beta_ms / 1e3, self.exponent)
        if self.tile > 1:
            profile = TileProfile(profile, self.tile)
        return KneeProfile(profile, self.best) if self.best else profile

    def __str__(self) -> str:
        text = f"{self.alpha_ms:g}+{self.beta_ms:g}b"
        text += f"^{self.exponent:g}" if self.exponent != 1.0 else ""
        text += f" tile {self.tile}" if self.tile > 1 else ""
        text += f" best {self.best}" if self.best else ""
        return f"{text} B{self.max_rows}"


@dataclass(frozen=True, slots=True)
class Clients:
    """A closed loop."""

    count: int
    think_ms: float
    thinking: str = "exponential"  # or constant, mixed, barrier
    jitter_ms: float = 0.0  # of a barrier

    def __str__(self) -> str:
        return f"{self.count} clients {self.thinking} {self.think_ms:g} ms"


@dataclass(frozen=True, slots=True)
class World:
    family: str
    curve: Curve
    arrivals: str = "poisson"  # a law, with its parameter after a comma
    load: float = 0.5
    clients: Clients | None = None  # instead of arrivals
    noise: Noise = STEADY
    speeds: tuple[float, ...] = (1.0,)
    drift: float = 1.0  # from the middle of the run on, batches take this many times as long
    slo: float = 0.0  # in full batches; 0: none
    trace: Path | None = None

    def __str__(self) -> str:
        who = str(self.clients or f"{self.arrivals} {self.load:.0%}")
        if self.trace is not None:
            who = f"{self.trace.stem.rsplit('_', 1)[-1]} {self.load:.0%}"
        parts = [str(self.curve), who]
        if self.noise.cv:
            parts.append(f"{self.noise.law} {self.noise.cv:g}")
        if self.noise.stragglers:
            parts.append(f"{self.noise.stragglers:.0%} take {self.noise.times_slower:g}x")
        if len(self.speeds) > 1:
            same = len(set(self.speeds)) == 1
            parts.append(f"{len(self.speeds)} workers" if same else f"workers {self.speeds}")
        if self.drift != 1.0:
            parts.append(f"then {self.drift:g}x")
        if self.slo:
            parts.append(f"SLO {self.slo:g} l(B)")
        return ", ".join(parts)

    @property
    def full_s(self) -> float:
        return self.curve.profile.seconds(self.curve.max_rows)

    @property
    def slo_s(self) -> float | None:
        return self.slo * self.full_s if self.slo else None

    @property
    def capacity_rps(self) -> float:
        seconds = batch_seconds(self.curve.profile, self.curve.max_rows)
        return capacity_rps(seconds, sum(1.0 / speed for speed in self.speeds))

    def scenario(self, seed: int, requests: int, *, with_slo: bool = True) -> Scenario:
        rng = np.random.default_rng([seed, zlib.crc32(str(replace(self, slo=0.0)).encode())])
        arrivals = self._arrivals(requests, rng)
        return Scenario.build(
            arrivals,
            self.curve.profile,
            max_rows=self.curve.max_rows,
            seed=int(rng.integers(2**31)),
            noise=self.noise,
            speeds=self.speeds,
            max_queue=UNBOUNDED,
            drift=self._drift(arrivals),
            slo_s=self.slo_s if with_slo else None,
        )

    def _arrivals(self, requests: int, rng: np.random.Generator) -> Times | ClosedLoop:
        clients, rate_rps = self.clients, self.load * self.capacity_rps
        if clients is not None:
            think_s = clients.think_ms / 1e3
            if clients.thinking == "barrier":
                jitter_s = clients.jitter_ms / 1e3
                return workload.barrier(clients.count, think_s, jitter_s, requests, rng)
            return workload.closed_loop(clients.count, think_s, requests, rng, clients.thinking)
        if self.trace is not None:
            times = traces.read_trace(self.trace)
            start = int(rng.integers(max(1, len(times) - requests)))
            return traces.replay(times[start : start + requests] - times[start], requests, rate_rps)
        law, _, parameter = self.arrivals.partition(",")
        options = {workload.PARAMETERS[law]: float(parameter)} if parameter else {}
        return workload.OPEN_LOOPS[law](requests, rate_rps, rng, **options)

    def _drift(self, arrivals: Times | ClosedLoop) -> Drift | None:
        if self.drift == 1.0 or isinstance(arrivals, ClosedLoop):
            return None
        return Drift(float(arrivals[len(arrivals) // 2]), self.drift)


@dataclass(frozen=True, slots=True)
class Judgement:
    """`auto` in one world and sample. Ratios: above 1 is worse."""

    p99: float  # to the setting with the best p99 …
    mean: float  # … and to that setting's mean
    best_mean: float  # to the setting with the best mean
    dominated: float  # the fixed setting that beats it most: by so much in both figures
    idle_p99: float  # to plain fire-when-idle, all that fit
    idle_mean: float
    in_time: float = math.nan  # with an SLO: the share of all, …
    in_time_fixed: float = math.nan  # … of the best fixed setting, …
    in_time_without: float = math.nan  # … and of `auto` that was told no SLO
    rate: float = math.nan  # closed loops: answers a second, to the best fixed setting's
    p99_s: float = math.nan
    mean_s: float = math.nan
    best: str = ""


def judge(
    world: World, seed: int, requests: int, fixed: Mapping[Fixed, Score] | None = None
) -> Judgement:
    """`fixed`: what the fixed settings make of that sample, where it is known already."""
    scenario = world.scenario(seed, requests)
    plain = replace(scenario, slo_s=None)
    grid = fixed or score_grid(scenario, caps=all_caps(world.curve.max_rows))
    ours = simulate(plain, plain.policy(Firing.AUTO))
    p99_s, mean_s = ours.percentile_s(99), ours.mean_s
    best = grid[best_of(grid)]
    idle = grid[Fixed(0.0, world.curve.max_rows)]
    span_s = min(score.span_s for score in grid.values() if not math.isnan(score.span_s))
    with_slo = simulate(scenario, scenario.policy(Firing.AUTO)) if world.slo else None
    return Judgement(
        p99=p99_s / best.p99_s,
        mean=mean_s / best.mean_s,
        best_mean=mean_s / min(score.mean_s for score in grid.values()),
        dominated=max(min(p99_s / s.p99_s, mean_s / s.mean_s) for s in grid.values()),
        idle_p99=p99_s / idle.p99_s,
        idle_mean=mean_s / idle.mean_s,
        in_time=_in_time(with_slo, world.slo_s),
        in_time_fixed=max(score.in_time for score in grid.values()),
        in_time_without=_in_time(ours, world.slo_s),
        rate=ours.span_s / span_s if world.clients else math.nan,
        p99_s=p99_s,
        mean_s=mean_s,
        best=str(best_of(grid)),
    )


def _in_time(outcome: Outcome | None, slo_s: float | None) -> float:
    if outcome is None or slo_s is None:
        return math.nan
    return outcome.within(slo_s) / max(1, len(outcome.latencies_s))


def all_caps(max_rows: int) -> list[int]:
    """Powers of two, one and a half times each, and the largest."""
    more = [3 * size // 2 for size in doubled(max_rows) if size % 2 == 0 and 1.5 * size < max_rows]
    return sorted({*doubled(max_rows), *more})
