"""Language models online: a real `headway serve`, Poisson arrivals, tokens streamed over HTTP.

`python -m benchmarks.lab.generation_online [--shapes 8B 1B] [--seconds 20] [--runs 1]`, on a
machine with a GPU (8B: of 24 GB and more). The model has the shape of a published one, and random
weights. Prompts are 32–512 token ids, answers 8–128 tokens, all lengths exact.
`--shapes tiny` runs on any CPU. Results are printed as they come; the table follows at the end,
or where it breaks off.
"""

import argparse
import dataclasses
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy

from benchmarks.lab.llama_shapes import SHAPES, save_folder
from benchmarks.lab.token_load import Seen, TokenLoad, asked_of
from benchmarks.report import Bar, Report, machine

RATES: dict[str, tuple[float, ...]] = {"8B": (25, 48, 86), "1B": (60, 125, 225), "tiny": (4, 8)}
COMPARED = {"8B": 48.0, "tiny": 8.0}  # once more, with every prompt in one step
# Milliseconds, p50 and p99: first token, between tokens, whole answer.
Figures = tuple[float, float, float, float, float, float]
START_S = 300.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One run at one rate."""

    shape: str
    rate: float
    is_chunked: bool
    tok_s: float
    figures: Figures
    front_us: float  # CPU of the server's process, a token
    engine_us: float  # of the engine's
    late_ms: float  # p99 of how late the load left
    answers: int
    failed: int
    unanswered: int

    def line(self) -> str:
        first, first99, between, between99, whole, whole99 = self.figures
        return (
            f"{self.shape} at {self.rate:g} req/s{'' if self.is_chunked else ', no chunks'}: "
            f"{self.tok_s:,.0f} tok/s; first {first:.1f} / {first99:.1f} ms, between "
            f"{between:.2f} / {between99:.2f}, whole {whole:.0f} / {whole99:.0f}; front "
            f"{self.front_us:.1f} µs a token, engine {self.engine_us:.1f}; "
            f"{self.answers} answers, {self.failed} failed, {self.unanswered} unanswered; "
            f"load late by {self.late_ms:.2f} ms (p99)"
        )


# ---- the server


class Server:
    """`headway serve` with an engine in a process of its own."""

    def __init__(self, folder: Path, shape: str, cores: set[int], *, is_chunked: bool) -> None:
        self.port = _free_port()
        self.shape = shape
        self.is_chunked = is_chunked
        self._log = folder / "server.log"
        options = f"random_weights=true,chunking={'true' if is_chunked else 'false'}"
        sizes = ["--max-sequences", "256", "--max-context", "4096"]
        sizes += ["--kv-cache-gib", "0.2", "--dtype", "float32"] if shape == "tiny" else []
        command = [sys.executable, "-m", "headway", "serve", str(folder), "--name", shape]
        command += ["--port", str(self.port), "--grpc-port", "-1", "--options", options, *sizes]
        command += ["--heartbeat-timeout-s", "60", "--drain-s", "2"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        with suppress(OSError):
            os.sched_setaffinity(self._process.pid, cores)

    def wait_ready(self) -> float:
        """Seconds."""
        started = time.perf_counter()
        while time.perf_counter() - started < START_S:
            if self._process.poll() is not None:
                break
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2/health/ready", timeout=5),
            ):
                return time.perf_counter() - started
            time.sleep(0.1)
        raise SystemExit(f"the server does not get ready:\n{self.log()}")

    def started(self) -> str:
        """Where its engine runs, and with how many blocks."""
        lines = self._log.read_text().splitlines()
        return next((line for line in reversed(lines) if "blocks" in line), "")

    def log(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-40:])

    def cpu_s(self) -> tuple[float, float]:
        """Of the front, and of the processes that it has started."""
        front = _cpu_s(self._process.pid)
        return front, sum(map(_cpu_s, _children(self._process.pid)))

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def serving(shape: str, cores: set[int], *, is_chunked: bool) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as work:
        server = Server(save_folder(Path(work), shape), shape, cores, is_chunked=is_chunked)
        try:
            seconds = server.wait_ready()
            print(f"{shape}: ready after {seconds:.1f} s; {server.started()}", flush=True)
            yield server
        finally:
            server.stop()


def _free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port: int = door.getsockname()[1]
        return port


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_s(pid: int) -> float:
    try:
        user, system = _stat(pid)[11:13]
    except OSError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _children(parent: int) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(_stat(int(each.name))[1]) == parent:
                found.append(int(each.name))
    return found


# ---- measuring


def measure(server: Server, load: TokenLoad, rate: float, *, seconds: float, seed: int) -> Measured:
    shape = server.shape
    vocabulary = min(SHAPES[shape]["vocab_size"], 128_000)
    requests = asked_of(rate, seconds, model=shape, vocabulary=vocabulary, seed=seed)
    front, engine = server.cpu_s()
    seen = load.run(requests, seconds)
    front_after, engine_after = server.cpu_s()
    if seen.failed:
        print(f"a failure: {seen.failure!r}\n{server.log()}", flush=True)
    tokens = max(1, seen.tokens)
    return Measured(
        shape,
        rate,
        server.is_chunked,
        seen.per_s,
        _figures(seen),
        (front_after - front) / tokens * 1e6,
        (engine_after - engine) / tokens * 1e6,
        _ms(seen.late, 99),
        len(seen.whole),
        seen.failed,
        seen.unanswered,
    )


def _figures(seen: Seen) -> Figures:
    values = (seen.first, seen.between, seen.whole)
    first, between, whole = ((_ms(each, 50), _ms(each, 99)) for each in values)
    return (*first, *between, *whole)


def _ms(values: list[float], q: float) -> float:
    return float(numpy.percentile(values, q)) * 1e3 if values else float("inf")


def median_of(runs: list[Measured]) -> Measured:
    """Of every figure; failures of all."""

    def middle(values: list[float]) -> float:
        return statistics.median(values)

    columns = zip(*(each.figures for each in runs), strict=True)
    a, b, c, d, e, f = (middle(list(column)) for column in columns)
    return Measured(
        runs[0].shape,
        runs[0].rate,
        runs[0].is_chunked,
        middle([each.tok_s for each in runs]),
        (a, b, c, d, e, f),
        middle([each.front_us for each in runs]),
        middle([each.engine_us for each in runs]),
        max(each.late_ms for each in runs),
        sum(each.answers for each in runs),
        sum(each.failed for each in runs),
        sum(each.unanswered for each in runs),
    )


class Stage:
    """Servers one after the other, each at its rates; what was measured so far."""

    def __init__(self, *, seconds: float, runs: int, warm_s: float, out: Path | None) -> None:
        self._seconds, self._runs, self._warm_s, self._out = seconds, runs, warm_s, out
        own, self._servers = _cores()
        os.sched_setaffinity(0, own)
        self.measured: list[Measured] = []

    def run(self, shape: str, rates: tuple[float, ...], *, is_chunked: bool) -> None:
        with serving(shape, self._servers, is_chunked=is_chunked) as server:
            load = TokenLoad(server.port)
            measure(server, load, rates[0], seconds=self._warm_s, seed=99)
            for rate in rates:
                runs = []
                for seed in range(self._runs):
                    once = measure(server, load, rate, seconds=self._seconds, seed=seed)
                    runs.append(once)
                    print(once.line(), flush=True)
                self.measured.append(median_of(runs))
                self._keep()
            load.close()

    def _keep(self) -> None:
        if self._out is not None:
            told = [dataclasses.asdict(each) for each in self.measured]
            self._out.write_text(json.dumps(told, indent=1))


def _cores() -> tuple[set[int], set[int]]:
    """One for the load, the others for the server; where there are few, all for both."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 4:
        return set(cores), set(cores)
    return {cores[-1]}, set(cores[:-1])


