"""One run: the server, the load, the faults, and what is to be said of them."""

import asyncio
import os
import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos import resources
from benchmarks.chaos.accounting import Broken, Ledger
from benchmarks.chaos.faults import run_faults
from benchmarks.chaos.load import run_load
from benchmarks.chaos.models import TOML
from benchmarks.chaos.recovery import Recovery, recoveries
from benchmarks.chaos.resources import Trend
from benchmarks.chaos.scenario import Plan
from benchmarks.chaos.server import Server, served

_QUEUED = re.compile(r"^headway_queue_rows\{.*\} (\S+)$", re.MULTILINE)
_RESTARTED = re.compile(r"(\w+): worker \d+ is ready again")
_SAMPLE_EVERY_S = 2.0
_BACK_S = 20.0  # for every worker to be ready, at the end


@dataclass(slots=True)
class Run:
    plan: Plan
    ledger: Ledger
    recoveries: list[Recovery] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)  # faults that could not be done
    trends: list[Trend] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


def run(plan: Plan, *, toml: str = TOML, samples: bool = False) -> Run:
    """Runs the plan against a server of its own. `samples`: and see whether anything grows."""
    result = Run(plan, Ledger())
    shared_before = resources.shm_files()
    with tempfile.TemporaryDirectory(prefix="headway-chaos-") as folder:
        with served(Path(folder), toml) as server:
            asyncio.run(_disturb(server, result, samples=samples))
            not_back = _not_back(server)
            queued = sum(map(float, _QUEUED.findall(server.metrics())))
            processes = resources.children_of(server.pid)
        result.log = server.lines
        result.restarts = _restarts(server.lines)
    result.recoveries = recoveries(plan, result.ledger.entries.values())
    result.broken = [
        *result.ledger.broken(),
        *_some("models without all of their workers at the end", *_counted(not_back)),
        *_left_behind(processes, shared_before),
        *_some("rows that still wait in the server", int(queued), ""),
        *_some("complaints in the server's log", *_counted(server.complaints())),
        *_some("reloads that failed", *_counted(_reloads(result.missed))),
        *_some("things that grow", *_counted([t.measure.name for t in _growing(result.trends)])),
    ]
    if server.exit_code != 0:
        result.broken.append(Broken("the server's exit status", 1, str(server.exit_code)))
    return result


async def _disturb(server: Server, result: Run, *, samples: bool) -> None:
    plan, started = result.plan, time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - started

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(
            run_load(
                plan.requests,
                result.ledger,
                http_port=server.http_port,
                grpc_address=server.grpc,
                clock=clock,
            )
        )
        faults = tasks.create_task(run_faults(plan.faults, server, clock=clock))
        watching = samples and tasks.create_task(
            resources.watch(server, plan.seconds, _SAMPLE_EVERY_S, clock=clock)
        )
    result.missed = faults.result()
    if watching:
        result.trends = resources.trends(watching.result())


# ---- what must hold beside the account of the requests


def _restarts(log: list[str]) -> dict[str, int]:
    """By model. The log knows those of versions, too, that are gone."""
    return Counter(found[1] for line in log if (found := _RESTARTED.search(line)))


def _not_back(server: Server) -> list[str]:
    """Models whose workers do not come back, though nothing disturbs them any more."""
    until = time.monotonic() + _BACK_S
    while True:
        workers = server.workers()
        missing = {each["model"]: each["state"] for each in workers if each["state"] != "ready"}
        if not missing or time.monotonic() > until:
            return [f"{model}: {state}" for model, state in missing.items()]
        time.sleep(0.1)


def _left_behind(processes: list[int], shared_before: set[str]) -> list[Broken]:
    """The server is gone: so must be all that it started and made."""
    orphans = [str(pid) for pid in processes if os.path.exists(f"/proc/{pid}")]
    files = sorted(resources.shm_files() - shared_before)
    return [
        *_some("processes left behind", *_counted(orphans)),
        *_some("files left in /dev/shm", *_counted(files)),
    ]


def _reloads(missed: list[str]) -> list[str]:
    return [each for each in missed if each.startswith("reload")]


def _growing(found: list[Trend]) -> list[Trend]:
    return [trend for trend in found if not trend.is_flat]


def _counted(cases: list[str]) -> tuple[int, str]:
    return len(cases), cases[0] if cases else ""


def _some(what: str, count: int, example: str) -> list[Broken]:
    return [Broken(what, count, example)] if count else []
