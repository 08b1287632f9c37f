"""Three times what a model can carry, and a neighbour who floods: over HTTP, in real time."""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

from benchmarks.load import AskedRequest, Generator, Load
from benchmarks.report import Bar, Benchmark, Report
from benchmarks.serving import exchanges_for, serving

SLO_S = 0.2
CAPACITY = 32 / (0.020 + 0.0005 * 32)  # rows a second, in full batches
NORMAL = 0.5  # of the capacity
OVERLOAD = 3.0
VICTIMS = (0.3, 0.45)  # of the capacity: half of it would be the whole share


def http_overload(quick: bool) -> Report:
    seconds, rounds = (4.0, 1) if quick else (10.0, 3)
    with serving("headway-heavy") as server, server.loaded(exchanges_for("zero")) as generator:
        generator.poisson(NORMAL * CAPACITY, 2.0)
        turns = [_turn(generator, seconds, seed=10 * number) for number in range(rounds)]
        generator.last_failure = ""  # refusals are what was asked for
    goodput = statistics.median(turn.goodput for turn in turns)
    refusals_ms = statistics.median(turn.refusals_ms for turn in turns)
    calm_s = max(turn.calm_s for turn in turns)
    ratios = [
        statistics.median(turn.ratios[place] for turn in turns) for place in range(len(VICTIMS))
    ]
    middle = sorted(turns, key=lambda turn: turn.refusals_ms)[rounds // 2]
    return Report(
        "O1. Overload: 20 ms + 0.5 ms a row, 32 rows, SLO 200 ms "
        f"(capacity {CAPACITY:.0f}/s), over HTTP",
        ["phase", "offered", "answered", "refused", "p50 / p99 of answers"],
        [
            _row("normal", NORMAL, middle.before),
            _row("overload", OVERLOAD, middle.over),
            _row("normal again", NORMAL, middle.after),
            *(
                _row(name, share, load)
                for share, loads in zip(VICTIMS, middle.beside, strict=True)
                for name, load in zip(
                    ["a tenant alone", "beside one that floods (3×)"], loads, strict=True
                )
            ),
        ],
        [
            Bar(
                "goodput ≥ 95 % of capacity",
                _spread([turn.goodput * 100 for turn in turns], " %"),
                goodput >= 0.95,
            ),
            Bar(
                "refusals within 5 ms at p99",
                _spread([turn.refusals_ms for turn in turns], " ms"),
                refusals_ms <= 5.0,
            ),
            Bar("normal again within 1 s", f"{calm_s:.2f} s", calm_s <= 1.0),
            *(
                Bar(
                    f"at {share:.0%} of the capacity, a tenant's p99 beside one that floods "
                    "≤ 1.3× its p99 alone",
                    _spread([turn.ratios[place] for turn in turns], "×", digits=2),
                    ratios[place] <= 1.3,
                )
                for place, share in enumerate(VICTIMS)
            ),
        ],
        [
            f"median of {rounds} rounds, least to most in brackets; {seconds:g} s of overload in "
            "each; the table is of the round in the middle",
            "latency counts from the intended moment of sending; the hypervisor took "
            + _spread([turn.stolen * 100 for turn in turns], " %")
            + " of a core meanwhile, and a request that arrives in such a pause waits until it "
            "ends",
        ],
    )


@dataclass(frozen=True, slots=True)
class _Turn:
    before: Load
    over: Load
    after: Load
    beside: list[tuple[Load, Load]]
    stolen: float  # of a core's time, while it was overloaded: the hypervisor ran others

    @property
    def goodput(self) -> float:
        """What was answered within the SLO, of what could have been at all."""
        in_time = (self.over.latencies_s[self.over.is_ok] <= SLO_S).sum()
        return float(in_time) / self.over.seconds / CAPACITY

    @property
    def refusals_ms(self) -> float:
        return _p99_ms(self.over.latencies_s[~self.over.is_ok])

    @property
    def calm_s(self) -> float:
        return _calm_after_s(self.after, 1.3 * _p99_ms(self.before.latencies_s) / 1e3)

    @property
    def ratios(self) -> list[float]:
        return [
            _p99_ms(load.latencies_s[load.is_ok]) / _p99_ms(alone.latencies_s)
            for alone, load in self.beside
        ]


def _turn(generator: Generator, seconds: float, *, seed: int) -> _Turn:
    before = generator.poisson(NORMAL * CAPACITY, seconds / 2, seed=seed + 2)
    stolen_s, started = _stolen_s(), time.perf_counter()
    over = generator.poisson(OVERLOAD * CAPACITY, seconds, seed=seed + 3)
    stolen = (_stolen_s() - stolen_s) / (time.perf_counter() - started)
    after = generator.poisson(NORMAL * CAPACITY, seconds / 2, seed=seed + 4)
    beside = [_beside(generator, share, seconds, seed=seed + 5) for share in VICTIMS]
    return _Turn(before, over, after, beside, stolen)


def _stolen_s() -> float:
    """Of all cores so far. Where it is not known, none."""
    try:
        ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]
    except (OSError, IndexError):
        return 0.0
    return int(ticks) / os.sysconf("SC_CLK_TCK")


