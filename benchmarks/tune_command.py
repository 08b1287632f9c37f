"""What `headway tune` simulates beside what a server shows: the same model, the same traffic."""

import sys
from pathlib import Path

import numpy as np

from benchmarks.report import Bar, Benchmark, Report
from headway.cli.served_process import served
from headway.lab import tuning, workload
from headway.lab.profiles import PowerProfile
from headway.lab.simulate import Scenario
from headway.lab.tuning import Setting
from headway.loadgen.connection import opener
from headway.loadgen.driver import Driver
from headway.loadgen.exchange import Address
from headway.loadgen.sweep import ArrivalLaw, Bench, Timing
from headway.loadgen.target import Probe, Wanted, find_target

_MODELS = {"flat": (PowerProfile(5e-3, 0.05e-3), 64), "linear": (PowerProfile(1e-3, 0.8e-3), 32)}
_LOADS: dict[str, tuple[str, float]] = {
    "flat, poisson 400/s": ("flat", 400.0),
    "linear, poisson 500/s": ("linear", 500.0),
    "flat, bursts of 400/s": ("flat", -400.0),
    "flat, 16 in a closed loop": ("flat", 0.0),
    "linear, 16 in a closed loop": ("linear", 0.0),
}
_CLIENTS = 16


def agreement(quick: bool) -> Report:
    seconds = 2.0 if quick else 6.0
    rows, worst = [], 0.0
    for name, (model, signed) in _LOADS.items():
        profile, largest = _MODELS[model]
        law, rate = ArrivalLaw("mmpp" if signed < 0 else "poisson"), abs(signed)
        rng = np.random.default_rng(0)
        arrivals = (
            law.due(rate, seconds + 1.0, 1)
            if rate
            else workload.closed_loop(_CLIENTS, 0.0, 20_000, rng, "constant")
        )
        scenario = Scenario.build(arrivals, profile, max_rows=largest)
        told = tuning.scored(Setting(largest), [scenario])
        target = f"{Path(__file__).with_name('tune_models.py')}:{model}"
        with served([target, "--max-batch-size", str(largest)]) as url:
            address = Address.parse(url)
            found = find_target(Probe(address), Wanted())
            with Driver(opener(address), found.exchanges) as driver:
                driver.try_once()
                bench = Bench(driver, law, Timing(seconds, 1.0, 10.0))
                point = bench.at_rate(rate, seed=1) if rate else bench.with_connections(_CLIENTS)
        summary = point.summary
        live = summary.percentiles_s[99.0].value
        worst = max(worst, abs(told.p99_s / live - 1))
        rows.append(
            [
                name,
                f"{told.mean_s * 1e3:.2f} / {summary.mean_s * 1e3:.2f}",
                f"{told.p99_s * 1e3:.2f} / {live * 1e3:.2f}",
                f"{told.p99_s / live:.3f}",
                "; ".join(summary.faults) or "valid",
            ]
        )
    return Report(
        "headway tune: simulated beside live, ms",
        ["model and load", "mean", "p99", "÷", "said"],
        rows,
        [Bar("simulated p99 within 10 % of the measured", f"{worst:.1%}", worst <= 0.10)],
        [f"{seconds:g} s each; policy auto, HTTP, v2; Python {sys.version.split()[0]}"],
    )


BENCHMARKS: dict[str, Benchmark] = {"tune-agreement": agreement}
