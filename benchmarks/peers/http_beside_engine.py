"""The chat over HTTP beside the same engine in process, in slices of half a second.

The machine's speed changes by half within seconds. So both run the same kind of load at once, and
each is stopped (SIGSTOP) while the other has its slice: what slows the machine down hits both. A
turn takes the time of its own slices.
"""

import multiprocessing
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.peers.engine import make_engine
from benchmarks.peers.loads import Load, loads
from benchmarks.peers.over_http import serving
from benchmarks.report import Bar, Benchmark, Report

ROUNDS = 8
SLICE_S = 0.5


def chat_http(quick: bool) -> Report:
    from headway.models.chat.finding import find_language_model

    rounds = 1 if quick else ROUNDS
    rates: dict[str, tuple[list[float], list[float]]] = {}  # tok/s: in process, over HTTP
    with engine_process(find_language_model("chat")) as engine, serving() as clients:
        own = Party(engine.run, engine.pid)
        http = Party(clients.run, clients.server)
        for party in (own, http):
            party.run(loads(0)[1])  # to warm up
        for index, load in enumerate(loads(0)):
            rates[load.name] = in_slices(own, http, index, rounds)
    ratios = {load: _ratio(*each) for load, each in rates.items()}
    return Report(
        "The chat over HTTP beside the same engine in process",
        ["at once", "in process, tok/s", "over HTTP, tok/s", "ratio", "turns over HTTP, tok/s"],
        [
            [
                load,
                f"{statistics.mean(own_rates):.0f}",
                f"{statistics.mean(http_rates):.0f}",
                f"{ratios[load]:.3f}",
                ", ".join(f"{rate:.0f}" for rate in http_rates),
            ]
            for load, (own_rates, http_rates) in rates.items()
        ],
        [
            Bar(f"over HTTP ≥ 0.95× of in process, {load}", f"{ratio:.3f}", ratio >= 0.95)
            for load, ratio in ratios.items()
        ],
        [
            f"slices of {SLICE_S:g} s in turn, {rounds} turns of each load; tokens by all seconds",
            "streams of `/v1/completions`, token ids in; clients on the same two cores",
        ],
    )


class Party:
    """Who runs loads, and the process that is stopped with all its children."""

    def __init__(self, run: Callable[[Load], None], pid: int) -> None:
        self.run = run
        self._pid = pid
        self._changing = threading.Lock()
        self._stopped_s = 0.0
        self._stopped_at: float | None = None

    @property
    def ran_s(self) -> float:
        """A clock that stands still while it is stopped."""
        with self._changing:
            return (self._stopped_at or time.perf_counter()) - self._stopped_s

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)
        with self._changing:
            self._stopped_at = time.perf_counter()

    def go_on(self) -> None:
        with self._changing:
            if self._stopped_at is not None:
                self._stopped_s += time.perf_counter() - self._stopped_at
            self._stopped_at = None
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in _with_children(self._pid):
            os.kill(pid, number)


def in_slices(own: Party, http: Party, index: int, rounds: int) -> tuple[list[float], list[float]]:
    """Tokens a second of every turn of this load. New prompts in each: none finds a prefix."""
    found: tuple[list[float], list[float]] = [], []

    def turns(party: Party, rates: list[float], seed: int) -> None:
        for number in range(rounds):
            load, began_s = loads(2 * number + seed)[index], party.ran_s
            party.run(load)
            rates.append(load.tokens / (party.ran_s - began_s))

    own.stop()
    threads = [
        threading.Thread(target=turns, args=given)
        for given in ((own, found[0], 1), (http, found[1], 2))
    ]
    for thread in threads:
        thread.start()
    running, waiting = http, own
    while any(thread.is_alive() for thread in threads):
        time.sleep(SLICE_S)
        running.stop()
        running, waiting = waiting, running
        running.go_on()
    waiting.go_on()
    return found


@contextmanager
def engine_process(folder: Path) -> Iterator["EngineProcess"]:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_run_loads, args=(folder, theirs), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield EngineProcess(process.pid, ours)
    finally:
        process.kill()
        process.join()


class EngineProcess:
    def __init__(self, pid: int, line: "Connection[Load, None]") -> None:
        self.pid = pid
        self._line = line

    def run(self, load: Load) -> None:
        self._line.send(load)
        self._line.recv()


def _run_loads(folder: Path, line: "Connection[None, Load]") -> None:
    engine = make_engine(folder)
    while True:
        engine.run(line.recv())
        line.send(None)


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _with_children(int(child))


def _ratio(own: list[float], http: list[float]) -> float:
    """Of the whole times: every turn has as many tokens, or nearly so."""
    return statistics.harmonic_mean(http) / statistics.harmonic_mean(own)


BENCHMARKS: dict[str, Benchmark] = {"chat-http": chat_http}
