"""A port of either protocol: it listens, holds its connections up to their limits, and stops
without losing an answer."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Generic

from headway.wire.body_room import BodyRoom
from headway.wire.connections import C, Connections, client_of
from headway.wire.limits import ConnectionLimits
from headway.wire.listener import Listener, listen
from headway.wire.read_turns import ReadTurns
from headway.wire.writes import Writes

READ_BYTES = 2**16  # of one connection, before others have their turn
_MOST_REFUSED = 256  # connections that get an answer; beyond, they are cut


def bracketed(host: str) -> str:
    """The host as it is written before a port."""
    return f"[{host}]" if ":" in host else host


class Port(Generic[C]):
    def __init__(
        self,
        config: ConnectionLimits,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        room: BodyRoom | None = None,
    ) -> None:
        """`room` is shared with the other front ends."""
        self._config = config
        self._tls = tls
        self.room = room or BodyRoom(config)
        self.turns = ReadTurns()
        self.writes = Writes(config.stream_interval_s)
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._listener: Listener | None = None
        self._connections: Connections[C] = Connections()

    def change(self, config: ConnectionLimits) -> None:
        """Change limits and times of new connections; the address stays."""
        self._config = config
        self.room.change(config)

    async def _listen(self, make: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> int:
        """The port. Raises OSError where it is taken."""
        self._listener = await listen(make, host, port, tls=self._tls, limits=lambda: self._config)
        return self._listener.port

    async def _stop(self, finish: Callable[[C], None], drain_s: float) -> None:
        """Accept no more connections, let them finish their requests, close the remaining ones at
        the deadline. A second call may shorten that."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in self._connections:
            finish(connection)
        if not await self._connections.wait_empty(drain_s):
            self._cutting(len(self._connections))
            await self._connections.cut()
        await self._connections.wait_left()

    def _cutting(self, connections: int) -> None:
        """The drain has ended with this many open connections."""

    # ---- the connections call

    def _take(self, connection: C, address: str) -> str | None:
        """Why there is no room for it; None: there is room; "": not even for an answer."""
        client = client_of(address)
        most = self._config.max_connections
        most_of_one = self._config.max_connections_per_address
        full: str | None
        if len(self._connections) >= most + _MOST_REFUSED:
            full = ""
        elif len(self._connections) >= most:
            full = f"too many connections; the server takes {most}"
        elif self._connections.of(client) >= most_of_one:
            full = f"too many connections from {client}; one address may have {most_of_one}"
        else:
            full = None if self._listener is not None else "the server is stopping"
        self._connections.add(connection, client)
        return full
