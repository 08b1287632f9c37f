"""The default HTTP server: listens, holds the connections, and stops without losing an answer."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Self

from headway.wire.application import HttpApplication
from headway.wire.body_room import BodyRoom
from headway.wire.http1.connection import Connection
from headway.wire.http1.known_heads import KnownHeads
from headway.wire.limits import Listening
from headway.wire.port import Port, bracketed

logger = logging.getLogger(__name__)


class HttpServer(Port[Connection]):
    """`async with HttpServer(app, config) as server:` serves until the block ends, then drains."""

    def __init__(
        self,
        app: HttpApplication,
        config: Listening,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        room: BodyRoom | None = None,
    ) -> None:
        super().__init__(config, tls=tls, room=room)
        self._app = app
        self.known_heads = KnownHeads()
        self._host, self.port = config.host, config.port

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{bracketed(self._host)}:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.port = await self._listen(
            lambda: Connection(self._app, self._config, loop, self), self._host, self.port
        )

    async def stop(self, drain_s: float | None = None) -> None:
        """Accept no more connections, finish running requests, refuse the remaining ones at the
        deadline."""
        if self._listener is not None:
            drain_s = self._config.drain_s if drain_s is None else drain_s
            await self._stop(Connection.finish, drain_s)

    def _cutting(self, connections: int) -> None:
        logger.warning("stopping with %d connections busy", connections)

    # --- the connections call

    def opened(self, connection: Connection, address: str) -> str | None:
        return self._take(connection, address)

    def closed(self, connection: Connection, task: asyncio.Task[None] | None) -> None:
        self._connections.remove(connection)
        if task is not None:
            self._connections.leaves(task)
