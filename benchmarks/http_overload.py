"""Three times what a model can carry, and a neighbour who floods: over HTTP, in real time."""

from collections.abc import Sequence

import numpy

from benchmarks.load import Exchange, Generator, Load
from benchmarks.report import Bar, Benchmark, Report
from benchmarks.serving import exchanges_for, serving

SLO_S = 0.2
CAPACITY = 32 / (0.020 + 0.0005 * 32)  # rows a second, in full batches
NORMAL = 0.5  # of the capacity
OVERLOAD = 3.0
VICTIMS = (0.3, 0.45)  # of the capacity: half of it would be the whole share


def http_overload(quick: bool) -> Report:
    seconds = 4.0 if quick else 10.0
    with serving("headway-heavy") as server, server.loaded(exchanges_for("zero")) as generator:
        generator.poisson(NORMAL * CAPACITY, 2.0)
        before = generator.poisson(NORMAL * CAPACITY, seconds / 2, seed=2)
        over = generator.poisson(OVERLOAD * CAPACITY, seconds, seed=3)
        after = generator.poisson(NORMAL * CAPACITY, seconds / 2, seed=4)
        beside = [_beside(generator, share, seconds) for share in VICTIMS]
        generator.last_failure = b""  # refusals are what was asked for
    in_time = float((over.latencies_s[over.is_ok] <= SLO_S).sum()) / over.seconds
    refusals_ms = _p99_ms(over.latencies_s[~over.is_ok])
    calm_s = _calm_after_s(after, 1.3 * _p99_ms(before.latencies_s) / 1e3)
    ratios = [
        _p99_ms(load.latencies_s[load.is_ok]) / _p99_ms(alone.latencies_s) for alone, load in beside
    ]
    refused = max(float((~load.is_ok).mean()) for _, load in beside)
    return Report(
        "O1. Overload: 20 ms + 0.5 ms a row, 32 rows, SLO 200 ms "
        f"(capacity {CAPACITY:.0f}/s), over HTTP",
        ["phase", "offered", "answered", "refused", "p50 / p99 of answers"],
        [
            _row("normal", NORMAL, before),
            _row("overload", OVERLOAD, over),
            _row("normal again", NORMAL, after),
            *(
                _row(name, share, load)
                for share, loads in zip(VICTIMS, beside, strict=True)
                for name, load in zip(
                    ["a tenant alone", "beside one that floods (3×)"], loads, strict=True
                )
            ),
        ],
        [
            Bar(
                "goodput ≥ 95 % of capacity",
                f"{in_time / CAPACITY:.1%}",
                in_time >= 0.95 * CAPACITY,
            ),
            Bar("refusals within 5 ms at p99", f"{refusals_ms:.1f} ms", refusals_ms <= 5.0),
            Bar("normal again within 1 s", f"{calm_s:.2f} s", calm_s <= 1.0),
            Bar(
                "the other tenant's p99 ≤ 1.3× its p99 alone",
                " / ".join(f"{ratio:.2f}×" for ratio in ratios)
                + f" at {' / '.join(f'{share:.0%}' for share in VICTIMS)} of the capacity "
                f"({refused:.1%} of its requests refused)",
                max(ratios) <= 1.3,
            ),
        ],
        [f"{seconds:g} s of overload; latency counts from the intended moment of sending"],
    )


def _beside(generator: Generator, share: float, seconds: float) -> tuple[Load, Load]:
    """A tenant that asks for so much, alone and beside one that floods."""
    victim, flood = _of_tenant("victim"), _of_tenant("flood")
    generator.mixed([(share * CAPACITY, victim)], 1.0)
    alone = generator.mixed([(share * CAPACITY, victim)], seconds, seed=5)[0]
    streams = [(share * CAPACITY, victim), (OVERLOAD * CAPACITY, flood)]
    return alone, generator.mixed(streams, seconds, seed=5)[0]


def _of_tenant(name: str) -> list[Exchange]:
    header = f"Headway-Tenant: {name}\r\n".encode()
    return [
        Exchange(each.request.replace(b"Host:", header + b"Host:", 1), each.mark)
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
