"""Sends the plan's requests when they are due, whatever the server does, and keeps the account."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import grpc

from benchmarks.chaos.accounting import Ledger
from benchmarks.chaos.clients import Client, Failed, GrpcClient, HttpClient, Left
from benchmarks.chaos.http import Pool
from benchmarks.chaos.scenario import Request, Transport

PATIENCE_S = 60.0  # for an answer; without one by then a request has no outcome


async def run_load(
    requests: Sequence[Request],
    ledger: Ledger,
    *,
    http_port: int,
    grpc_address: str,
    clock: Callable[[], float],  # seconds since the start
    patience_s: float = PATIENCE_S,
) -> None:
    """Returns when every request has its outcome, or is past hope."""
    pool = Pool(http_port, ledger.stray)
    async with grpc.aio.insecure_channel(grpc_address) as channel:
        clients: dict[Transport, Client] = {"http": HttpClient(pool), "grpc": GrpcClient(channel)}
        async with asyncio.TaskGroup() as tasks:
            for request in requests:
                await asyncio.sleep(request.due_at - clock())
                ledger.sent(request, clock())
                asking = asyncio.wait_for(clients[request.transport].ask(request), patience_s)
                tasks.create_task(_settle(request, asking, ledger, clock))
    pool.close()


async def _settle(
    request: Request,
    asking: Awaitable[list[str]],
    ledger: Ledger,
    clock: Callable[[], float],
) -> None:
    try:
        digests = await asking
    except Left:
        ledger.left(request, clock())
    except Failed as error:
        ledger.failed(request, error.kind, str(error), clock())
    except TimeoutError:
        pass  # no outcome: the ledger says so in the end
    except Exception as error:  # noqa: BLE001  an answer nobody can read is an answer, too
        ledger.failed(request, "unreadable", f"{type(error).__name__}: {error}", clock())
    else:
        ledger.answered(request, digests, clock())
