"""The gRPC server: listens, holds the connections, and finds the methods."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from headway.wire.body_room import BodyRoom
from headway.wire.connections import client_of
from headway.wire.http2.budget import Budget, address_budget
from headway.wire.http2.connection import Connection
from headway.wire.http2.heads import Metadata
from headway.wire.http2.lifetime import Lifetime
from headway.wire.http2.method import Method
from headway.wire.limits import ConnectionLimits
from headway.wire.port import Port

_MOST_ADDRESSES = 4096  # with a remembered budget, the latest ones
_UNPACKED_AT_ONCE = 2  # messages; each may grow to the limit before it is counted

# The caller, by a method's path and the call's metadata, or a Refusal. It is asked at the call's
# head, before anything of its request is read.
Admit: TypeAlias = Callable[[str, Metadata], Any]


class H2Server(Port[Lifetime]):
    def __init__(
        self,
        methods: Mapping[str, Method],
        config: ConnectionLimits,
        *,
        limit_bytes: int,
        tls: Callable[[], ssl.SSLContext] | None = None,
        room: BodyRoom | None = None,
        admit: Admit | None = None,
    ) -> None:
        """`methods`, by path. `admit`: None where every client may call every method."""
        super().__init__(config, tls=tls, room=room)
        self._limit_bytes = limit_bytes
        self._find = methods.get
        self.admit = admit
        self.unpacking = asyncio.Semaphore(_UNPACKED_AT_ONCE)
        self._budgets: dict[str, Budget] = {}  # by client, the latest last

    # ---- life

    async def start(self, host: str, port: int) -> int:
        """The port. Raises OSError where it is taken."""
        loop = asyncio.get_running_loop()
        return await self._listen(
            lambda: Connection(self._find, self._config, loop, self, limit_bytes=self._limit_bytes),
            host,
            port,
        )

    async def stop(self, grace_s: float | None) -> None:
        """Accept no more connections, finish running calls, refuse the remaining ones at the
        deadline. A second call may shorten that."""
        await self._stop(Lifetime.finish_calls, grace_s or 0.0)

    # ---- the connections call

    def budget_of(self, address: str) -> Budget:
        client = client_of(address)
        budget = self._budgets.pop(client, None)
        if budget is None:
            budget = address_budget(asyncio.get_running_loop().time())
            if len(self._budgets) >= _MOST_ADDRESSES:
                del self._budgets[next(iter(self._budgets))]
        self._budgets[client] = budget
        return budget

    def opened(self, connection: Lifetime, address: str) -> bool:
        return self._take(connection, address) is None

    def closed(self, connection: Lifetime) -> None:
        self._connections.remove(connection)

    def left(self, task: "asyncio.Task[None]") -> None:
        self._connections.leaves(task)
