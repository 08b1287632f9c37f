"""The default HTTP server: listens, holds the connections, and stops without losing an answer."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from headway.config import ServerConfig
from headway.server.app import App
from headway.server.net.connections import Connections, client_of
from headway.server.net.holding import BodyRoom
from headway.server.net.http1.protocol import Admit, Connection, GuardedConnection
from headway.server.net.listener import Listener, listen

logger = logging.getLogger(__name__)

T = TypeVar("T")
_MOST_REFUSED = 256  # connections that are told why they are refused; beyond, they are cut


class HttpServer:
    """`async with HttpServer(app, config) as server:` serves until the block ends, then drains."""

    def __init__(
        self,
        app: App,
        config: ServerConfig,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        admit: Admit | None = None,
        room: BodyRoom | None = None,
    ) -> None:
        """`admit` says of a request's headers why its body is not worth reading; `room` is shared
        with the other front ends."""
        self._app = app
        self._config = config
        self._tls = tls
        self._admit = admit
        self.room = room or BodyRoom(config)
        self._listener: Listener | None = None
        self._connections: Connections[Connection] = Connections()
        self.port = config.port

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        host = self._config.host
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener = await listen(
            lambda: self._connection(loop),
            self._config.host,
            self._config.port,
            tls=self._tls,
            limits=lambda: self._config,
        )
        self.port = self._listener.port

    def change(self, config: ServerConfig) -> None:
        """Limits and times of connections from now on; where it listens stays."""
        self._config = config
        self.room.change(config)

    def _connection(self, loop: asyncio.AbstractEventLoop) -> Connection:
        if self._admit is None:
            return Connection(self._app, self._config, loop, self)
        return GuardedConnection(self._app, self._config, loop, self, self._admit)

    async def stop(self, drain_s: float | None = None) -> None:
        """Accept nothing, finish what has begun, refuse the rest at the deadline."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        listener.close()
        for connection in self._connections:
            connection.finish()
        limit_s = self._config.drain_s if drain_s is None else drain_s
        if not await self._connections.wait_empty(limit_s):
            logger.warning("stopping with %d connections busy", len(self._connections))
            await self._connections.cut()
        await self._connections.wait_left()

    # --- the connections call

    def opened(self, connection: Connection, address: str) -> str | None:
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

    def closed(self, connection: Connection, task: asyncio.Task[None] | None) -> None:
        self._connections.remove(connection)
        if task is not None:
            self._connections.leaves(task)


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
