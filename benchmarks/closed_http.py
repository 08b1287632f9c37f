"""Closed-loop connections over HTTP, a model of 5 ms and 0.05 ms a row: `auto` beside fixed windows
and beside mosec. Runs are interleaved; nothing else may run on the machine (about 9 minutes).

What a fixed window makes depends on how many connections there are, so the best of several is
taken, one of which is told their number.
"""

import statistics
from collections.abc import Iterator

from benchmarks.report import Bar, Benchmark, Report
from benchmarks.served import MAX_BATCH_SIZE, WINDOWS_MS
from benchmarks.serving import exchanges_for, serving

CONNECTIONS = (16, 32, 48, 64, 65, 96, 256)
OURS, PEER = "headway-sleep", "mosec-sleep-msgspec"
RUNS, SECONDS, WARM_S = 5, 1.5, 0.5


def _measured(name: str, connections: tuple[int, ...], seconds: float) -> Iterator[float]:
    with serving(name) as server, server.loaded(exchanges_for(name)) as generator:
        for count in connections:
            generator.closed(count, WARM_S)
            yield generator.closed(count, seconds).per_s


def closed_http(quick: bool) -> Report:
    runs, seconds, counts = (1, 1.0, (16, 64)) if quick else (RUNS, SECONDS, CONNECTIONS)
    windows = [f"headway-sleep-window-{ms}" for ms in WINDOWS_MS]
    names = (OURS, PEER, *windows)
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(runs):
        for name in names:
            for count, rate in zip(counts, _measured(name, counts, seconds), strict=True):
                found.setdefault((name, count), []).append(rate)
        for count in counts:
            rows = min(count, MAX_BATCH_SIZE)
            for rate in _measured(f"headway-sleep-window-20-{rows}", (count,), seconds):
                found.setdefault(("told", count), []).append(rate)
    table, beside_peer, beside_window, lowest = [], [], [], []
    for count in counts:
        ours = found[OURS, count]
        median = statistics.median(ours)
        peer = statistics.median(found[PEER, count])
        fixed = {name: statistics.median(found[name, count]) for name in (*windows, "told")}
        best = max(fixed, key=lambda name: fixed[name])
        beside_peer.append(median / peer)
        beside_window.append(median / fixed[best])
        lowest.append(min(ours) / median)
        table.append(
            [
                count,
                f"{median:,.0f} ({min(ours):,.0f} to {max(ours):,.0f})",
                f"{peer:,.0f}",
                f"{fixed[best]:,.0f} ({best.removeprefix('headway-sleep-')})",
                f"{median / peer:.3f}",
                f"{median / fixed[best]:.3f}",
            ]
        )
    return Report(
        "Closed-loop connections over HTTP, 5 ms + 0.05 ms a row: answers a second",
        [
            "connections",
            "auto (runs)",
            "mosec, msgspec",
            "best fixed window",
            "÷ mosec",
            "÷ window",
        ],
        table,
        [
            Bar("≥ 1.0 × mosec", f"{min(beside_peer):.3f}", min(beside_peer) >= 1.0),
            Bar("≥ 0.98 × the window", f"{min(beside_window):.3f}", min(beside_window) >= 0.98),
            Bar("no run < 0.95 × the median", f"{min(lowest):.3f}", min(lowest) >= 0.95),
        ],
        [
            f"medians of {runs} interleaved runs of {seconds:g} s; windows: "
            f"{', '.join(map(str, WINDOWS_MS))} ms of up to {MAX_BATCH_SIZE} rows, and (told) "
            "20 ms of as many rows as there are connections"
        ],
    )


BENCHMARKS: dict[str, Benchmark] = {"closed-http": closed_http}
