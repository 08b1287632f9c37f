"""Items of different lengths: who goes together, what that saves, and what the plan costs."""

import time
from collections.abc import Callable

import numpy as np

from benchmarks.report import Bar, Report
from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable
from headway.core.items import Item, Run
from headway.core.policy import Compose, Firing, Policy
from headway.lab.profiles import PowerProfile, TokenProfile, packed_capacity_rps
from headway.lab.simulate import Lengths, Outcome, Scenario, simulate
from headway.lab.workload import lognormal_sizes, poisson

ALPHA = PowerProfile(4e-3, 0.0)
MODEL = TokenProfile(ALPHA, 4e-6)  # 4 ms for a batch, 0.004 ms for each of its padded tokens
MAX_ROWS, MAX_COST, MAX_QUEUE = 64, 16_384, 512
PLANNED = 1000  # items


def composing(quick: bool) -> Report:
    requests = 10_000 if quick else 100_000
    composes = (Compose.PACKED, Compose.DP, Compose.BUCKETS, Compose.SORT, Compose.FIFO)
    rows, throughput = [], {}
    for load in (1.5, 0.85, 0.7, 0.5):
        for compose in composes:
            outcome, capacity = _played(load, requests, compose)
            rows.append([f"{load:g}", compose.value, *_cells(outcome, capacity)])
            throughput[load, compose] = outcome.throughput_rps
    calm, _ = _played(0.7, requests, Compose.DP)
    long_ratio = calm.long_p99_s / calm.percentile_s(99)
    of_packed = throughput[1.5, Compose.DP] / throughput[1.5, Compose.PACKED]
    of_fifo = throughput[1.5, Compose.DP] / throughput[1.5, Compose.FIFO]
    many, longest_s = _nobody_starves(50_000 if quick else 1_000_000)
    return Report(
        "Lengths: lognormal (median 64, σ 1, at most 512), 4 ms + 0.004 ms a padded token",
        ["load ÷ packed capacity", "compose", *_CELLS],
        rows,
        [
            Bar("overload: throughput ≥ 0.85 of packed", f"{of_packed:.3f}", of_packed >= 0.85),
            Bar("overload: ≥ 3× FIFO padding", f"{of_fifo:.2f}×", of_fifo >= 3.0),
            Bar("at 0.7: padding ≤ 15 %", f"{calm.padding_waste:.1%}", calm.padding_waste <= 0.15),
            Bar("at 0.7: p99 of the longest ≤ 1.3× p99", f"{long_ratio:.2f}×", long_ratio <= 1.3),
            Bar(
                f"nothing starves over {many:,} items",
                f"longest wait {longest_s * 1e3:.0f} ms, all answered",
                longest_s < 2.0,
            ),
        ],
        [
            f"{MAX_ROWS} rows, {MAX_COST:,} tokens, queue of {MAX_QUEUE} rows; {requests:,} "
            "requests each, of which those refused are not answered",
            "the same as a command: `headway simulate --arrivals poisson --load 0.7,1.5 "
            "--latency 4,0 --token-ms 0.004 --lengths lognormal:64,1,512 --max-batch-cost 16384 "
            "--max-queue 512 --policy auto --requests 100000 --compose dp --compose packed "
            "--compose fifo --json`",
        ],
    )


_CELLS = ["answers/s ÷ packed capacity", "padding", "mean", "p99", "p99 of the longest", "refused"]


def _cells(outcome: Outcome, capacity: float) -> list[str]:
    return [
        f"{outcome.throughput_rps / capacity:.3f}",
        f"{outcome.padding_waste:.1%}",
        f"{outcome.mean_s * 1e3:.1f} ms",
        f"{outcome.percentile_s(99) * 1e3:.0f} ms",
        f"{outcome.long_p99_s * 1e3:.0f} ms",
        f"{outcome.dropped / len(outcome.latencies_s):.1%}",
    ]


def _played(load: float, requests: int, compose: Compose) -> tuple[Outcome, float]:
    sizes = lognormal_sizes(requests, 64, 1.0, 512, np.random.default_rng([0, 3]))
    lengths = Lengths(sizes, MODEL, MAX_COST)
    capacity = packed_capacity_rps(MODEL, lengths.mean, MAX_ROWS, MAX_COST)
    scenario = Scenario.build(
        poisson(requests, capacity * load, np.random.default_rng([0, 0])),
        ALPHA,
        max_rows=MAX_ROWS,
        max_queue=MAX_QUEUE,
        lengths=lengths,
    )
    return simulate(scenario, scenario.policy(Firing.AUTO, compose=compose)), capacity


def _nobody_starves(items: int) -> tuple[int, float]:
    """Everyone is let in and answered; how long did the most patient wait?"""
    outcome, _ = _played(0.7, items, Compose.DP)
    assert outcome.dropped == 0, f"{outcome.dropped} were refused"
    return items, float(outcome.latencies_s.max())


def planning(quick: bool) -> Report:
    """How long a free worker waits for its batch, plan included."""
    repeats = 50 if quick else 300
    rows, figures = [], {}
    for waiting in (10, 100, 512, PLANNED):
        seconds = [_next_batch_s(*_busy(waiting, number)) for number in range(repeats)]
        figures[waiting] = float(np.median(seconds))
        rows.append([f"{waiting:,}", f"{np.median(seconds) * 1e6:.0f} µs"])
    return Report(
        "Planning: what a batch around the next item costs",
        ["items waiting", "plan and batch"],
        rows,
        [
            Bar(
                f"of {PLANNED:,} items < 100 µs",
                f"{figures[PLANNED] * 1e6:.0f} µs",
                figures[PLANNED] < 1e-4,
            )
        ],
        [
            f"median CPU time of {repeats} queues of lognormal lengths (median 64, σ 1), 64 rows, "
            "each the first of its scheduler",
        ],
    )


def _busy(waiting: int, seed: int) -> tuple[Scheduler, Run]:
    """A scheduler whose only worker is busy, and items that wait."""
    rng = np.random.default_rng(seed)
    scheduler = Scheduler(Policy(max_batch_cost=MAX_COST), _TABLE)
    for size in _SIZES:  # every curve is drawn once, at the start of a server's life
        scheduler.costs.planning_curve(size)
    scheduler.submit(Item(0, 0.0, 1, 64))
    first = scheduler.next_action(0.0)
    assert isinstance(first, Run)
    for number, size in enumerate(lognormal_sizes(waiting, 64, 1.0, 512, rng).tolist(), 1):
        scheduler.submit(Item(number, 0.5, 1, size))
    return scheduler, first


def _next_batch_s(scheduler: Scheduler, running: Run) -> float:
    scheduler.finish(running.batch, 1.0, ran_s=None)
    started = time.process_time()
    action = scheduler.next_action(1.0)
    seconds = time.process_time() - started
    assert isinstance(action, Run)
    return seconds


_ROWS = (1, 2, 4, 8, 16, 32, 64)
_SIZES = tuple(range(1, 513))
_TABLE = CostTable(
    rows=_ROWS,
    sizes=(8, 64, 512),
    seconds=tuple(tuple(MODEL.seconds_at(rows, size) for size in (8, 64, 512)) for rows in _ROWS),
)

BENCHMARKS: dict[str, Callable[[bool], Report]] = {"composing": composing, "planning": planning}
