"""The chat over HTTP beside the same engine in process, turn by turn.

The machine's speed changes within seconds. So the two take turns of about a second each; the other
is idle meanwhile.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.peers.engine import KV_CACHE_GIB, make_engine
from benchmarks.peers.loads import AT_ONCE, Load, loads
from benchmarks.peers.over_http import serving
from benchmarks.report import Bar, Benchmark, Report

ROUNDS = 24
# So many times the largest load (3,584 tokens) uses all of the cache once.
WARM_UP, LARGEST = 4, AT_ONCE.index(max(AT_ONCE))


def chat_http(quick: bool) -> Report:
    from headway.models.chat.finding import find_language_model

    rounds = 1 if quick else ROUNDS
    rates: dict[str, tuple[list[float], list[float]]] = {}  # tok/s: in process, over HTTP
    with engine_process(find_language_model("chat")) as engine, serving() as clients:
        for run in (engine.run, clients.run):  # until all of the cache was used once
            for number in range(WARM_UP):
                run(loads(ROUNDS + 1 + number)[LARGEST])
        for index, load in enumerate(loads(0)):
            rates[load.name] = in_turns(engine.run, clients.run, index, rounds)
    ratios = {load: _ratio(*each) for load, each in rates.items()}
    return Report(
        "The chat over HTTP beside the same engine in process",
        ["at once", "in process, tok/s", "over HTTP, tok/s", "ratio", "least to most of a turn"],
        [
            [
                load,
                f"{statistics.mean(own_rates):.0f}",
                f"{statistics.mean(http_rates):.0f}",
                f"{ratios[load]:.3f}",
                f"{min(http_rates):.0f} to {max(http_rates):.0f}",
            ]
            for load, (own_rates, http_rates) in rates.items()
        ],
        [
            Bar(f"over HTTP ≥ 0.95× of in process, {load}", f"{ratio:.3f}", ratio >= 0.95)
            for load, ratio in ratios.items()
        ],
        [
            f"{rounds} turns of each load, tokens by all seconds; {KV_CACHE_GIB:g} GiB of cache",
            "streams of `/v1/completions`, token ids in; clients on the same two cores",
        ],
    )


def in_turns(
    own: Callable[[Load], None], http: Callable[[Load], None], index: int, rounds: int
) -> tuple[list[float], list[float]]:
    """Tokens a second of every turn of this load. New prompts in each: none finds a prefix."""
    found: tuple[list[float], list[float]] = [], []
    for number in range(rounds):
        turns = [(own, found[0]), (http, found[1])]
        for run, rates in turns if number % 2 else reversed(turns):
            load = loads(number + 1)[index]
            began = time.perf_counter()
            run(load)
            rates.append(load.tokens / (time.perf_counter() - began))
    return found


@contextmanager
def engine_process(folder: Path) -> Iterator["EngineProcess"]:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_run_loads, args=(folder, theirs), daemon=True)
    process.start()
    try:
        yield EngineProcess(ours)
    finally:
        process.kill()
        process.join()


class EngineProcess:
    def __init__(self, line: "Connection[Load, None]") -> None:
        self._line = line

    def run(self, load: Load) -> None:
        self._line.send(load)
        self._line.recv()


def _run_loads(folder: Path, line: "Connection[None, Load]") -> None:
    engine = make_engine(folder)
    while True:
        engine.run(line.recv())
        line.send(None)


def _ratio(own: list[float], http: list[float]) -> float:
    """Of the whole times: every turn has as many tokens, or nearly so."""
    return statistics.harmonic_mean(http) / statistics.harmonic_mean(own)


BENCHMARKS: dict[str, Benchmark] = {"chat-http": chat_http}
