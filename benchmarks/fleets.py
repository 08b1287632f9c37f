"""Several replicas in virtual time: routers compared, and an autoscaler beside an oracle."""

import itertools
import math
from collections.abc import Callable

import numpy as np

from benchmarks.grid import TRACES
from benchmarks.report import Bar, Benchmark, Report
from headway.core.policy import Firing
from headway.core.routing import RoutingRule
from headway.lab.fleet import Autoscale, Fleet, FleetOutcome, simulate_fleet
from headway.lab.profiles import PowerProfile, TokenProfile, batch_seconds, capacity_rps
from headway.lab.simulate import Lengths, Scenario
from headway.lab.traces import read_trace
from headway.lab.workload import Times, poisson

GPU, CPU = PowerProfile(0.005, 0.00005), PowerProfile(0.001, 0.0008)
ALIKE, ONE_SLOW = (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 3.0)
# Name, model, most rows, load, sigma of lengths, replicas.
WORLDS = (
    ("GPU-like, 5 %", GPU, 64, 0.05, 0.0, ALIKE),
    ("GPU-like, 20 %", GPU, 64, 0.2, 0.0, ALIKE),
    ("GPU-like, 80 %", GPU, 64, 0.8, 0.0, ALIKE),
    ("CPU-like, 50 %", CPU, 32, 0.5, 0.0, ALIKE),
    ("CPU-like, lengths with σ 1.2, 50 %", CPU, 32, 0.5, 1.2, ALIKE),
    ("GPU-like, 50 %, one replica 3× slower", GPU, 64, 0.5, 0.0, ONE_SLOW),
)
BLIND = (RoutingRule.ROUND_ROBIN, RoutingRule.RANDOM)
LUCK = 1.005  # of a sample: equal means differ by so much


def routes(quick: bool) -> Report:
    requests = 6_000 if quick else 24_000
    rows, worst, worst_tail, slow = [], 0.0, 0.0, math.inf
    for name, model, most, load, sigma, speeds in WORLDS:
        scenario = _scenario(model, most, load, sigma, requests)
        found = {route: _played(scenario, Fleet(speeds, route)) for route in RoutingRule}
        means = {route: float(each.answered_s.mean()) for route, each in found.items()}
        p99s = {route: each.percentile_s(99) for route, each in found.items()}
        rows.append([name, *(f"{means[r] * 1e3:.1f} / {p99s[r] * 1e3:.1f}" for r in RoutingRule)])
        worst = max(worst, means[RoutingRule.FINISH] / min(means[each] for each in BLIND))
        worst_tail = max(worst_tail, p99s[RoutingRule.FINISH] / min(p99s[each] for each in BLIND))
        if speeds is ONE_SLOW:
            slow = min(p99s[each] for each in BLIND) / p99s[RoutingRule.FINISH]
    return Report(
        "7. Four replicas behind a router: mean / p99, ms",
        ["world", *(route.value for route in RoutingRule)],
        rows,
        [
            Bar(
                "`finish` never worse than turns and chance (mean)", f"{worst:.3f}×", worst <= LUCK
            ),
            Bar("nor at p99", f"{worst_tail:.3f}×", worst_tail <= LUCK),
            Bar("one replica 3× slower: p99 ≥ 2× better", f"{slow:.1f}×", slow >= 2.0),
        ],
        [
            f"{requests:,} Poisson requests; load as a share of four equal replicas' capacity",
            "one row as a command: `headway simulate --arrivals poisson --load 0.5 "
            f"--latency 5,0.05 --replicas 1,1,1,3 --requests {requests}`",
        ],
    )


def _scenario(model: PowerProfile, most: int, load: float, sigma: float, requests: int) -> Scenario:
    rate = load * len(ALIKE) * capacity_rps(batch_seconds(model, most))
    lengths = None
    if sigma:
        rng = np.random.default_rng([1, 3])
        drawn = 100 * np.exp(sigma * rng.standard_normal(requests) - sigma**2 / 2)
        sizes = np.maximum(1, np.rint(drawn)).astype(np.int64)
        sized = TokenProfile(PowerProfile(model.alpha_s, 0.0), model.beta_s / 100)
        lengths = Lengths(sizes, sized)
    arrivals = poisson(requests, rate, np.random.default_rng([1, 0]))
    return Scenario.build(arrivals, model, max_rows=most, lengths=lengths)


def _played(scenario: Scenario, fleet: Fleet) -> FleetOutcome:
    return simulate_fleet(scenario, scenario.policy(Firing.AUTO), fleet)


# ---- the number of replicas

SLOW, MOST = PowerProfile(0.3, 0.12), 32
SLO_S = 6.0
FULL_RPS = capacity_rps(batch_seconds(SLOW, MOST))
HOUR_S = 3600.0


