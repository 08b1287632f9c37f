"""What metrics cost: throughput of a zero-cost model with and without them; a scrape of 100 models.

The HTTP part needs `wrk` and `taskset`: the server runs on core 1, wrk on core 0.
"""

import asyncio
import http.client
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import headway
from benchmarks.http_stack import cpu_s
from benchmarks.overhead import zero_cost
from benchmarks.report import Bar, Report
from headway import Tensor

ROOT = Path(__file__).parents[1]
CONNECTIONS = 64
MODELS = 100
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [0.5] * 16}]}
)
START_S = 60.0


class Zero(headway.TensorModel):
    inputs: ClassVar = [Tensor("x", "float32", (-1, 16))]
    outputs: ClassVar = [Tensor("y", "float32", (-1, 16))]

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": batch["x"]}


class Server(NamedTuple):
    port: int
    pid: int


class Round(NamedTuple):
    per_s: float
    cpu_us: float  # of the server, a request


def metrics(quick: bool) -> Report:
    rounds, seconds = (3, 2) if quick else (11, 3)
    in_process = _in_process(rounds)
    over_http = _over_http(rounds, seconds)
    scrape_ms, scrape_bytes = _scrape(10 if quick else 50)
    rows = [
        ["in process, 64 callers, µs a call", *(f"{value:.2f}" for value in in_process)],
        [
            f"HTTP, {CONNECTIONS} connections, requests/s",
            *(f"{statistics.median(each.per_s for each in side):,.0f}" for side in over_http),
        ],
        [
            "HTTP, server CPU, µs a request",
            *(f"{statistics.median(each.cpu_us for each in side):.2f}" for side in over_http),
        ],
    ]
    without, with_them = over_http
    ratios = [on.per_s / off.per_s for off, on in zip(without, with_them, strict=True)]
    cpu = [on.cpu_us / off.cpu_us for off, on in zip(without, with_them, strict=True)]
    lost, dearer = 1 - statistics.median(ratios), statistics.median(cpu) - 1
    return Report(
        "Metrics: what they cost",
        ["zero-cost model", "without", "with"],
        rows,
        [
            Bar("≤ 3 % of the zero-cost throughput", f"{lost:.1%}", lost <= 0.03),
            Bar(f"a scrape of {MODELS} models < 50 ms", f"{scrape_ms:.0f} ms", scrape_ms < 50),
        ],
        [
            f"medians of {rounds} rounds, in turns (HTTP: {seconds} s each; both servers on core "
            "1, wrk on core 0); throughput is compared round by round",
            f"server CPU a request: {dearer:+.1%} with metrics; in turns it went from "
            f"{min(cpu) - 1:+.1%} to {max(cpu) - 1:+.1%}",
            f"the page of {MODELS} models: {scrape_bytes / 2**20:.1f} MiB; the event loop has a "
            "turn after each model",
        ],
    )


# ---- in process


def _in_process(rounds: int) -> tuple[float, float]:
    figures: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for is_on, found in enumerate(figures):
            found.append(asyncio.run(_per_call_us(is_watched=bool(is_on))))
    return statistics.median(figures[0]), statistics.median(figures[1])


async def _per_call_us(*, is_watched: bool, callers: int = 64, calls: int = 30_000) -> float:
    async with headway.Batcher[int, int](zero_cost) as batcher:
        if is_watched:
            headway.Metrics().watch(batcher)

        async def caller() -> None:
            for number in range(calls // callers):
                await batcher.submit(number)

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        return (time.perf_counter() - started) / (calls // callers * callers) * 1e6


# ---- over HTTP


def _over_http(rounds: int, seconds: int) -> tuple[list[Round], list[Round]]:
    without: list[Round] = []
    with_them: list[Round] = []
    arguments = ["benchmarks.metrics:Zero", "--name", "zero"]
    with ExitStack() as servers:
        sides = [
            (servers.enter_context(_serving([*arguments, "--no-metrics"])), without),
            (servers.enter_context(_serving(arguments)), with_them),
        ]
        for server, _ in sides:
            _load(server.port, 1)  # warm
        for number in range(rounds):
            for server, found in sides if number % 2 else reversed(sides):
                before = cpu_s(server.pid)
                answered, per_s = _load(server.port, seconds)
                found.append(Round(per_s, (cpu_s(server.pid) - before) / answered * 1e6))
    return without, with_them


@contextmanager
def _serving(arguments: list[str]) -> Iterator[Server]:
    port = _free_port()
    command = ["taskset", "-c", "1", sys.executable, "-m", "headway", "serve", *arguments]
    options = ["--port", str(port), "--grpc-port", "-1", "--log-level", "warning"]
    with subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_ready(port)
            yield Server(port, process.pid)
        finally:
            process.terminate()


def _load(port: int, seconds: int) -> tuple[int, float]:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
        lua.write(f"wrk.method='POST'; wrk.body='{BODY}'")
        lua.flush()
        command = ["taskset", "-c", "0", "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s"]
        url = f"http://127.0.0.1:{port}/v2/models/zero/infer"
        output = subprocess.run(
            [*command, "-s", lua.name, url], capture_output=True, text=True, check=True
        ).stdout
    assert "Non-2xx" not in output, output
    answered = re.search(r"(\d+) requests in", output)
    per_s = re.search(r"Requests/sec: +([\d.]+)", output)
    assert answered is not None, output
    assert per_s is not None, output
    return int(answered[1]), float(per_s[1])


# ---- a scrape


def _scrape(repeats: int) -> tuple[float, int]:
    """Milliseconds as the one who asks sees them, and the size of the page."""
    models = "".join(
        f'[[models]]\nname = "model-{number}"\ntarget = "benchmarks.metrics:Zero"\n'
        "warm_up = false\n"
        for number in range(MODELS)
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "many.toml").write_text(models)
        with _serving([f"{folder}/many.toml"]) as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            for number in range(MODELS):
                _ask(connection, "POST", f"/v2/models/model-{number}/infer", BODY)
            took: list[float] = []
            page = b""
            for _ in range(repeats):
                started = time.perf_counter()
                page = _ask(connection, "GET", "/metrics")
                took.append(time.perf_counter() - started)
            connection.close()
    return statistics.median(took) * 1e3, len(page)


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None
) -> bytes:
    connection.request(method, path, body)
    response = connection.getresponse()
    assert response.status == 200, response.status
    return response.read()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(port: int) -> None:
    until = time.monotonic() + START_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            _ask(connection, "GET", "/v2/health/ready")
            return
        except (OSError, AssertionError, http.client.HTTPException):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        finally:
            connection.close()


BENCHMARKS = {"metrics": metrics}
