"""One run: the server, the load, the faults, and what is to be said of them."""

import asyncio
import os
import re
import tempfile
import time
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
_SAMPLE_EVERY_S = 2.0


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


def run(plan: Plan, *, samples: bool = False) -> Run:
    """Runs the plan against a server of its own. `samples`: and see whether anything grows."""
    result = Run(plan, Ledger())
    shared_before = resources.shm_files()
    with tempfile.TemporaryDirectory(prefix="headway-chaos-") as folder:
        with served(Path(folder), TOML) as server:
            asyncio.run(_disturb(server, result, samples=samples))
            result.restarts = _restarts(server)
            queued = sum(map(float, _QUEUED.findall(server.metrics())))
            processes = resources.children_of(server.pid)
        result.log = server.lines
    result.recoveries = recoveries(plan, result.ledger.entries.values())
    result.broken = [
        *result.ledger.broken(),
        *_never_recovered(result.recoveries),
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


def _restarts(server: Server) -> dict[str, int]:
    restarts: dict[str, int] = {}
    for worker in server.workers():
        model = worker["model"]
        restarts[model] = restarts.get(model, 0) + worker["restarts"]
    return restarts


def _never_recovered(found: list[Recovery]) -> list[Broken]:
    never = [f"{each.fault.kind} of {each.fault.model}" for each in found if _is_never(each)]
    return _some("faults after which the full rate never came back", *_counted(never))


def _is_never(recovery: Recovery) -> bool:
    return recovery.full_rate_s is None


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
