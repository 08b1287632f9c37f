"""The scheduler against the best fixed settings, in virtual time. Exact: no machine noise."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.report import Bar, Report
from headway.core.policy import Firing
from headway.lab.oracle import best_of, oracle, replay_window, score_grid
from headway.lab.profiles import PowerProfile, batch_seconds, capacity_rps
from headway.lab.report import plot_adaptation
from headway.lab.simulate import Outcome, Scenario, simulate
from headway.lab.traces import read_trace, replay
from headway.lab.workload import (
    OPEN_LOOPS,
    OpenLoop,
    Times,
    closed_loop,
    fan_out,
    poisson,
    step,
)

GPU = ("GPU-like", PowerProfile(5e-3, 0.05e-3), 64)
CPU = ("CPU-like", PowerProfile(1e-3, 0.8e-3), 32)
LOADS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
UNBOUNDED = 1_000_000
TRACES = Path(__file__).parents[2] / "shared" / "traces"
IMAGES = Path(__file__).parents[1] / "docs" / "images"


def auto(scenario: Scenario, *, record: bool = False) -> Outcome:
    return simulate(scenario, scenario.policy(Firing.AUTO), record=record)


def idle(scenario: Scenario) -> Outcome:
    return simulate(scenario, scenario.policy(Firing.AUTO, max_wait_s=0.0))


def zero_configuration(quick: bool) -> Report:
    seeds, requests = (range(2), 15_000) if quick else (range(5), 40_000)
    rows, worst_p99, worst_mean = [], 0.0, 0.0
    for name, profile, max_rows in (GPU, CPU):
        capacity = capacity_rps(batch_seconds(profile, max_rows))
        for kind in ("poisson", "mmpp"):
            p99s, means = [], []
            for load in LOADS:
                ratios = []
                for seed in seeds:
                    rng = np.random.default_rng([seed, 7])
                    arrivals = OPEN_LOOPS[kind](requests, capacity * load, rng)
                    scenario = Scenario.build(
                        arrivals, profile, max_rows=max_rows, seed=seed, max_queue=UNBOUNDED
                    )
                    best = score_grid(scenario)
                    ours = auto(scenario)
                    p99_s = best[best_of(best)].p99_s
                    mean_s = min(score.mean_s for score in best.values())
                    ratios.append((ours.percentile_s(99) / p99_s, ours.mean_s / mean_s))
                p99, mean = np.mean(ratios, axis=0)
                p99s.append(p99)
                means.append(mean)
            rows.append(
                [name, kind, *(f"{p:.3f} / {m:.3f}" for p, m in zip(p99s, means, strict=True))]
            )
            worst_p99, worst_mean = max(worst_p99, *p99s), max(worst_mean, *means)
    return Report(
        "1. Zero configuration: `auto` ÷ the per-load oracle (p99 / mean)",
        ["model", "arrivals", *(f"{load:.0%}" for load in LOADS)],
        rows,
        [
            Bar("p99 ≤ 1.05 at the worst load (aim 1.02)", f"{worst_p99:.3f}", worst_p99 <= 1.05),
            Bar("mean ≤ 1.03", f"{worst_mean:.3f}", worst_mean <= 1.03),
        ],
        [
            f"mean over {len(seeds)} seeds of {requests:,} requests; the oracle is the best of 42 "
            "settings for that very sample, for p99 and for the mean separately"
        ],
    )


def closed_loops(quick: bool) -> Report:
    requests = 8_000 if quick else 40_000
    rows, figure = [], 0.0
    for clients, think_s in (
        (1, 1e-4),
        (2, 1e-4),
        (8, 1e-4),
        (8, 5e-4),
        (32, 1e-4),
        (64, 5e-4),
        (8, 5e-3),
    ):
        loop = closed_loop(clients, think_s, requests, np.random.default_rng(1))
        scenario = Scenario.build(loop, GPU[1], max_rows=GPU[2])
        ours, theirs = auto(scenario), idle(scenario)
        ratio = ours.throughput_rps / theirs.throughput_rps
        if (clients, think_s) == (8, 1e-4):
            figure = ratio
        rows.append(
            [
                clients,
                f"{think_s * 1e3:g} ms",
                f"{ours.throughput_rps:.0f}/s",
                f"{theirs.throughput_rps:.0f}/s",
                f"{ratio:.2f}×",
                f"{ours.percentile_s(99) * 1e3:.1f} ms",
            ]
        )
    return Report(
        "2. Closed loop, GPU-like: `auto` beside `idle`",
        ["clients", "think time", "auto", "idle", "ratio", "auto p99"],
        rows,
        [Bar("8 clients, 0.1 ms: ≥ 1.8×", f"{figure:.2f}×", figure >= 1.8)],
        ["the number of clients is learned, never given"],
    )


def fan_outs(quick: bool) -> Report:
    seeds, requests = (range(2), 10_000) if quick else (range(5), 40_000)
    rows, figure = [], 0.0
    capacity = capacity_rps(batch_seconds(GPU[1], GPU[2]))
    for load in (0.01, 0.05, 0.1, 0.3):
        savings = []
        for seed in seeds:
            arrivals = fan_out(requests, capacity * load, np.random.default_rng([seed, 3]))
            scenario = Scenario.build(arrivals, GPU[1], max_rows=GPU[2], seed=seed)
            ours, theirs = auto(scenario), idle(scenario)
            savings.append(
                (1 - ours.mean_s / theirs.mean_s, ours.percentile_s(99) / theirs.percentile_s(99))
            )
        saving, p99 = np.mean(savings, axis=0)
        figure = saving if load == 0.01 else figure
        rows.append([f"{load:.0%}", f"{saving:.1%} lower", f"{p99:.3f}"])
    return Report(
        "3. Fan-out (groups of mean 8 within 2 ms), GPU-like: `auto` beside `idle`",
        ["load", "mean latency", "p99 ratio"],
        rows,
        [Bar("mean ≥ 18 % lower at 1 % load", f"{figure:.1%}", figure >= 0.18)],
    )


def superlinear(quick: bool) -> Report:
    requests = 5_000 if quick else 20_000
    profile, max_rows = PowerProfile(0.0, 40e-3, 1.1), 32
    capacity = capacity_rps(batch_seconds(profile, max_rows))
    rows, worst, largest = [], 0.0, 0
    for load in (0.1, 0.5, 0.9):
        arrivals = poisson(requests, capacity * load, np.random.default_rng(2))
        scenario = Scenario.build(arrivals, profile, max_rows=max_rows, max_queue=UNBOUNDED)
        ours = auto(scenario)
        fixed, best = oracle(scenario)
        ratio = ours.percentile_s(99) / best.percentile_s(99)
        worst, largest = max(worst, ratio), max(largest, ours.largest_batch)
        rows.append([f"{load:.0%}", ours.largest_batch, f"{ratio:.3f}", str(fixed)])
    return Report(
        "4. A model whose cost per item grows with the batch: l(b) = 40·b^1.1 ms",
        ["load", "largest batch", "p99 ÷ oracle", "oracle"],
        rows,
        [
            Bar("served singly", f"largest batch {largest}", largest == 1),
            Bar("matches the oracle", f"{worst:.3f}", worst <= 1.0 + 1e-9),
        ],
    )


def overload(quick: bool) -> Report:
    requests = 15_000 if quick else 60_000
    rows = []
    least = {0.0: 1.0, 0.1: 1.0}
    for name, profile, max_rows in (GPU, CPU):
        seconds = batch_seconds(profile, max_rows)
        capacity, slo_s = capacity_rps(seconds), 4 * seconds[max_rows]
        for noise in (0.0, 0.1):
            cells = []
            for load in (1.2, 2.0, 3.0):
                arrivals = poisson(requests, capacity * load, np.random.default_rng(4))
                scenario = Scenario.build(
                    arrivals, profile, max_rows=max_rows, noise_cv=noise, slo_s=slo_s
                )
                share = auto(scenario).goodput_rps(slo_s) / capacity
                least[noise] = min(least[noise], share)
                cells.append(f"{share:.3f}")
            rows.append([name, f"{noise:.0%}", *cells])
    shed = _first_burst()
    return Report(
        "5. Overload with an SLO of 4·l(B): goodput ÷ capacity",
        ["model", "noise", "1.2×", "2×", "3×"],
        rows,
        [
            Bar("≥ 97 % without noise", f"{least[0.0]:.1%}", least[0.0] >= 0.97),
            Bar("≥ 95 % with 10 % noise", f"{least[0.1]:.1%}", least[0.1] >= 0.95),
            Bar(
                "a quiet model's first burst: nothing shed that could be in time", shed[0], shed[1]
            ),
        ],
    )


def _first_burst() -> tuple[str, bool]:
    """400 at once on a model that has only seen single items: how many fit, how many are served?"""
    served_all = True
    told = []
    for name, profile, max_rows in (GPU, CPU):
        seconds = batch_seconds(profile, max_rows)
        slo_s = 4 * seconds[max_rows]
        quiet = np.arange(50) * 0.5
        arrivals = np.concatenate([quiet, np.full(400, 50.0)])
        scenario = Scenario.build(arrivals, profile, max_rows=max_rows, slo_s=slo_s)
        served = auto(scenario).within(slo_s) - len(quiet)
        possible = min(400, 4 * max_rows)  # four full batches, one after the other
        served_all = served_all and served >= possible
        told.append(f"{name} {served} of {possible}")
    return ", ".join(told), served_all


def changing_load(quick: bool) -> Report:
    rows, worst_p99, worst_slo = [], 0.0, 0.0
    for profile in (GPU, CPU):
        for label, arrivals in _changing(profile, quick):
            row, p99, slo = _against_fixed(profile, label, arrivals)
            rows.append(row)
            worst_p99, worst_slo = max(worst_p99, p99), max(worst_slo, slo)
    picture = _plot_adaptation()
    notes = [f"the caps over time: {picture}"]
    if not TRACES.exists():
        notes.append("the Azure traces are absent here: only the generated steps were run")
    return Report(
        "6. Changing load: `auto` beside the best single fixed setting of the grid",
        ["model", "load", "auto p99", "best fixed p99", "ratio", "in SLO: auto", "best fixed"],
        rows,
        [
            Bar("p99 never worse than 1.05×", f"{worst_p99:.3f}", worst_p99 <= 1.05),
            Bar("SLO attainment never worse than 1.05×", f"{worst_slo:.3f}", worst_slo <= 1.05),
        ],
        notes,
    )


def _changing(profile: tuple[str, PowerProfile, int], quick: bool) -> list[tuple[str, Times]]:
    capacity = capacity_rps(batch_seconds(profile[1], profile[2]))
    requests = 15_000 if quick else 60_000
    loads = [
        (
            f"20 ↔ 90 % every 2 s, seed {seed}",
            step(requests, capacity * 0.55, np.random.default_rng(seed)),
        )
        for seed in range(3)
    ]
    for name in ("conv", "code"):
        path = TRACES / f"AzureLLMInferenceTrace_{name}.csv"
        if path.exists():
            trace = read_trace(path)
            loads += [
                (f"Azure {name} at {load:.0%}", replay(trace, len(trace), capacity * load))
                for load in (0.1, 0.2, 0.5, 0.7)
            ]
    return loads


def _against_fixed(
    model: tuple[str, PowerProfile, int], label: str, arrivals: Times
) -> tuple[list[object], float, float]:
    name, profile, max_rows = model
    plain = Scenario.build(arrivals, profile, max_rows=max_rows, max_queue=UNBOUNDED)
    slo_s = 0.025 if model is GPU else 0.075
    with_slo = Scenario.build(
        arrivals, profile, max_rows=max_rows, max_queue=UNBOUNDED, slo_s=slo_s
    )
    grid = score_grid(plain)
    best_s = grid[best_of(grid)].p99_s
    p99_s = auto(plain).percentile_s(99)
    ours = auto(with_slo).within(slo_s) / len(arrivals)
    theirs = max(_attained(arrivals, plain, fixed, slo_s) for fixed in grid)
    row = [
        name,
        label,
        f"{p99_s * 1e3:.1f} ms",
        f"{best_s * 1e3:.1f} ms",
        f"{p99_s / best_s:.3f}",
        f"{ours:.2%}",
        f"{theirs:.2%}",
    ]
    return row, p99_s / best_s, theirs / ours


def _attained(arrivals: Times, scenario: Scenario, fixed: tuple[float, int], slo_s: float) -> float:
    outcome = replay_window(arrivals, scenario.seconds_by_rows, fixed)
    return float((outcome.latencies_s <= slo_s + 1e-9).mean()) if outcome else 0.0


def _plot_adaptation() -> str:
    """20 % and 90 % by turns, fan-out at 5 %, a moment over capacity: the caps over time."""
    capacity = capacity_rps(batch_seconds(CPU[1], CPU[2]))
    rng = np.random.default_rng(0)
    phases = [
        _for_seconds(poisson, 2.0, 0.2 * capacity, rng),
        _for_seconds(poisson, 2.0, 0.9 * capacity, rng),
        _for_seconds(fan_out, 2.0, 0.05 * capacity, rng),
        _for_seconds(poisson, 1.0, 1.15 * capacity, rng),
        _for_seconds(fan_out, 2.0, 0.05 * capacity, rng),
        _for_seconds(poisson, 2.0, 0.9 * capacity, rng),
    ]
    starts = np.cumsum([0.0, 2.0, 2.0, 2.0, 1.0, 2.0])
    arrivals = np.concatenate([s + phase for s, phase in zip(starts, phases, strict=True)])
    scenario = Scenario.build(arrivals, CPU[1], max_rows=CPU[2], max_queue=UNBOUNDED)
    path = IMAGES / "adapting.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    title = "auto, CPU-like: 20 %, 90 %, fan-out at 5 %, 115 %, fan-out at 5 %, 90 % of capacity"
    plot_adaptation(auto(scenario, record=True), path, title=title)
    return str(path.relative_to(IMAGES.parents[1]))


def _for_seconds(law: OpenLoop, seconds: float, rate_rps: float, rng: np.random.Generator) -> Times:
    times = law(int(2 * rate_rps * seconds) + 50, rate_rps, rng)
    return times[times < seconds]


BENCHMARKS: dict[str, Callable[[bool], Report]] = {
    "zero-config": zero_configuration,
    "closed-loop": closed_loops,
    "fan-out": fan_outs,
    "superlinear": superlinear,
    "overload": overload,
    "changing-load": changing_load,
}
