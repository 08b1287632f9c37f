"""What each mechanism of the scheduler buys: figures without it ÷ figures with it.

The worlds are none that a number was chosen on: other seeds, and curves, loads and callers that are
not in the grid. A mechanism that buys nothing in any of them has no place. Virtual time.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import headway
from benchmarks.optimum import rate_rps
from benchmarks.report import Bar, Benchmark, Report
from benchmarks.worlds import Clients, Curve, World
from headway.core.batching.filling import Filling
from headway.core.batching.firing import AutoRule
from headway.core.batching.gathering import Gathering
from headway.core.batching.pool import Pool
from headway.core.batching.rehearsal import Rehearsal
from headway.core.batching.replay import Sharing
from headway.core.batching.returns import Away
from headway.core.costs import Costs
from headway.core.items import Priority
from headway.core.policy import Firing
from headway.lab.simulate import Callers, Outcome, Scenario, simulate
from headway.lab.workload import poisson

SEEDS, REQUESTS = (301, 302), 6_000
WORTH = 0.02  # less is nothing that a user notices
ROOT = Path(__file__).parents[1]
FLAT, STEEP, LINE = Curve(3, 0.08, 48), Curve(0.7, 0.5, 24), Curve(0.02, 0.6, 32)
TILED = Curve(0.8, 0.12, 64, tile=16)


@dataclass(frozen=True)
class Figures:
    p99_s: float
    mean_s: float
    second_s: float  # for each answer: a closed loop's pace, or a lower class's


def _loops() -> list[World]:
    counts = ((6, 1.0), (20, 0.7), (40, 1.5), (48, 0.5))
    return [World("closed", FLAT, clients=Clients(*each)) for each in counts]


def _in_step() -> list[World]:
    return [
        World("in step", curve, clients=Clients(count, 5.0, "constant"))
        for curve, count in ((FLAT, 20), (STEEP, 12), (Curve(2, 0.2, 32), 16))
    ]


def _pools() -> list[World]:
    return [
        World("pool", curve, law, load, speeds=(1.0,) * workers)
        for curve, workers in ((FLAT, 3), (STEEP, 6))
        for law in ("poisson", "mmpp")
        for load in (0.25, 0.6, 0.85)
    ]


def _open(*curves: Curve) -> list[World]:
    return [
        World("open", curve, law, load)
        for curve in curves
        for law in ("poisson", "mmpp")
        for load in (0.4, 0.75)
    ]


def _requests_of_many() -> list[World]:
    """One client sends many values at once, waits for all, and sends the next ones."""
    return [
        World("many", curve, clients=Clients(20, 2.0, "barrier"), speeds=(1.0,) * workers)
        for curve in (STEEP, FLAT)
        for workers in (2, 4)
    ]


def _unequal() -> list[World]:
    return [World("unequal", FLAT, load=load, speeds=(1.0, 2.5)) for load in (0.2, 0.5)]


def _of_world(world: World, seed: int) -> Figures:
    scenario = world.scenario(seed, REQUESTS)
    return _of(scenario, simulate(scenario, scenario.policy(Firing.AUTO)))


def _of(scenario: Scenario, outcome: Outcome) -> Figures:
    return Figures(outcome.percentile_s(99), outcome.mean_s, 1.0 / rate_rps(outcome))


def _probed_wrongly(world: World, seed: int) -> Figures:
    """The larger half of the sizes was timed while the machine was busy."""
    scenario = world.scenario(seed, 4 * REQUESTS)
    table = scenario.table
    seconds = tuple(
        tuple(each * (2.0 if rows > table.rows[-1] // 2 else 1.0) for each in row)
        for rows, row in zip(table.rows, table.seconds, strict=True)
    )
    scenario = replace(scenario, table=replace(table, seconds=seconds))
    return _of(scenario, simulate(scenario, scenario.policy(Firing.AUTO)))


def _classes(world: World, seed: int) -> Figures:
    """The figures of a high class that is a fifth of the traffic; a low one uses what is left."""
    rng = np.random.default_rng([seed, 5])
    arrivals = poisson(REQUESTS, world.load * world.capacity_rps, rng)
    chosen = rng.random(REQUESTS) < 0.2
    classes = [Priority.HIGH if each else Priority.LOW for each in chosen]
    scenario = Scenario.build(
        arrivals,
        world.curve.profile,
        max_rows=world.curve.max_rows,
        seed=seed,
        max_queue=1_000_000,
        callers=Callers(priorities=classes),
    )
    outcome = simulate(scenario, scenario.policy(Firing.AUTO))
    high = outcome.latencies_s[chosen]
    return Figures(float(np.percentile(high, 99)), float(high.mean()), outcome.mean_s)


def _without(target: Any, name: str, instead: object) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(target, name, instead)


def _all_that_wait(self: Costs, waiting: int, size: int = 0) -> int:
    return min(waiting, self.best_rows(size))


@dataclass(frozen=True)
class Ablation:
    what: str
    worlds: Sequence[World]
    without: Callable[[], AbstractContextManager[Any]]
    measure: Callable[[World, int], Figures] = _of_world


ABLATIONS = (
    Ablation(
        "a closed loop starts with as many as bring the most answers",
        _loops(),
        _without(Gathering, "start", lambda self, lane: None),
    ),
    Ablation(
        "callers in step are served in parts",
        _in_step(),
        _without(Away, "is_in_step", lambda self, alone_s: False),
    ),
    Ablation(
        "full tiles, and halves where rows cost the same",
        _open(TILED, LINE),
        _without(Costs, "paying_rows", _all_that_wait),
    ),
    Ablation(
        "a size that was timed on a busy machine is tried again",
        _open(FLAT)[1::2],
        _without(Costs, "_to_try_again", lambda self, points, best, size: None),
        _probed_wrongly,
    ),
    Ablation(
        "a pool's window and cap are rehearsed",
        _pools(),
        _without(Rehearsal, "step", lambda self, now: None),
    ),
    Ablation(
        "a pool takes a long queue in larger batches",
        _pools(),
        _without(Sharing, "items_to_take", lambda self, waiting, cap: min(waiting, cap)),
    ),
    Ablation(
        "a pool's cap grows in a burst",
        _pools(),
        _without(Rehearsal, "cap_rows_at", lambda self, setting, rate_rps: setting.cap_rows),
    ),
    Ablation(
        "free workers share what came at once",
        _requests_of_many(),
        _without(AutoRule, "_shared", lambda self, rows, size, workers: rows),
    ),
    Ablation(
        "a slow worker is left idle for a faster one",
        _unequal(),
        _without(Pool, "better_at", lambda self, now, batch_s, batches, waited_s: -math.inf),
    ),
    Ablation(
        "a lower class leaves room for a higher one (whose figures these are; last: of the lower)",
        _open(STEEP),
        _without(Filling, "rows_with", lambda self, priority, rows, size, now: 1_000_000),
        _classes,
    ),
)


def _ratios(ablation: Ablation, seeds: Sequence[int]) -> list[list[float]]:
    """By world: p99, mean and pace without the mechanism ÷ with it, over the seeds."""
    found = []
    for world in ablation.worlds:
        logs = []
        for seed in seeds:
            ours = ablation.measure(world, seed)
            with ablation.without():
                bare = ablation.measure(world, seed)
            logs.append(np.log([*astuple(bare)]) - np.log([*astuple(ours)]))
        found.append([float(each) for each in np.exp(np.mean(logs, axis=0))])
    return found


def ablation(quick: bool) -> Report:
    table, bars = [], []
    for number, each in enumerate(ABLATIONS):
        ratios = np.array(_interpreted(number, quick))
        means = np.exp(np.log(ratios).mean(axis=0))
        best = float(ratios.max())
        row = [
            f"{mean:.3f} ({column.max():.2f})" for mean, column in zip(means, ratios.T, strict=True)
        ]
        table.append([each.what, len(each.worlds), *row])
        bars.append(Bar(f"{each.what}: ≥ 2 % somewhere", f"{best:.3f}", best >= 1.0 + WORTH))
    return Report(
        "Ablation: without each mechanism ÷ with it, on worlds that nothing was tuned on",
        ["mechanism", "worlds", "p99 (worst)", "mean (worst)", "seconds an answer (worst)"],
        table,
        bars,
        [f"geometric means over the worlds, {len(SEEDS)} seeds of {REQUESTS:,} requests each"],
    )


def _interpreted(number: int, quick: bool) -> list[list[float]]:
    """In a process of its own, from a copy without compiled modules: those cannot be patched."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(headway.__file__).parent
        ignored = shutil.ignore_patterns("*.so", "compiled.sha256", "__pycache__")
        shutil.copytree(source, Path(folder, "headway"), ignore=ignored)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.ablation",
                str(number),
                str(SEEDS[0] if quick else ""),
            ],
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
            check=True,
            capture_output=True,
        )
    return [list(map(float, each)) for each in json.loads(done.stdout)]


BENCHMARKS: dict[str, Benchmark] = {"ablation": ablation}

if __name__ == "__main__":
    only = [int(sys.argv[2])] if sys.argv[2] else list(SEEDS)
    print(json.dumps(_ratios(ABLATIONS[int(sys.argv[1])], only)))
