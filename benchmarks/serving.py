"""The server beside its peers: each server alone on one core, the load on another.

The peers run in the same minutes on the same machine, in turns, so that the ratios mean something.
"""

import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from benchmarks.load import AskedRequest, Generator, post
from benchmarks.report import Bar, Benchmark, Report
from benchmarks.served import ALPHA_S, BETA_S, MAX_BATCH_SIZE
from headway.loadgen.driver import Driver
from headway.loadgen.exchange import Address

LOAD_CORE = 0
# Of an environment that has the peers, where this one must stay as it is.
PEERS_PYTHON = os.environ.get("BENCH_PEERS_PYTHON", sys.executable)
P99_MS = 50.0
IDEAL_PER_S = MAX_BATCH_SIZE / (ALPHA_S + BETA_S * MAX_BATCH_SIZE)
_ROOT = Path(__file__).parents[1]


# ---- servers


class Running:
    def __init__(self, name: str, port: int, process: "subprocess.Popen[bytes]") -> None:
        self.name = name
        self.port = port
        self._process = process

    @property
    def cpu_s(self) -> float:
        """Of the server so far: its processes, and all their threads."""
        threads = (
            thread
            for process in _processes_of(self._process.pid)
            for thread in Path(f"/proc/{process}/task").glob("*/schedstat")
        )
        return sum(int(each.read_text().split()[0]) for each in threads) / 1e9

    def wait_listening(self) -> None:
        for _ in range(600):
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self._process.returncode}")
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"{self.name} does not listen")

    @contextmanager
    def loaded(self, exchanges: Sequence[AskedRequest]) -> Iterator[Generator]:
        generator = Generator(self.port, exchanges)
        yield generator
        if generator.last_failure:
            print(f"{self.name}: {generator.last_failure}", file=sys.stderr)


def _processes_of(leader: int) -> list[int]:
    """`leader` and its descendants: each server leads a session of its own."""
    pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]
    found = []
    for pid in pids:
        with suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


