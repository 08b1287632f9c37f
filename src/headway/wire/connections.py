"""The connections of one port: their client addresses, and when the last has gone."""

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

_LAST_WORDS_S = 1.0  # for the refusals to leave, and for what was cancelled to clean up


class Cuttable(Protocol):
    def cut(self) -> None:
        """Time is up: refuse the requests that still wait, and end."""


C = TypeVar("C", bound=Cuttable)


class Connections(Generic[C]):
    def __init__(self) -> None:
        self._clients: dict[C, str] = {}
        self._counts: Counter[str] = Counter()  # by client
        self._leaving: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._clients))  # they may end meanwhile

    def of(self, client: str) -> int:
        return self._counts[client]

    def add(self, connection: C, client: str) -> None:
        self._clients[connection] = client
        self._counts[client] += 1

    def remove(self, connection: C) -> None:
        client = self._clients.pop(connection)
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]
        if not self._clients:
            self._empty.set()

    def leaves(self, task: "asyncio.Task[None]") -> None:
        """Remember a closed connection's cancelled task, which may still be cleaning up."""
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    # ---- stopping

    async def wait_empty(self, timeout_s: float) -> bool:
        if self._clients:
            self._empty.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._empty.wait()
            except TimeoutError:
                return not self._clients
        return True

    async def cut(self) -> None:
        for connection in self:
            connection.cut()
        await self.wait_empty(_LAST_WORDS_S)

    async def wait_left(self) -> None:
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_LAST_WORDS_S)


def client_of(address: str) -> str:
    """A client with one address of IPv6 has the 2^64 beside it."""
    if ":" not in address:
        return address
    network = ipaddress.ip_network((address.partition("%")[0], 64), strict=False)
    return str(network)
