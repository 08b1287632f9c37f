"""The plain JSON route beside the v2 route and beside mosec, in one run.

All servers are up for the whole run, on one core, and are loaded in turns for a second or two each:
what the machine does meanwhile, it does to all of them. Ratios are taken round by round.
"""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec

from benchmarks.load import AskedRequest, Generator, post
from benchmarks.report import Bar, Benchmark, Report
from benchmarks.serving import Running, exchanges_for, serving

CONNECTIONS = 64
TIMES_MOSEC = 1.5
TIMES_V2 = 0.9
RECORDS, ARRAYS, V2, MOSEC = "plain, records", "plain, arrays", "v2, arrays", "mosec, plain"


@dataclass(frozen=True, slots=True)
class Lane:
    """One server and what it is sent, round after round."""

    server: Running
    generator: Generator
    rates: list[float] = field(default_factory=list)
    spent_us: list[float] = field(default_factory=list)

    def load(self, seconds: float) -> int:
        """How many answers were wrong."""
        before_s = self.server.cpu_s
        load = self.generator.closed(CONNECTIONS, seconds)
        self.spent_us.append((self.server.cpu_s - before_s) / len(load.latencies_s) * 1e6)
        self.rates.append(load.per_s)
        return load.failed


def http_plain(quick: bool) -> Report:
    seconds, rounds = (1.0, 5) if quick else (1.5, 20)
    failed = 0
    with ExitStack() as stack:
        arrays = stack.enter_context(serving("headway-zero"))
        sent = {
            RECORDS: (stack.enter_context(serving("headway-records")), _records("zero")),
            ARRAYS: (arrays, _rows("zero")),
            V2: (arrays, exchanges_for("headway-zero")),
            MOSEC: (stack.enter_context(serving("mosec-records")), _records("mosec")),
        }
        lanes = {
            name: Lane(server, stack.enter_context(server.loaded(exchanges)))
            for name, (server, exchanges) in sent.items()
        }
        for lane in lanes.values():
            lane.generator.closed(CONNECTIONS, seconds)  # warm
        for _ in range(rounds):
            failed += sum(lane.load(seconds) for lane in lanes.values())
    return _report(lanes, failed, f"median of {rounds} rounds of {seconds:g} s in turns")


def _report(lanes: dict[str, Lane], failed: int, how: str) -> Report:
    rows = [
        [name, _of(lane.rates, "{:,.0f}"), f"{statistics.median(lane.spent_us):.0f}"]
        for name, lane in lanes.items()
    ]
    bars = []
    for name in (RECORDS, ARRAYS):
        for beside, asked in ((MOSEC, TIMES_MOSEC), (V2, TIMES_V2)):
            pairs = zip(lanes[name].rates, lanes[beside].rates, strict=True)
            ratios = [ours / other for ours, other in pairs]
            bars.append(
                Bar(
                    f"{name} ≥ {asked:g}× {beside}",
                    _of(ratios, "{:.2f}×"),
                    statistics.median(ratios) >= asked,
                )
            )
    bars.append(Bar("every answer its own", f"{failed} wrong", failed == 0))
    return Report(
        "S6. The plain JSON route: 16 floats in, 16 out, 64 connections (requests/s)",
        ["route", "rate", "µs of CPU a request"],
        rows,
        bars,
        [
            f"{how}; least to most in brackets; the ratios are of the same round",
            "*records*: a function over `TypedDict`s, each checked against its hints; *arrays*: a "
            "`TensorModel`; *mosec*: its own JSON, nothing checked, a wait of 5 ms; the CPU is "
            "that of all processes of a server, which share one core",
        ],
    )


def _of(values: Sequence[float], form: str) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{form.format(middle)} ({form.format(low)}–{form.format(high)})"


def _records(server: str) -> list[AskedRequest]:
    """`{"x": 16 floats}`; the last is the mark that the answer must carry."""
    path = "/inference" if server == "mosec" else f"/v1/predict/{server}"
    return [
        post(path, msgspec.json.encode({"x": values}), b"%.1f" % values[-1])
        for values in _every_values()
    ]


def _rows(model: str) -> list[AskedRequest]:
    return [
        post(f"/v1/predict/{model}", msgspec.json.encode(values), b"%.1f" % values[-1])
        for values in _every_values()
    ]


def _every_values() -> list[list[float]]:
    return [
        [number + 0.25 * index for index in range(15)] + [100_000.5 + number]
        for number in range(997)
    ]


BENCHMARKS: dict[str, Benchmark] = {"http-plain": http_plain}