@contextmanager
def starting(name: str, root: Path = _ROOT) -> Iterator[Running]:
    """The server as soon as its process exists. `root`: of another checkout, to compare with."""
    os.sched_setaffinity(0, {LOAD_CORE})
    port = _free_port()
    python = sys.executable if name.startswith(("headway", "bare")) else PEERS_PYTHON
    command = [python, "-m", "benchmarks.served", name, "--port", str(port)]
    with subprocess.Popen(
        command,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield Running(name, port, process)
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with suppress(ProcessLookupError):  # what a peer leaves behind would disturb the next
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def serving(name: str, root: Path = _ROOT) -> Iterator[Running]:
    """The server, listening and warm."""
    with starting(name, root) as server:
        server.wait_listening()
        time.sleep(1.0)  # worker processes of peers come up behind their port
        yield server


@contextmanager
def fresh_cache() -> Iterator[None]:
    """Nothing is known about any model at first."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["HEADWAY_CACHE_DIR"] = cache
        try:
            yield
        finally:
            del os.environ["HEADWAY_CACHE_DIR"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def exchanges_for(server: str) -> list[AskedRequest]:
    """16 floats in, 16 out; the last is the mark that the answer must carry."""
    path = "/inference" if server.startswith("mosec") else "/v2/models/zero/infer"
    found = []
    for number in range(997):
        values = [number + 0.25 * index for index in range(15)] + [100_000.5 + number]
        each = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": values}
        body = msgspec.json.encode({"inputs": [each]})
        found.append(post(path, body, b"%.1f" % values[-1]))
    return found


# ---- 1. a model that costs nothing


def http_zero(quick: bool) -> Report:
    servers = ("headway-zero", "mosec-zero", "mosec-zero-msgspec")
    seconds, rounds = (1.5, 1) if quick else (4.0, 3)
    rates: dict[tuple[str, int], list[float]] = {}
    spent_us: dict[int, list[float]] = {}
    failed = 0
    for _ in range(rounds):
        for name in servers:
            with serving(name) as server, server.loaded(exchanges_for(name)) as generator:
                for connections in (64, 256):
                    generator.closed(connections, seconds / 4)  # warm
                    before = server.cpu_s
                    load = generator.closed(connections, seconds)
                    rates.setdefault((name, connections), []).append(load.per_s)
                    failed += load.failed
                    if name == "headway-zero":
                        spent = (server.cpu_s - before) / len(load.latencies_s) * 1e6
                        spent_us.setdefault(connections, []).append(spent)
    best = {key: statistics.median(each) for key, each in rates.items()}
    rows = [
        [name, *(_spread(rates[name, connections]) for connections in (64, 256))]
        for name in servers
    ]
    ratios = [best["headway-zero", c] / best["mosec-zero", c] for c in (64, 256)]
    tuned = [best["headway-zero", c] / best["mosec-zero-msgspec", c] for c in (64, 256)]
    cpu = ", ".join(f"{statistics.median(each):.0f}" for each in spent_us.values())
    return Report(
        "S1. Zero-cost model over HTTP: v2 JSON, 16 floats in, 16 out (requests/s)",
        ["server", "64 connections", "256 connections"],
        rows,
        [
            Bar(
                "≥ 1.3× mosec (aim 2×) at 64 and 256",
                " and ".join(f"{ratio:.2f}×" for ratio in ratios),
                min(ratios) >= 1.3,
            ),
            Bar("every answer its own", f"{failed} wrong", failed == 0),
        ],
        [
            f"our server's CPU per request: {cpu} µs (64 and 256 connections)",
            "`mosec-zero` is mosec as its documentation shows it (its own JSON, 5 ms wait); "
            "`-msgspec` has msgspec put in for it, and a 1 ms wait: ours is "
            + " and ".join(f"{ratio:.2f}×" for ratio in tuned),
            f"median of {rounds} runs of {seconds:g} s in turns; least to most in brackets",
        ],
    )


# ---- 2. a model that sleeps


def http_sleep(quick: bool) -> Report:
    servers = ("headway-sleep", "mosec-sleep", "mosec-sleep-msgspec")
    seconds, rounds = (2.0, 1) if quick else (3.0, 3)
    limits: dict[str, list[float]] = {name: [] for name in servers}
    closed: dict[tuple[str, int], list[float]] = {}
    alone: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name in servers:
            with serving(name) as server, server.loaded(exchanges_for(name)) as generator:
                for connections in (16, 64):
                    generator.closed(connections, seconds / 2)
                    load = generator.closed(connections, seconds)
                    closed.setdefault((name, connections), []).append(load.per_s)
                limits[name].append(highest_rate(generator, seconds))
        for name in ("headway-sleep", "bare-sleep"):
            with serving(name) as server, server.loaded(exchanges_for(name)) as generator:
                generator.closed(1, seconds / 2)
                alone.setdefault(name, []).append(generator.closed(1, seconds).percentile_ms(50))
    rows = [
        [name, _spread(limits[name]), *(_spread(closed[name, c]) for c in (16, 64))]
        for name in servers
    ]
    limit = {name: statistics.median(each) for name, each in limits.items()}
    ratio = limit["headway-sleep"] / limit["mosec-sleep"]
    at_64 = [statistics.median(closed[name, 64]) for name in servers]
    added = [ours - bare for ours, bare in zip(*alone.values(), strict=True)]
    tuned = limit["headway-sleep"] / limit["mosec-sleep-msgspec"]
    return Report(
        "S2. A model that sleeps 5 ms + 0.05 ms a row, at most 64 rows "
        f"(ideal {IDEAL_PER_S:,.0f}/s)",
        ["server", "highest Poisson rate with p99 < 50 ms", "closed loop, 16", "closed loop, 64"],
        rows,
        [
            Bar("highest rate ≥ 1.5× mosec (aim 2×)", f"{ratio:.2f}×", ratio >= 1.5),
            Bar(
                "64 closed-loop connections ≥ 1.3× mosec",
                f"{at_64[0] / at_64[1]:.2f}×",
                at_64[0] >= 1.3 * at_64[1],
            ),
            Bar(
                "one client: ≤ 0.3 ms over bare httptools and a thread",
                f"{statistics.median(added):.2f} ms",
                statistics.median(added) <= 0.3,
            ),
        ],
        [
            "`-msgspec`: mosec with msgspec put in for its JSON and a 1 ms wait; ours is "
            f"{tuned:.2f}× that in rate and {at_64[0] / at_64[2]:.2f}× at 64 (the ideal is "
            f"{IDEAL_PER_S / limit['mosec-sleep-msgspec']:.2f}× its rate)",
            "p99 of the median second; latency counts from the intended moment of sending",
        ],
    )


def highest_rate(generator: Generator, seconds: float) -> float:
    """By halving: the last rate that is carried with the p99 asked for."""
    low, high = 0.0, IDEAL_PER_S * 1.02
    for _ in range(7):
        rate = (low + high) / 2
        load = generator.poisson(rate, seconds)
        if load.steady_p99_ms() < P99_MS and not load.unanswered and not load.failed:
            low = rate
        else:
            high = rate
        _wait_calm(generator)
    return low


def _wait_calm(generator: Generator) -> None:
    """What was too much is still in the server."""
    for _ in range(200):
        if generator.one_ms() < P99_MS:
            return


# ---- 3. gRPC


def grpc_unary(quick: bool) -> Report:
    servers = ("headway-grpc", "bare-grpc-aio", "bare-grpc-sync")
    seconds, rounds = (2.0, 1) if quick else (4.0, 4)
    rates: dict[str, list[float]] = {name: [] for name in servers}
    costs: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name in servers:
            with serving(name) as server:
                grpc_load(server.port, seconds / 4)
                before_s = server.cpu_s
                rates[name].append(grpc_load(server.port, seconds))
                calls = rates[name][-1] * seconds
                costs[name].append((server.cpu_s - before_s) / calls * 1e6)
    ours, aio, sync = (statistics.median(rates[name]) for name in servers)
    return Report(
        "S3. gRPC unary, 16 floats in, 16 out, 64 calls in flight (requests/s)",
        ["server", "rate", "µs of CPU a call"],
        [[name, _spread(rates[name]), f"{statistics.median(costs[name]):.0f}"] for name in servers],
        [
            Bar(
                "≥ 70 % of bare grpc.aio's echo (aim 3 ×)", f"{ours / aio:.1f} ×", ours >= 0.7 * aio
            ),
            Bar(
                "≥ 70 % of bare grpc's, with threads (aim 3 ×)",
                f"{ours / sync:.1f} ×",
                ours >= 0.7 * sync,
            ),
        ],
        [f"median of {rounds} runs of {seconds:g} s in turns; least to most in brackets"],
    )


def grpc_load(port: int, seconds: float) -> float:
    """Calls answered with OK in a second, one at a time on each of 64 connections. Raises
    RuntimeError where one is not."""
    from headway.loadgen.grpc import call_bytes, grpc_opener
    from headway.server.grpc import inference_pb2 as pb

    request = pb.ModelInferRequest(model_name="zero")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(bytes(64))
    address = Address("127.0.0.1", port, is_grpc=True)
    call = call_bytes(address, "ModelInfer", request.SerializeToString())
    with Driver(grpc_opener(address), [AskedRequest(call)]) as driver:
        samples = driver.closed_loop(64, seconds)
    if samples.errors:
        raise RuntimeError(f"calls failed: {samples.errors}")
    return float(samples.is_ok.sum()) / seconds


# ---- 4. a real model


def http_minilm(quick: bool) -> Report:
    seconds = 10.0 if quick else 30.0
    texts = _texts(256)
    offline = _offline_rates(texts, seconds=2.0 if quick else 6.0)
    with serving("headway-minilm") as server:
        exchanges = [
            post(
                "/v1/embeddings",
                msgspec.json.encode({"model": "minilm", "input": text}),
                b'"embedding"',
            )
            for text in texts
        ]
        with server.loaded(exchanges) as generator:
            generator.closed(64, 3.0)
            load = generator.closed(64, seconds)
    again = _offline_rates(texts, seconds=2.0 if quick else 6.0)
    best = max(*offline.values(), *again.values())
    typical = max((a + b) / 2 for a, b in zip(offline.values(), again.values(), strict=True))
    rows: list[list[object]] = [
        [f"offline, batches of {rows}", f"{offline[rows]:.1f}/s, {again[rows]:.1f}/s"]
        for rows in offline
    ]
    rows.append(["served, 64 connections", f"{load.per_s:.1f}/s"])
    return Report(
        "S4. minilm, one thread, texts of 5–256 tokens",
        ["how", "texts/s (offline: before and after the served run)"],
        rows,
        [
            Bar(
                "served ≥ 90 % of the best offline rate at any batch size",
                f"{load.per_s / typical:.0%} ({load.per_s / best:.0%} of the best single run)",
                load.per_s >= 0.9 * typical and load.failed == 0,
            )
        ],
        [f"p50 {load.percentile_ms(50):,.0f} ms, p99 {load.percentile_ms(99):,.0f} ms"],
    )


def _texts(count: int) -> list[str]:
    """Lengths like real ones: median about 31 tokens, a tail to 256."""
    rng = random.Random(4)
    lengths = [min(254, max(3, round(rng.lognormvariate(3.4, 0.9)))) for _ in range(count)]
    return [" ".join(rng.choices(("the", "train", "leaves", "now"), k=each)) for each in lengths]


def _offline_rates(texts: Sequence[str], *, seconds: float) -> dict[int, float]:
    """The model alone on the server's core, in arrival order, by batch size."""
    program = (
        "import os, sys, time, json; os.sched_setaffinity(0, {1})\n"
        "from headway.models.ready.embed import MiniLM\n"
        "model = MiniLM(); model.setup(); model.load()\n"
        "texts, seconds = json.load(sys.stdin)\n"
        "items = [model.prepare(text) for text in texts]\n"
        "model.predict(items[:4]); found = {}\n"
        "for rows in (1, 2, 4, 8, 16, 32, 64):\n"
        "    done, at, start = 0, 0, time.perf_counter()\n"
        "    while time.perf_counter() - start < seconds:\n"
        "        batch = items[at : at + rows]; at = (at + rows) % len(items)\n"
        "        model.predict(batch); done += len(batch)\n"
        "    found[rows] = done / (time.perf_counter() - start)\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=msgspec.json.encode([list(texts), seconds]),
        capture_output=True,
        check=True,
    )
    found: dict[str, float] = msgspec.json.decode(done.stdout)
    return {int(rows): rate for rows, rate in found.items()}


# ---- 5. start, first request, idle


def start_and_idle(quick: bool) -> Report:
    rounds = 2 if quick else 5
    loads, readies, firsts, steadies, idles = [], [], [], [], []
    body = msgspec.json.encode({"model": "minilm", "input": "how fast is the first answer"})
    exchange = post("/v1/embeddings", body, b'"embedding"')
    with fresh_cache():
        for _ in range(1 + rounds):
            loads.append(_load_alone_s())
            started = time.perf_counter()
            with starting("headway-minilm") as server:
                _wait_ready(server.port)
                readies.append(time.perf_counter() - started)
                with server.loaded([exchange]) as generator:
                    firsts.append(generator.one_ms())
                    steadies.append(generator.closed(1, 2.0).percentile_ms(50))
                time.sleep(1.0)
                before = server.cpu_s
                time.sleep(3.0)
                idles.append((server.cpu_s - before) / 3.0)
    beyond = [ready - load for ready, load in zip(readies, loads, strict=True)]
    first = [a / b for a, b in zip(firsts, steadies, strict=True)]
    rows = [
        ["the very first start to ready, probes included", f"{readies[0]:.2f} s"],
        ["later starts to ready", f"{statistics.median(readies[1:]):.2f} s"],
        ["the model's own imports and load", f"{statistics.median(loads):.2f} s"],
        ["first request after ready", f"{statistics.median(firsts):.1f} ms"],
        ["steady p50", f"{statistics.median(steadies):.1f} ms"],
        ["idle CPU", f"{statistics.median(idles):.2%}"],
    ]
    return Report(
        "S5. Start, first request, idle (minilm)",
        ["what", "median"],
        rows,
        [
            Bar(
                "ready < 2 s beyond the model's own load",
                f"{statistics.median(beyond[1:]):.2f} s ({max(beyond[1:]):.2f} at most); "
                f"the very first start {beyond[0]:.2f} s",
                max(beyond) < 2.0,
            ),
            Bar(
                "first request ≤ 1.5× steady p50",
                f"{statistics.median(first):.2f}×",
                statistics.median(first) <= 1.5,
            ),
            Bar("idle CPU ≈ 0 %", f"{max(idles):.2%} at most", max(idles) < 0.005),
        ],
        [f"one start with an empty cache, then {rounds} with the table that it left"],
    )


def _wait_ready(port: int) -> None:
    request = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(request)
                if connection.recv(4096).startswith(b"HTTP/1.1 200"):
                    return
        except OSError:
            pass
        time.sleep(0.005)


def _load_alone_s() -> float:
    """A process that only imports what the model needs, and loads it."""
    program = (
        "import os; os.sched_setaffinity(0, {1})\n"
        "from headway.models.ready.embed import MiniLM\n"
        "model = MiniLM(); model.setup(); model.load(); model.predict([[101, 102]])"
    )
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - started


def _spread(values: Sequence[float]) -> str:
    middle = f"{statistics.median(values):,.0f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.0f}–{max(values):,.0f})"


BENCHMARKS: dict[str, Benchmark] = {
    "http-zero": http_zero,
    "http-sleep": http_sleep,
    "grpc-unary": grpc_unary,
    "http-minilm": http_minilm,
    "start": start_and_idle,
}
