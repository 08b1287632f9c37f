"""A pool under an SLO: the highest Poisson rate of which 99 % are in time.

Beside `auto` are the figures of deferral (Symphony, arXiv 2308.07470: a batch leaves at the last
moment at which one row more would still be in time), and what a window makes, each with the batch
size and the slack that suit just this rate best. None of them reaches the bound for staggered
workers, which is for evenly spaced arrivals. Virtual time.
"""

import bisect
import heapq
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.report import Bar, Benchmark, Report
from headway.core.policy import Firing
from headway.lab.profiles import PowerProfile
from headway.lab.simulate import Scenario, simulate

WORKERS, MAX_ROWS = 8, 64
IN_TIME = 0.99
SLACKS = (0.0, 0.04, 0.08, 0.16, 0.24)  # of the SLO
AIM = 0.94  # of the bound


class Model(NamedTuple):
    name: str
    alpha_s: float
    row_s: float
    slo_s: float

    def batch_s(self, rows: int) -> float:
        return self.alpha_s + self.row_s * rows

    @property
    def staggered_rps(self) -> float:
        """Workers that start one after the other: an item waits for the next one at most."""
        longest_s = self.slo_s / (1.0 + 1.0 / WORKERS)
        rows = int((longest_s - self.alpha_s) / self.row_s)
        return WORKERS * rows / self.batch_s(rows)


MODELS = (
    Model("ResNet50, 25 ms", 5.072e-3, 1.053e-3, 0.025),
    Model("InceptionResNetV2, 70 ms", 18.368e-3, 5.090e-3, 0.070),
)


class Fixed(NamedTuple):
    """A batch leaves at `rows`; before that, at the last moment less `slack_s`, or (`window_s`)
    when its oldest has waited so long."""

    rows: int
    slack_s: float = 0.0
    window_s: float = math.inf

    def due(self, model: Model, oldest_at: float, waiting: int) -> float:
        last = oldest_at + model.slo_s - model.batch_s(waiting + 1) - self.slack_s
        return min(last, oldest_at + self.window_s)


def in_time(times: list[float], model: Model, fixed: Fixed) -> float:
    """The share; the oldest is dropped where it would be late, and the batch stays full."""
    free, first, answered = [0.0] * WORKERS, 0, 0
    while first < len(times):
        now, waiting = max(free[0], times[first]), 0
        while first < len(times):
            here = bisect.bisect_right(times, now, first)
            waiting = min(here - first, fixed.rows)
            while waiting and now + model.batch_s(waiting) > times[first] + model.slo_s:
                first += 1
                waiting = min(here - first, fixed.rows)
            if not waiting:
                break
            due = now if waiting == fixed.rows else fixed.due(model, times[first], waiting)
            if due <= now:
                break
            now = min(due, times[here]) if here < len(times) else due
        if waiting:
            heapq.heapreplace(free, now + model.batch_s(waiting))
            answered, first = answered + waiting, first + waiting
    return answered / len(times)


def _auto(times: list[float], model: Model) -> float:
    profile = PowerProfile(model.alpha_s, model.row_s)
    scenario = Scenario.build(
        np.array(times), profile, max_rows=MAX_ROWS, workers=WORKERS, slo_s=model.slo_s
    )
    outcome = simulate(scenario, scenario.policy(Firing.AUTO))
    return outcome.within(model.slo_s) / len(times)


def _highest(share: Callable[[list[float]], float], model: Model, requests: int) -> float:
    """By halving, of two samples."""
    gaps = [np.random.default_rng([seed, 17]).exponential(1.0, requests) for seed in range(2)]
    low, high = 0.7 * model.staggered_rps, model.staggered_rps
    for _ in range(8):
        rate = (low + high) / 2
        shares = [share((np.cumsum(each) / rate).tolist()) for each in gaps]
        low, high = (rate, high) if np.mean(shares) >= IN_TIME else (low, rate)
    return low


def _best(model: Model, settings: list[Fixed], requests: int) -> tuple[float, Fixed]:
    found = []
    for each in settings:
        found.append((_highest(lambda times: in_time(times, model, each), model, requests), each))  # noqa: B023
    return max(found)


def pool_slo(quick: bool) -> Report:
    requests = 10_000 if quick else 30_000
    rows, ratios = [], []
    for model in MODELS:
        ours = _highest(lambda times: _auto(times, model), model, requests)  # noqa: B023
        most = int((model.slo_s - model.alpha_s) / model.row_s)
        caps = range(max(2, most // 2), most + 1)
        slacks = [slack * model.slo_s for slack in SLACKS]
        deferred = _best(model, [Fixed(cap, slack) for cap in caps for slack in slacks], requests)
        windows = [Fixed(cap, 0.0, 3 * slack) for cap in caps for slack in slacks]
        window = _best(model, windows, requests)
        ratios.append(ours / max(deferred[0], window[0]))
        rows.append(
            [
                model.name,
                f"{model.staggered_rps:,.0f}/s",
                *(
                    f"{rate:,.0f}/s ({rate / model.staggered_rps:.3f})"
                    for rate in (ours, deferred[0], window[0])
                ),
                f"{deferred[1].rows} rows, {deferred[1].slack_s * 1e3:g} ms early",
            ]
        )
    return Report(
        f"{WORKERS} workers under an SLO: the highest Poisson rate with 99 % in time",
        ["model", "bound for even arrivals", "auto", "deferred", "window", "the best deferral"],
        rows,
        [Bar(f"≥ {AIM} × the best of both", f"{min(ratios):.3f}", min(ratios) >= AIM)],
        ["deferred, window: the best batch size and slack for just this rate and sample"],
    )


BENCHMARKS: dict[str, Benchmark] = {"pool-slo": pool_slo}
