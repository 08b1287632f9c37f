"""Models that change under load, and the second start with a kept warm-up table."""

import asyncio
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.report import Bar, Benchmark, Report

RATE = 500.0  # requests a second, half of them over HTTP, half over gRPC
RELOADS = 20
CONNECTIONS = 32
START_S = 120.0
WIDTH = 256

_MODEL = """
import numpy
import headway
from headway import Tensor

class Marked(headway.TensorModel):
    inputs = [Tensor("x", "float32", (-1, {width}))]
    outputs = [Tensor("mark", "int64", (-1, 1)), Tensor("y", "float32", (-1, {width}))]

    def load(self):
        self.mark = -1  # an answer with this mark came from a model that is not ready
        self.weights = numpy.random.default_rng({mark}).normal(size=({width}, {width}))
        self.weights = self.weights.astype(numpy.float32)
        {then}
        self.mark = {mark}

    def predict(self, batch):
        y = batch["x"] @ self.weights
        return {{"mark": numpy.full((len(y), 1), self.mark), "y": y}}
"""


class Server(NamedTuple):
    http_port: int
    grpc: str
    ready_s: float  # from the start of the process
    loaded_s: float  # of that: loading and warming the model


@contextmanager
def headway_serve(*arguments: str) -> Iterator[Server]:
    started = time.perf_counter()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "headway", "serve", *arguments),
            *("--port", "0", "--grpc-port", "0", "--admin-without-key"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith("HEADWAY_")},
            "OPENBLAS_NUM_THREADS": "1",  # a batch is small; more threads would only spin
        },
    )
    assert process.stderr is not None
    grpc, loaded_s = "", 0.0
    try:
        for line in process.stderr:
            if found := re.search(r"listening for gRPC on (\S+)", line):
                grpc = found[1]
            if found := re.search(r"is ready after ([\d.]+) s", line):
                loaded_s = float(found[1])
            if found := re.search(r"listening on http://\S+:(\d+)", line):
                ready_s = time.perf_counter() - started
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield Server(int(found[1]), grpc, ready_s, loaded_s)
                return
        raise RuntimeError("the server did not start")
    finally:
        process.terminate()
        process.wait(START_S)


# ---- reload under load


class Answer(NamedTuple):
    sent_at: float  # when it was due, not when the client came to it
    latency_s: float
    mark: int | None  # None: it failed
    error: str = ""


@dataclass
class Load:
    """Sends at a steady rate, whatever the server does, and keeps every answer."""

    server: Server
    answers: list[Answer] = field(default_factory=list)
    is_over: bool = False

    async def run(self) -> None:
        import numpy
        import tritonclient.grpc.aio as triton

        connections: asyncio.Queue[_Connection] = asyncio.Queue()
        for _ in range(CONNECTIONS):
            connections.put_nowait(_Connection(self.server.http_port))
        client = triton.InferenceServerClient(self.server.grpc)
        value = triton.InferInput("x", [1, WIDTH], "FP32")
        value.set_data_from_numpy(numpy.ones((1, WIDTH), numpy.float32))

        async def over_http() -> int:
            connection = await connections.get()
            try:
                return await connection.mark()
            finally:
                connections.put_nowait(connection)

        async def over_grpc() -> int:
            answer = await client.infer("m", [value])
            return int(answer.as_numpy("mark")[0, 0])

        loop = asyncio.get_running_loop()
        due, number = loop.time(), 0
        async with asyncio.TaskGroup() as tasks:
            while not self.is_over:
                tasks.create_task(self._ask(over_grpc if number % 2 else over_http, due))
                number += 1
                due += 1 / RATE
                await asyncio.sleep(due - loop.time())
        await client.close()

    async def _ask(self, ask: Any, due: float) -> None:
        clock = asyncio.get_running_loop().time
        try:
            mark = await ask()
            self.answers.append(Answer(due, clock() - due, mark))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what we count
            self.answers.append(Answer(due, clock() - due, None, repr(error)))


