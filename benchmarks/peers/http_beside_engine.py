"""The chat over HTTP beside the same engine in process, turn by turn.

The machine's speed changes by half within minutes. So each turn over HTTP is compared with those in
process just before and just after it.
"""

import itertools
import statistics
import time
from collections.abc import Callable

from benchmarks.peers.engine import make_engine
from benchmarks.peers.loads import Load, loads
from benchmarks.peers.over_http import serving
from benchmarks.report import Bar, Benchmark, Report

ROUNDS = 8


def chat_http(quick: bool) -> Report:
    from headway.models.chat.finding import find_language_model

    engine = make_engine(find_language_model("chat"))
    turns: dict[str, list[tuple[float, float]]] = {}  # in process, around it; over HTTP
    with serving() as clients:
        for run in (engine.run, clients.run):
            run(loads(0)[1])  # to warm up
        for index, load in enumerate(loads(0)):
            own = [_tok_s(engine.run, loads(1)[index])]
            http = []
            for number in range(1, 2 if quick else ROUNDS + 1):
                http.append(_tok_s(clients.run, loads(2 * number)[index]))
                own.append(_tok_s(engine.run, loads(2 * number + 1)[index]))
            around = [statistics.mean(pair) for pair in itertools.pairwise(own)]
            turns[load.name] = list(zip(around, http, strict=True))
    ratios = {load: _ratio(each) for load, each in turns.items()}
    over_all = _ratio([each for some in turns.values() for each in some])
    return Report(
        "The chat over HTTP beside the same engine in process",
        ["at once", "in process, tok/s", "over HTTP, tok/s", "ratio, median of turns", "turns"],
        [
            [
                load,
                *(f"{statistics.median(each):.0f}" for each in zip(*rates, strict=True)),
                f"{ratios[load]:.3f}",
                ", ".join(f"{http / own:.2f}" for own, http in rates),
            ]
            for load, rates in turns.items()
        ],
        [
            Bar(f"over HTTP ≥ 0.95× of in process, {load}", f"{ratio:.3f}", ratio >= 0.95)
            for load, ratio in ratios.items()
        ],
        [
            f"over all turns: {over_all:.3f}",
            "streams of `/v1/completions`, token ids in; clients on the same two cores",
        ],
    )


def _tok_s(run: Callable[[Load], None], load: Load) -> float:
    began = time.perf_counter()
    run(load)
    return load.tokens / (time.perf_counter() - began)


def _ratio(turns: list[tuple[float, float]]) -> float:
    return statistics.median(http / own for own, http in turns)


BENCHMARKS: dict[str, Benchmark] = {"chat-http": chat_http}
