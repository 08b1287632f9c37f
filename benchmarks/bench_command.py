"""`headway bench` itself: is it right, is it honest, is it fast, and does it find the right rate?

Its latencies are held against servers whose law is known (`known_law.py`): not with a formula for
the mean of infinitely many requests, but with what exactly these requests, due at these moments,
must see.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import known_law
from benchmarks.report import Bar, Benchmark, Report
from headway.lab.workload import Times
from headway.loadgen.connection import opener
from headway.loadgen.driver import Driver
from headway.loadgen.exchange import Address, post
from headway.loadgen.statistics import Summary, Window, open_summary, quantile
from headway.loadgen.sweep import ArrivalLaw

_LAWS = {"M/D/1, 20 ms": (20.0, 0.0, 1), "batches: 20 ms + 0.5 ms a row, ≤ 16": (20.0, 0.5, 16)}
_ENOUGH = 700  # requests, for a p99 with its interval
_LOADS = (0.1, 0.3, 0.5, 0.7, 0.9)
_SLEEPING = (5.0, 0.05, 64)  # the sleeping model of the other benchmarks
_OBJECTIVE, _LIMIT_S = "p99<=15ms", 0.015
_STARVED_RUNS, _BURNERS = 3, 4


def bench(url: str, *arguments: object) -> tuple[int, Any]:
    """The command's exit code and what it says."""
    command = [sys.executable, "-m", "headway", "bench", url, "--data", "1", "--json"]
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def law(quick: bool) -> Report:
    """Measured percentiles beside those of the law, at the same moments of arrival."""
    rows, worst, notes = [], 0.0, []
    for name, (alpha_ms, beta_ms, cap) in _LAWS.items():
        capacity = cap / (alpha_ms + beta_ms * cap) * 1e3
        with known_law.running(alpha_ms, beta_ms, cap) as url:
            for load in _LOADS:
                # A p99 of fewer requests would be the chance of one or two of them.
                seconds = 2.0 if quick else max(6.0, _ENOUGH / (load * capacity))
                due = ArrivalLaw("poisson").due(load * capacity, seconds + 1.0, 1)
                summary = _measured(url, due, seconds)
                found = [summary.percentiles_s[each] for each in (50.0, 90.0, 99.0)]
                measured = [summary.mean_s, *(each.value for each in found)]
                faults = "; ".join(summary.faults)
                counted = due >= 1.0
                exact = np.sort(
                    known_law.latencies(due, alpha_ms / 1e3, beta_ms / 1e3, cap)[counted]
                )
                true = [float(exact.mean()), *(quantile(exact, each) for each in (50, 90, 99))]
                ratios = [one / other for one, other in zip(measured, true, strict=True)]
                worst = max(worst, *(abs(each - 1) for each in ratios))
                cells = [
                    f"{one * 1e3:.2f} / {other * 1e3:.2f}"
                    for one, other in zip(measured, true, strict=True)
                ]
                cells.append(f"{found[2].low * 1e3:.1f} to {found[2].high * 1e3:.1f}")
                rows.append([name, f"{load:.0%}", *cells, f"{max(ratios):.3f}", faults or "valid"])
    row, omitted = _coordinated_omission(quick)
    rows.append(row)
    invalid = [_starved() for _ in range(_STARVED_RUNS)]
    notes.append(f"starved: {_BURNERS} busy processes on the only core that bench may use")
    return Report(
        "headway bench beside the law: ms measured / ms by the law",
        ["law", "load", "mean", "p50", "p90", "p99", "95 % of the p99", "worst ratio", "said"],
        rows,
        [
            Bar("within 3 % of the law from 10 to 90 % load", f"{worst:.2%}", worst <= 0.03),
            Bar("500 ms, 10/s, one in flight: the true p99", omitted[0], omitted[1] <= 0.03),
            Bar("starved of CPU: exit 3", str(invalid), invalid == [3] * _STARVED_RUNS),
        ],
        notes,
    )