class _Connection:
    """One kept HTTP connection; light, so that the client does not disturb the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [1.0] * WIDTH}
        body = msgspec.json.encode({"inputs": [tensor], "outputs": [{"name": "mark"}]})
        head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body

    async def mark(self) -> int:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])  # type: ignore[index]
        body = await reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(body.decode())
        return int(msgspec.json.decode(body)["outputs"][0]["data"][0])


def _write(root: Path, version: int, then: str = "pass") -> None:
    folder = root / "m" / str(version)
    folder.mkdir(parents=True)
    text = _MODEL.format(mark=version, width=WIDTH, then=then)
    (folder / "model.py").write_text(text)


async def _operate(
    server: Server, root: Path, reloads: int, pause_s: float
) -> tuple[list[tuple[float, float]], set[int], int]:
    """Good versions and bad ones in turn: when each was loaded, who may answer, refused loads."""
    clock = asyncio.get_running_loop().time
    spans, good, refused = [], {1}, 0
    for version in range(2, reloads + 2):
        is_bad = version % 2 == 1
        _write(root, version, "raise OSError('torn')" if is_bad else "pass")
        started = clock()
        status = await _post(server.http_port, "/v2/repository/models/m/load")
        spans.append((started, clock()))
        if is_bad:
            refused += status == 400
            shutil.rmtree(root / "m" / str(version))
        elif status == 200:
            good.add(version)
        await asyncio.sleep(pause_s)
    return spans, good, refused


async def _post(port: int, path: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1])


def reload(quick: bool) -> Report:
    before_s, pause_s = (4.0, 0.3) if quick else (20.0, 1.0)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "models")
        _write(root, 1)
        with headway_serve(str(root), "--cache-dir", folder) as server:

            async def measure() -> tuple[list[Answer], float, Any]:
                load = Load(server)
                running = asyncio.create_task(load.run())
                await asyncio.sleep(2.0)  # connections, caches
                steady_at = asyncio.get_running_loop().time()
                await asyncio.sleep(before_s)
                found = await _operate(server, root, RELOADS, pause_s)
                load.is_over = True
                await running
                return load.answers, steady_at, found

            answers, steady_at, (spans, good, refused) = asyncio.run(measure())
    first_at = spans[0][0]
    before = [each for each in answers if steady_at <= each.sent_at < first_at]
    # A reload goes on for a moment after it is answered: the old version is drained and closed.
    during = [
        each for each in answers if any(start <= each.sent_at <= end + 0.25 for start, end in spans)
    ]
    failed = [each for each in answers if each.mark is None]
    wrong = [each for each in answers if each.mark is not None and each.mark not in good]
    p99_before, p99_during = _p99(before), _p99(during)
    after = max((each for each in answers if each.mark is not None), key=lambda each: each.sent_at)
    took = statistics.median(end - start for start, end in spans)
    return Report(
        "Reload under load",
        ["requests", "count", "p50 ms", "p99 ms"],
        [
            ["before", len(before), _ms(before, 50), f"{p99_before * 1e3:.2f}"],
            ["during a reload", len(during), _ms(during, 50), f"{p99_during * 1e3:.2f}"],
            ["all", len(answers), _ms(answers, 50), _ms(answers, 99)],
        ],
        [
            Bar("0 failed", f"{len(failed)} {failed[0].error if failed else ''}", not failed),
            Bar("0 from a version not ready", str(len(wrong)), not wrong),
            Bar(
                f"{RELOADS} reloads, every bad one refused, the last good one answers",
                f"{len(good) - 1} good, {refused} refused, {after.mark} answers last",
                len(good) - 1 + refused == RELOADS and after.mark == max(good),
            ),
            Bar(
                "p99 during a reload ≤ 1.5× before",
                f"{p99_during / p99_before:.2f}×",
                p99_during <= 1.5 * p99_before,
            ),
        ],
        [
            f"{RATE:.0f} requests/s open loop, half HTTP (JSON), half gRPC (tritonclient); latency "
            "from the moment each was due; client and server on the same machine",
            f"a reload is the load request and 0.25 s after it; its median is {took * 1e3:.0f} ms",
        ],
    )


def _ms(answers: list[Answer], percentile: int) -> str:
    ordered = sorted(each.latency_s for each in answers)
    return f"{ordered[min(len(ordered) - 1, len(ordered) * percentile // 100)] * 1e3:.2f}"


def _p99(answers: list[Answer]) -> float:
    ordered = sorted(each.latency_s for each in answers)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


# ---- the second start


def second_start(quick: bool) -> Report:
    """The built-in model with an empty cache, with what that start has kept, and with another
    model file under the same name."""
    from headway.models.ready.embed import MINILM_WEIGHTS

    repeats = 1 if quick else 3
    rows: list[list[object]] = []
    firsts, seconds, changed = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder, "minilm")
        shutil.copytree(MINILM_WEIGHTS.find(), weights)
        target = ("minilm", "--options", f"weights={weights}")
        for number in range(repeats):
            cache = Path(folder, f"cache-{number}")
            firsts.append(_start(*target, "--cache-dir", str(cache)))
            seconds.append(_start(*target, "--cache-dir", str(cache)))
            tokenizer = weights / "tokenizer.json"
            tokenizer.write_text(tokenizer.read_text() + " ")  # the same to it, another digest
            changed.append(_start(*target, "--cache-dir", str(cache)))
        for name, starts in (("first", firsts), ("second", seconds), ("changed", changed)):
            whole, loaded = (statistics.median(each[i] for each in starts) for i in (0, 1))
            rows.append([name, f"{whole:.2f}", f"{loaded:.2f}"])
    first, second = (statistics.median(each[0] for each in starts) for starts in (firsts, seconds))
    again = statistics.median(each[0] for each in changed)
    return Report(
        "Second start",
        ["start", "process start to ready, s", "of that, load and warm-up, s"],
        rows,
        [
            Bar("second ≥ 5× faster to ready", f"{first / second:.1f}×", first >= 5 * second),
            Bar(
                "a changed model is measured again",
                f"{again / second:.1f}× the second start",
                again > 2 * second,
            ),
        ],
        [f"minilm, median of {repeats}; the first start has an empty cache directory"],
    )


def _start(*arguments: str) -> tuple[float, float]:
    with headway_serve(*arguments) as server:
        return server.ready_s, server.loaded_s


BENCHMARKS: dict[str, Benchmark] = {"reload": reload, "second-start": second_start}