def _spread(values: Sequence[float], unit: str, *, digits: int = 1) -> str:
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f}{unit} ({least:.{digits}f}–{most:.{digits}f})"


def _beside(generator: Generator, share: float, seconds: float, *, seed: int) -> tuple[Load, Load]:
    """A tenant that asks for so much, alone and beside one that floods."""
    victim, flood = _of_tenant("victim"), _of_tenant("flood")
    generator.mixed([(share * CAPACITY, victim)], 1.0)
    alone = generator.mixed([(share * CAPACITY, victim)], seconds, seed=seed)[0]
    streams = [(share * CAPACITY, victim), (OVERLOAD * CAPACITY, flood)]
    return alone, generator.mixed(streams, seconds, seed=seed)[0]


def _of_tenant(name: str) -> list[AskedRequest]:
    header = f"Headway-Tenant: {name}\r\n".encode()
    return [
        AskedRequest(each.request.replace(b"Host:", header + b"Host:", 1), each.mark)
        for each in exchanges_for("zero")
    ]


def _p99_ms(latencies_s: "numpy.ndarray[tuple[int], numpy.dtype[numpy.float64]]") -> float:
    return float(numpy.percentile(latencies_s, 99)) * 1e3 if len(latencies_s) else 0.0


def _calm_after_s(load: Load, most_s: float) -> float:
    """When the last request was sent that was refused, or slower than it should be."""
    sent_at = load.finished_at - load.latencies_s
    odd = sent_at[~load.is_ok | (load.latencies_s > most_s)]
    # One in a hundred is slower than its p99 by definition: the last of a run of odd ones counts.
    windows = numpy.arange(0.0, load.seconds, 0.25)
    busy = [at for at in windows if _share(sent_at, odd, at) > 0.1]
    return float(max(busy)) + 0.25 if busy else 0.0


def _share(sent_at: Sequence[float], odd: Sequence[float], at: float) -> float:
    everyone = ((numpy.asarray(sent_at) >= at) & (numpy.asarray(sent_at) < at + 0.25)).sum()
    return float(((odd >= at) & (odd < at + 0.25)).sum() / everyone) if everyone else 0.0  # type: ignore[operator]


def _row(name: str, share: float, load: Load) -> list[object]:
    ok = load.latencies_s[load.is_ok]
    p50 = float(numpy.percentile(ok, 50)) * 1e3 if len(ok) else 0.0
    return [
        name,
        f"{share * CAPACITY:.0f}/s",
        f"{len(ok) / load.seconds:.0f}/s",
        f"{load.failed / load.seconds:.0f}/s",
        f"{p50:.0f} / {_p99_ms(ok):.0f} ms",
    ]


BENCHMARKS: dict[str, Benchmark] = {"http-overload": http_overload}