def _measured(url: str, due: Times, seconds: float) -> Summary:
    address = Address.parse(url)
    with Driver(opener(address), [post(address, "", b"1")]) as driver:
        return open_summary(driver.open_loop(due), Window(1.0, 1.0 + seconds))


def _coordinated_omission(quick: bool) -> tuple[list[object], tuple[str, float]]:
    """The n-th request is due n × 100 ms from the start, and is answered n × 500 ms from it."""
    seconds = 2.0 if quick else 4.0
    with known_law.running(500, 0, 1) as url:
        load = ("--rate", 10, "--arrivals", "constant", "--max-in-flight", 1)
        _, [point] = bench(url, *load, "--seconds", seconds, "--warm-up", 0, "--timeout", 60)
    exact = np.sort(known_law.latencies(ArrivalLaw("constant").due(10, seconds, 0), 0.5, 0.0, 1))
    true, found = quantile(exact, 99), point["latency_ms"]["p99"]["value"] / 1e3
    text = f"{found * 1e3:.0f} / {true * 1e3:.0f}"
    row = [
        "500 ms, one in flight",
        "10/s",
        "",
        "",
        "",
        text,
        "",
        f"{found / true:.3f}",
        "saturated",
    ]
    return row, (text, abs(found / true - 1))


def _starved() -> int:
    """The exit code of bench on a core that others use too."""
    cores = sorted(os.sched_getaffinity(0))
    with known_law.running(5, 0.05, 64) as url:
        os.sched_setaffinity(0, cores[:1])
        burning = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(_BURNERS)
        ]
        try:
            code, _ = bench(url, "--rate", 200, "--seconds", 2)
        finally:
            for each in burning:
                each.kill()
                each.wait()
            os.sched_setaffinity(0, cores)
    return code


def speed(quick: bool) -> Report:
    """Requests that one core of the generator sends and checks."""
    seconds = 1.0 if quick else 4.0
    rows, best = [], 0.0
    body = (
        b'{"id":"bench-0","inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
    )
    with known_law.running("at-once") as url:
        address = Address.parse(url)
        for connections in (8, 32, 64):
            with Driver(opener(address), [post(address, "", body, b'"bench-0"')]) as driver:
                used, began = time.process_time(), time.perf_counter()
                samples = driver.closed_loop(connections, seconds)
                used, took = time.process_time() - used, time.perf_counter() - began
            answered, failed = int(samples.is_ok.sum()), sum(samples.errors.values())
            best = max(best, answered / used)
            rows.append([connections, f"{answered / took:,.0f}", f"{answered / used:,.0f}", failed])
    tokens, row = _token_speed(seconds)
    rows.append(row)
    return Report(
        "headway bench: v2 requests over HTTP, sent and checked by one core",
        ["connections", "answers a second", "answers a second of its CPU", "failed"],
        rows,
        [
            Bar("≥ 30,000 requests/s on one core", f"{best:,.0f}", best >= 30_000),
            Bar("≥ 50,000 streamed tokens/s on one core", f"{tokens:,.0f}", tokens >= 50_000),
        ],
        ["the server, which answers at once, runs on the other core"],
    )


def _token_speed(seconds: float) -> tuple[float, list[object]]:
    """Tokens that come one by one, in packets of their own, on 32 streams."""
    with known_law.running("tokens", 100) as url:
        address = Address.parse(url)
        asked = post(address, "", b"{}", is_stream=True)
        with Driver(opener(address), [asked]) as driver:
            used, began = time.process_time(), time.perf_counter()
            samples = driver.closed_loop(32, seconds)
            used, took = time.process_time() - used, time.perf_counter() - began
    assert samples.tokens is not None
    count = float(samples.tokens.count.sum())
    cells = [f"{count / took:,.0f}", f"{count / used:,.0f}", sum(samples.errors.values())]
    return count / used, ["32 streams of tokens", *cells]


