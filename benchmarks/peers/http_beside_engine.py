"""The chat over HTTP beside the same engine in process: each load twice in a row, once each way.

The machine's speed changes by half within minutes, so what counts is the ratio within a pair.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable

from benchmarks.peers.engine import make_engine
from benchmarks.peers.loads import Load, loads
from benchmarks.peers.over_http import serving
from benchmarks.report import Bar, Benchmark, Report

ROUNDS = 5


def chat_http(quick: bool) -> Report:
    from headway.models.chat.finding import find_language_model

    engine = make_engine(find_language_model("chat"))
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with serving() as clients:
        ways = (engine.run, clients.run)
        for way in ways:
            way(loads(0)[1])  # to warm up
        for number in range(1, 2 if quick else ROUNDS + 1):
            for own, other in zip(loads(2 * number), loads(2 * number + 1), strict=True):
                turns = list(zip(ways, (own, other), strict=True))
                rates = {way: _tok_s(way, load) for way, load in turns[:: -1 if number % 2 else 1]}
                pairs[own.name].append((rates[engine.run], rates[clients.run]))
    ratios = {load: _ratio(each) for load, each in pairs.items()}
    return Report(
        "The chat over HTTP beside the same engine in process",
        ["at once", "in process, tok/s", "over HTTP, tok/s", "ratio, median of pairs", "pairs"],
        [
            [
                load,
                *(f"{statistics.median(each):.0f}" for each in zip(*rates, strict=True)),
                f"{ratios[load]:.3f}",
                ", ".join(f"{http / own:.2f}" for own, http in sorted(rates)),
            ]
            for load, rates in pairs.items()
        ],
        [
            Bar(f"over HTTP ≥ 0.95× of in process, {load}", f"{ratio:.3f}", ratio >= 0.95)
            for load, ratio in ratios.items()
        ],
        ["streams of `/v1/completions`, token ids in; clients on the same two cores"],
    )


def _tok_s(run: Callable[[Load], None], load: Load) -> float:
    began = time.perf_counter()
    run(load)
    return load.tokens / (time.perf_counter() - began)


def _ratio(pairs: list[tuple[float, float]]) -> float:
    return statistics.median(http / own for own, http in pairs)


BENCHMARKS: dict[str, Benchmark] = {"chat-http": chat_http}
