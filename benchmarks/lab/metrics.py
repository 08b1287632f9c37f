"""What metrics cost: a zero-cost model with and without them; a scrape of 100 models."""

import asyncio
import http.client
import statistics
import time
from contextlib import ExitStack
from typing import NamedTuple

import headway
from benchmarks.overhead import zero_cost
from benchmarks.report import Bar, Benchmark, Report
from benchmarks.served import MANY
from benchmarks.serving import Running, exchanges_for, serving

CONNECTIONS = (64, 256)
WITHOUT, WITH = "headway-zero-no-metrics", "headway-zero"


class Round(NamedTuple):
    per_s: float
    cpu_us: float  # of the server, a request


def metrics(quick: bool) -> Report:
    rounds, seconds = (4, 0.5) if quick else (60, 0.5)
    off, on = _in_process(rounds)
    rows: list[list[object]] = [
        ["in process, 64 callers: µs a call", f"{off:.2f}", f"{on:.2f}", ""]
    ]
    bars = []
    notes = []
    for connections in CONNECTIONS:
        pairs = _over_http(connections, rounds, seconds)
        lost = 1 - statistics.median(on.per_s / off.per_s for off, on in pairs)
        cpu = [on.cpu_us / off.cpu_us - 1 for off, on in pairs]
        rows += _rows(connections, pairs)
        asked = f"≤ 3 % of the zero-cost throughput, {connections} connections"
        bars.append(Bar(asked, f"{lost:.1%}", lost <= 0.03))
        notes.append(
            f"{connections} connections, server CPU a request: {statistics.median(cpu):+.1%}; "
            f"single rounds {min(cpu):+.1%} to {max(cpu):+.1%}"
        )
    scrape_ms, size = _scrape(10 if quick else 50)
    bars.append(Bar(f"a scrape of {MANY} models < 50 ms", f"{scrape_ms:.0f} ms", scrape_ms < 50))
    return Report(
        "Metrics: what they cost",
        ["zero-cost model", "without", "with", "of each other, round by round"],
        rows,
        bars,
        [
            *notes,
            f"medians of {rounds} rounds of {seconds:g} s, in turns, both servers on one core",
            f"the page of {MANY} models: {size / 2**20:.1f} MiB; the event loop has a turn after "
            "each model",
        ],
    )


def _rows(connections: int, pairs: list[tuple[Round, Round]]) -> list[list[object]]:
    columns = list(zip(*pairs, strict=True))
    rates = [statistics.median(each.per_s for each in column) for column in columns]
    cpu = [statistics.median(each.cpu_us for each in column) for column in columns]
    ratios = sorted(on.per_s / off.per_s for off, on in pairs)
    return [
        [
            f"HTTP, {connections} connections: requests/s",
            *(f"{rate:,.0f}" for rate in rates),
            f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} – {ratios[-1]:.3f})",
        ],
        ["server CPU, µs a request", *(f"{each:.2f}" for each in cpu), ""],
    ]


# ---- in process


def _in_process(rounds: int) -> tuple[float, float]:
    figures: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for is_on, found in enumerate(figures):
            found.append(asyncio.run(_per_call_us(is_watched=bool(is_on))))
    return statistics.median(figures[0]), statistics.median(figures[1])


async def _per_call_us(*, is_watched: bool, callers: int = 64, calls: int = 30_000) -> float:
    watching = headway.Metrics()
    async with headway.Batcher[int, int](zero_cost) as batcher:
        if is_watched:
            watching.watch(batcher)

        async def caller() -> None:
            for number in range(calls // callers):
                await batcher.submit(number)

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        return (time.perf_counter() - started) / (calls // callers * callers) * 1e6


# ---- over HTTP


def _over_http(connections: int, rounds: int, seconds: float) -> list[tuple[Round, Round]]:
    with ExitStack() as stack:
        off, on = (stack.enter_context(serving(name)) for name in (WITHOUT, WITH))
        for server in (off, on):
            _measure(server, connections, seconds)  # warm
        pairs = []
        for number in range(rounds):
            found = {
                server: _measure(server, connections, seconds)
                for server in ((off, on) if number % 2 else (on, off))
            }
            pairs.append((found[off], found[on]))
        return pairs


def _measure(server: Running, connections: int, seconds: float) -> Round:
    with server.loaded(exchanges_for(server.name)) as generator:
        before = server.cpu_s
        load = generator.closed(connections, seconds)
        spent_s = server.cpu_s - before
    assert not load.failed, generator.last_failure
    return Round(load.per_s, spent_s / len(load.latencies_s) * 1e6)


# ---- a scrape


def _scrape(repeats: int) -> tuple[float, int]:
    """Milliseconds as the one who asks sees them, and the size of the page."""
    with serving("headway-many") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        body = exchanges_for(server.name)[0].request.partition(b"\r\n\r\n")[2]
        for number in range(MANY):
            _ask(connection, "POST", f"/v2/models/zero-{number}/infer", body)
        took, page = [], b""
        for _ in range(repeats):
            started = time.perf_counter()
            page = _ask(connection, "GET", "/metrics")
            took.append(time.perf_counter() - started)
        connection.close()
    return statistics.median(took) * 1e3, len(page)


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
) -> bytes:
    connection.request(method, path, body)
    response = connection.getresponse()
    assert response.status == 200, response.status
    return response.read()


BENCHMARKS: dict[str, Benchmark] = {"metrics": metrics}
