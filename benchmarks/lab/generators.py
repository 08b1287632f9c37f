"""`headway bench` beside other load generators: the same server, the same load, in turns.

perf_analyzer is looked for on the path or at PERF_ANALYZER, AIPerf on the path or at AIPERF; one
that is not found is left out. perf_analyzer's package on PyPI is empty; the wheel of tritonclient
2.41.1 for Linux has the program (it needs libb64 and libcudart). TOKENIZER_FOLDER is a folder with
a tokenizer, where there is no network: AIPerf counts tokens itself.
"""

import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import Bar, Benchmark, Report
from benchmarks.serving import _free_port

_CONNECTIONS = 8
_SECONDS = 3
_CHAT_SECONDS = "15"  # many answers long: eight that end together are 7 % of three seconds
_PERF_ANALYZER = shutil.which(os.environ.get("PERF_ANALYZER", "perf_analyzer"))
_EIGHT = ("--workers", str(_CONNECTIONS), "--max-batch-size", "1")  # chats that wait for nobody
_AIPERF = shutil.which(os.environ.get("AIPERF", "aiperf"))
_TOKENIZER = os.environ.get("TOKENIZER_FOLDER", "builtin")


class Figures(NamedTuple):
    per_s: float
    p50_ms: float


class _Ports(NamedTuple):
    http: int
    grpc: int


@contextmanager
def _serving(target: str, *settings: str) -> Iterator[_Ports]:
    ports = _Ports(_free_port(), _free_port())
    listens = ("--port", str(ports.http), "--grpc-port", str(ports.grpc))
    command = [sys.executable, "-m", "headway", "serve", target, *listens, *settings]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{ports.http}/v2/health/ready", timeout=5)
                break
            time.sleep(0.1)
        yield ports
    finally:
        process.terminate()
        process.wait()


def _bench(url: str, *arguments: str) -> Figures:
    load = ("--concurrency", str(_CONNECTIONS), "--seconds", str(_SECONDS), "--json")
    command = [sys.executable, "-m", "headway", "bench", url, *load, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    [point] = json.loads(done.stdout)
    return Figures(point["answered_rps"], point["latency_ms"]["p50"]["value"])


def _perf_analyzer(address: str, protocol: str) -> Figures:
    assert _PERF_ANALYZER is not None
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        load = ("--concurrency-range", str(_CONNECTIONS), "-p", "2000", "-s", "50")
        command = [_PERF_ANALYZER, "-m", "heavy", "-u", address, "-i", protocol, *load, "-f"]
        subprocess.run([*command, str(table)], capture_output=True, check=True)
        with table.open() as lines:
            [row] = csv.DictReader(lines)
    return Figures(float(row["Inferences/Second"]), float(row["p50 latency"]) / 1e3)


def _aiperf(port: int) -> Figures:
    assert _AIPERF is not None
    with tempfile.TemporaryDirectory() as folder:
        load = ("--concurrency", str(_CONNECTIONS), "--benchmark-duration", _CHAT_SECONDS)
        asked = ("-m", "talk", "--endpoint-type", "chat", "--streaming", "--tokenizer", _TOKENIZER)
        where = ("-u", f"http://127.0.0.1:{port}", "--artifact-dir", folder, "--ui", "none")
        done = subprocess.run(
            [_AIPERF, "profile", *asked, *load, *where], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        [file] = Path(folder).rglob("profile_export_aiperf.json")
        told = json.loads(file.read_text())
    return Figures(told["request_throughput"]["avg"], told["request_latency"]["p50"])


def agrees(quick: bool) -> Report:
    """Closed loops: the other generator once, bench before and after it."""
    rows: list[list[object]] = []
    rates, medians = [0.0], [0.0]

    def compare(name: str, ours: Callable[[], Figures], theirs: Callable[[], Figures]) -> None:
        first, other, last = ours(), theirs(), ours()
        own = Figures(*(statistics.mean(pair) for pair in zip(first, last, strict=True)))
        rates.append(own.per_s / other.per_s - 1)
        medians.append(own.p50_ms / other.p50_ms - 1)
        told = [f"{each.per_s:.1f}/s, {each.p50_ms:.2f} ms" for each in (own, other)]
        rows.append([name, *told, f"{rates[-1]:+.1%}", f"{medians[-1]:+.1%}"])

    with _serving("benchmarks.served:Heavy") as ports:
        http, grpc = (f"127.0.0.1:{port}" for port in ports)
        if _PERF_ANALYZER:
            compare(
                "v2 over HTTP, perf_analyzer",
                lambda: _bench(f"http://{http}"),
                lambda: _perf_analyzer(http, "http"),
            )
            compare(
                "v2 over gRPC, perf_analyzer",
                lambda: _bench(f"grpc://{grpc}"),
                lambda: _perf_analyzer(grpc, "grpc"),
            )
    if _AIPERF and not quick:
        with _serving("benchmarks.served:Talk", *_EIGHT) as ports:
            url = f"http://127.0.0.1:{ports.http}"
            compare(
                "chats, AIPerf",
                lambda: _bench(url, "--api", "chat", "--model", "talk", "--seconds", _CHAT_SECONDS),
                lambda: _aiperf(ports.http),
            )
    rate, median = max(map(abs, rates)), max(map(abs, medians))
    return Report(
        f"headway bench beside other load generators, {_CONNECTIONS} connections",
        ["load", "bench", "the other", "answers/s", "p50"],
        rows,
        [
            Bar("the same throughput within 3 %", f"{rate:.1%}", bool(rows) and rate <= 0.03),
            Bar("the same p50 within 5 %", f"{median:.1%}", bool(rows) and median <= 0.05),
        ],
        ["a model of 20 ms and 0.5 ms a row; chats: 20 tokens, 10 ms each"],
    )


BENCHMARKS: dict[str, Benchmark] = {"generators": agrees}
