"""What is done to the server from outside: signals to its workers, reloads of its models."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from benchmarks.chaos.scenario import FROM_OUTSIDE, Fault
from benchmarks.chaos.server import Server

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


async def run_faults(
    faults: Sequence[Fault], server: Server, *, clock: Callable[[], float]
) -> list[str]:
    """Each at its time. What could not be done."""
    missed: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        for fault in faults:
            if fault.kind in FROM_OUTSIDE:
                await asyncio.sleep(fault.at - clock())
                tasks.create_task(asyncio.to_thread(_do, fault, server, missed))
    return missed


def _do(fault: Fault, server: Server, missed: list[str]) -> None:
    try:
        if fault.kind == "reload":
            server.reload(fault.model)
        else:
            _signal(fault, server)
    except (OSError, LookupError) as error:  # the server answers an operator, too
        missed.append(f"{fault.kind} of {fault.model} at {fault.at:.3f}: {error}")


def _signal(fault: Fault, server: Server) -> None:
    pids = sorted(
        worker["pid"]
        for worker in server.workers()
        if worker["model"] == fault.model and worker["pid"] is not None
    )
    if not pids:
        raise LookupError("no worker is there")
    with suppress(ProcessLookupError):  # ended by itself a moment ago
        os.kill(pids[fault.pick % len(pids)], _SIGNALS[fault.kind])