def autoscaling(quick: bool) -> Report:
    span_s = HOUR_S / 4 if quick else HOUR_S
    most_rps = _most_rps()
    rows, worst_share, worst_p99, shortest = [], 0.0, 0.0, math.inf
    for name, arrivals in _traces(span_s).items():
        first = math.ceil(np.count_nonzero(arrivals < 60) / 60 / FULL_RPS / 0.7)
        scale = Autoscale(1, 40, target_wait_s=SLOW.seconds(MOST))
        fleet = Fleet((1.0,) * first, RoutingRule.TWO_CHOICES, cold_start_s=30.0, autoscale=scale)
        outcome = _played(_world(arrivals), fleet)
        by_minute = np.bincount((arrivals // 60).astype(int))
        oracle_s = 60.0 * float(np.maximum(1, np.ceil(by_minute / 60 / most_rps)).sum())
        share, p99_s = outcome.replica_seconds / oracle_s, outcome.percentile_s(99)
        gap_s = _shortest_return_s(outcome)
        counts = [count for _, count in outcome.replicas]
        rows.append(
            [
                *(name, f"{p99_s:.2f} s", f"{share:.3f}", f"{min(counts)} to {max(counts)}"),
                *(outcome.turns, "never" if gap_s == math.inf else f"{gap_s:.0f} s"),
            ]
        )
        worst_share, worst_p99 = max(worst_share, share), max(worst_p99, p99_s)
        shortest = min(shortest, gap_s)
    notes = [
        "300 ms + 120 ms a row, 32 rows; a look every 15 s at the work of a minute, 30 s to start, "
        "down after 2 minutes; two choices; replicas = max(work ÷ 0.7, queued seconds ÷ the time "
        "of a full batch)",
        f"the oracle knows each minute's rate: ⌈rate ÷ {most_rps:.2f}/s⌉, the most that one "
        f"replica answers with a p99 of {SLO_S:g} s",
        "a load that steps up 3.7 times at once is beyond any scaler without spare replicas: until "
        "the new ones have started (30 s), p99 is what the queue is",
    ]
    if not TRACES.exists():
        notes.append("the Azure trace is absent here")
    return Report(
        "8. Replicas that follow the load, beside an oracle",
        ["trace", "p99", "replica-seconds ÷ oracle", "replicas", "turns", "soonest return"],
        rows,
        [
            Bar(f"p99 ≤ SLO ({SLO_S:g} s)", f"{worst_p99:.2f} s", worst_p99 <= SLO_S),
            Bar("≤ 1.3× the oracle", f"{worst_share:.3f}×", worst_share <= 1.3),
            Bar(
                "no flapping: none comes within a minute after one has gone",
                "never" if shortest == math.inf else f"{shortest:.0f} s",
                shortest >= 60.0,
            ),
        ],
        notes,
    )


def _world(arrivals: Times) -> Scenario:
    return Scenario.build(arrivals, SLOW, max_rows=MOST, max_queue=100_000)


def _most_rps() -> float:
    """The highest rate at which one replica's p99 is within the SLO."""
    low, high = 0.3 * FULL_RPS, FULL_RPS
    for _ in range(6):
        rate = (low + high) / 2
        world = _world(poisson(5000, rate, np.random.default_rng(3)))
        if _played(world, Fleet((1.0,), RoutingRule.FINISH)).percentile_s(99) <= SLO_S:
            low = rate
        else:
            high = rate
    return low


def _traces(span_s: float) -> dict[str, Times]:
    def day(at: float) -> float:
        return float(35 + 28 * np.sin(2 * np.pi * at / span_s - np.pi / 2))

    def ramp(at: float) -> float:
        at *= HOUR_S / span_s
        return 12 + 48 * min(1, max(0, (at - 600) / 600)) * min(1, max(0, (3000 - at) / 600))

    found = {"day: 7/s to 63/s and back": _at(day, span_s)}
    found["ramp: 12/s, 60/s, 12/s"] = _at(ramp, span_s)
    path = TRACES / "AzureLLMInferenceTrace_conv.csv"
    if path.exists():
        trace, rng = read_trace(path), np.random.default_rng(1)
        copies = [trace + rng.normal(0.0, 5.0, len(trace)) for _ in range(6)]
        merged = np.sort(np.clip(np.concatenate(copies), 0.0, None))
        found["Azure conversations, six times as many"] = merged[merged < span_s]
    return found


def _at(rate_of: Callable[[float], float], span_s: float) -> Times:
    rng, seconds = np.random.default_rng(2), np.arange(0.0, span_s, 1.0)
    counts = rng.poisson([rate_of(each) for each in seconds])
    return np.sort(np.repeat(seconds, counts) + rng.random(counts.sum()))


def _shortest_return_s(outcome: FleetOutcome) -> float:
    """The shortest time between a replica's going and the next one's coming."""
    shortest, gone_at = math.inf, -math.inf
    for (_, before), (at, after) in itertools.pairwise(outcome.replicas):
        if after < before:
            gone_at = at
        else:
            shortest = min(shortest, at - gone_at)
    return shortest


BENCHMARKS: dict[str, Benchmark] = {"routes": routes, "autoscaling": autoscaling}