def find(quick: bool) -> Report:
    """--find beside a fine sweep of the same server, half of it before and half after, and beside
    the law itself, which knows nothing of the time that sending and reading take."""
    alpha_ms, beta_ms, cap = _SLEEPING
    exact = _exact_rate(alpha_ms / 1e3, beta_ms / 1e3, cap)
    seconds = 0.5 if quick else 1.0
    with known_law.running(*_SLEEPING) as url:
        sweep = _swept(url, exact, seconds, 1)
        found, slowest = [], 0.0
        for run in range(1 if quick else 3):
            began = time.perf_counter()
            code, told = bench(
                url, "--find", _OBJECTIVE, "--seconds", 1, "--warm-up", 0.3, "--seed", 100 * run
            )
            took = time.perf_counter() - began
            slowest = max(slowest, took)
            rate = told["search"]["pass_rps"] or 0.0
            found.append((rate, len(told["probes"]), f"{took:.0f} s", code))
        sweep += _swept(url, exact, seconds, 2)
    true = _crossing(np.log(np.array(sweep)), math.log(_LIMIT_S))
    worst = max(abs(rate / true - 1) for rate, *_ in found)
    return Report(
        f"headway bench --find {_OBJECTIVE}, 5 ms + 0.05 ms a row: a sweep says {true:,.0f}/s",
        ["run", "found", "÷ sweep", "÷ law", "probes", "took", "exit"],
        [
            [run, f"{rate:,.0f}", *(f"{rate / of:.3f}" for of in (true, exact)), *more]
            for run, (rate, *more) in enumerate(found)
        ],
        [
            Bar("within 3 % of a fine sweep, each time", f"{worst:.2%}", worst <= 0.03),
            Bar("≤ 60 s", f"{slowest:.0f} s", slowest <= 60),
        ],
        [
            f"the sweep: {len(sweep)} points of {seconds} s from 92 to 104 % of the law's rate, "
            f"and a line through their p99 (Theil–Sen); the law itself: {exact:,.0f}/s"
        ],
    )


def _swept(url: str, rate: float, seconds: float, seed: int) -> list[tuple[float, float]]:
    """Rates around this one, and the p99 of each."""
    rates = ",".join(f"{rate * share:.0f}" for share in np.arange(0.92, 1.041, 0.02))
    _, points = bench(url, "--rate", rates, "--seconds", seconds, "--warm-up", 0.3, "--seed", seed)
    return [
        (each["rate_rps"], each["latency_ms"]["p99"]["value"] / 1e3)
        for each in points
        if not each["saturated"]
    ]


def _crossing(points: NDArray[np.float64], level: float) -> float:
    """Where a line reaches the level: its slope is the median of those between all pairs of points
    (Theil and Sen), so that a disturbed point does not turn it."""
    rates, p99s = points.T
    first, second = np.triu_indices(len(points), 1)
    apart = np.abs(rates[second] - rates[first]) > 1e-6
    slope = np.median(
        ((p99s[second] - p99s[first]) / (rates[second] - rates[first] + 1e-12))[apart]
    )
    return float(np.exp((level - np.median(p99s - slope * rates)) / slope))


def _exact_rate(alpha_s: float, beta_s: float, cap: int) -> float:
    capacity = cap / (alpha_s + beta_s * cap)
    good = 0.0
    for rate in np.geomspace(0.02 * capacity, capacity, 400)[::-1]:
        p99 = statistics.median(
            quantile(np.sort(known_law.latencies(_poisson(rate, seed), alpha_s, beta_s, cap)), 99)
            for seed in range(3)
        )
        if p99 <= _LIMIT_S:
            good = float(rate)
            break
    return good


def _poisson(rate: float, seed: int) -> Times:
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.exponential(1 / rate, 100_000))


BENCHMARKS: dict[str, Benchmark] = {"bench-law": law, "bench-speed": speed, "bench-find": find}