# ---- the report


def report_of(measured: list[Measured], notes: list[str]) -> Report:
    rows: list[list[object]] = []
    bars: list[Bar] = []
    for each in measured:
        cells = [_cell(*each.figures[at : at + 2]) for at in (0, 2, 4)]
        name = each.shape if each.is_chunked else f"{each.shape}, prompts in one step"
        front = f"{each.front_us:.1f} µs ({each.front_us * each.tok_s / 1e4:.0f} % of a core)"
        rows.append([name, f"{each.rate:g}", f"{each.tok_s:,.0f}", *cells, front])
        bars.append(_bar(each))
    return Report(
        "Generation online over HTTP",
        [
            *("shape", "req/s", "tok/s", "first token, ms p50 / p99", "between tokens"),
            *("whole answer", "CPU of the front a token"),
        ],
        rows,
        bars,
        notes,
    )


def _cell(*figures: float) -> str:
    return " / ".join(f"{each:.3g}" if each < 1000 else f"{each:,.0f}" for each in figures)


def _bar(each: Measured) -> Bar:
    return Bar(
        f"{each.shape} at {each.rate:g} req/s: every answer comes, with its exact number of tokens",
        f"{each.answers} answers, {each.failed} failed, {each.unanswered} unanswered",
        not each.failed and not each.unanswered,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["8B", "1B"], choices=SHAPES)
    parser.add_argument("--rates", nargs="+", type=float, help="in place of the shape's own")
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals, at each rate")
    parser.add_argument("--runs", type=int, default=1, help="at each rate; their median counts")
    parser.add_argument("--warm-s", type=float, default=3.0, help="of arrivals before the first")
    parser.add_argument(
        "--no-chunking", action="store_true", help="only with every prompt in one step"
    )
    parser.add_argument("--no-comparison", action="store_true", help="only with chunks")
    parser.add_argument("--out", type=Path, help="figures as JSON, as they come")
    options = parser.parse_args()
    stage = Stage(
        seconds=options.seconds, runs=options.runs, warm_s=options.warm_s, out=options.out
    )
    try:
        for shape in options.shapes:
            rates = tuple(options.rates or RATES[shape])
            stage.run(shape, rates, is_chunked=not options.no_chunking)
        for shape in [] if options.no_chunking or options.no_comparison else options.shapes:
            if shape in COMPARED:
                stage.run(shape, (COMPARED[shape],), is_chunked=False)
    finally:
        notes = [
            f"{options.runs} × {options.seconds:g} s of Poisson arrivals at each rate; prompts of "
            "32–512 token ids, 8–128 tokens out, greedy, one event a token; the load on a core of "
            "its own",
            machine(),
        ]
        print(report_of(stage.measured, notes).to_markdown(), flush=True)


if __name__ == "__main__":
    main()
