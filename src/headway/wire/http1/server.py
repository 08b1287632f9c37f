"""The default HTTP server: listens, holds the connections, and stops without losing an answer."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from headway.config import ServerConfig
from headway.server.app import App
from headway.server.handing_over import short_turns_of_the_lock
from headway.wire.body_room import BodyRoom
from headway.wire.http1.lifetime import Lifetime
from headway.wire.http1.protocol import Admit, Connection, GuardedConnection
from headway.wire.port import Port, bracketed

logger = logging.getLogger(__name__)

T = TypeVar("T")


class HttpServer(Port[Lifetime]):
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
        """`admit` says of a request's headers why its body is not worth reading."""
        super().__init__(config, tls=tls, room=room)
        self._app = app
        self._admit = admit
        self.port = config.port

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{bracketed(self._config.host)}:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        host, port = self._config.host, self._config.port
        self.port = await self._listen(lambda: self._connection(loop), host, port)

    def _connection(self, loop: asyncio.AbstractEventLoop) -> Connection:
        if self._admit is None:
            return Connection(self._app, self._config, loop, self)
        return GuardedConnection(self._app, self._config, loop, self, self._admit)

    async def stop(self, drain_s: float | None = None) -> None:
        """Accept nothing, finish what has begun, refuse the rest at the deadline."""
        if self._listener is not None:
            await self._stop(Lifetime.finish, self._config.drain_s if drain_s is None else drain_s)

    def _cutting(self, connections: int) -> None:
        logger.warning("stopping with %d connections busy", connections)

    # --- the connections call

    def opened(self, connection: Lifetime, address: str) -> str | None:
        return self._take(connection, address)

    def closed(self, connection: Lifetime, task: asyncio.Task[None] | None) -> None:
        self._connections.remove(connection)
        if task is not None:
            self._connections.leaves(task)


@short_turns_of_the_lock()
def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, on uvloop where there is one, in a process that is the server's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
