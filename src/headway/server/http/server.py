"""The default HTTP server: listens, holds the connections, and stops without losing an answer."""

import asyncio
import ipaddress
import logging
import ssl
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from headway.config import ServerConfig
from headway.server.app import App
from headway.server.http.protocol import Admit, Connection, GuardedConnection

logger = logging.getLogger(__name__)

T = TypeVar("T")
_MOST_REFUSED = 256  # connections that are told why they are refused; beyond, they are cut
_LAST_WORDS_S = 1.0  # for the refusals to leave and for cancelled handlers to clean up


class HttpServer:
    """`async with HttpServer(app, config) as server:` serves until the block ends, then drains."""

    def __init__(
        self,
        app: App,
        config: ServerConfig,
        *,
        tls: ssl.SSLContext | None = None,
        admit: Admit | None = None,
    ) -> None:
        """`admit` says of a request's headers why its body is not worth reading."""
        self._app = app
        self._config = config
        self._tls = tls
        self._admit = admit
        self._addresses: Counter[str] = Counter()  # of the connections there are
        self._listener: asyncio.Server | None = None
        self._connections: dict[Connection, str] = {}  # and where each comes from
        self._leaving: set[asyncio.Task[None]] = set()  # cancelled handlers
        self._empty = asyncio.Event()
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
        self._listener = await loop.create_server(
            lambda: self._connection(loop),
            self._config.host,
            self._config.port,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else self._config.header_timeout_s,
            backlog=1024,
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    def change(self, config: ServerConfig) -> None:
        """Limits and times of connections from now on; where it listens stays."""
        self._config = config

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
        for connection in list(self._connections):
            connection.finish()
        if not await self._wait_empty(self._config.drain_s if drain_s is None else drain_s):
            logger.warning("stopping with %d connections busy", len(self._connections))
            for connection in list(self._connections):
                connection.cut()
            await self._wait_empty(_LAST_WORDS_S)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_LAST_WORDS_S)

    async def _wait_empty(self, timeout_s: float) -> bool:
        if self._connections:
            self._empty.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._empty.wait()
            except TimeoutError:
                return False
        return True

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
        elif self._addresses[client] >= most_of_one:
            full = f"too many connections from {client}; one address may have {most_of_one}"
        else:
            full = None if self._listener is not None else "the server is stopping"
        self._connections[connection] = client
        self._addresses[client] += 1
        return full

    def closed(self, connection: Connection, task: asyncio.Task[None] | None) -> None:
        client = self._connections.pop(connection, None)
        if client is not None:
            self._addresses[client] -= 1
            if not self._addresses[client]:
                del self._addresses[client]
        if task is not None:
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        if not self._connections:
            self._empty.set()


def client_of(address: str) -> str:
    """Whoever has one address of IPv6 has the 2^64 beside it."""
    if ":" not in address:
        return address
    network = ipaddress.ip_network((address.partition("%")[0], 64), strict=False)
    return str(network)


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
