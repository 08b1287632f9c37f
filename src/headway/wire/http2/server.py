"""Our gRPC server: listens, holds the connections, and finds the methods. It has the face of
grpc.aio's server as far as services need it."""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from headway.config import ServerConfig
from headway.server.auth.keys import Caller
from headway.server.grpc.calls import Refusal
from headway.wire.body_room import BodyRoom
from headway.wire.connections import client_of
from headway.wire.http2.budget import Budget, address_budget
from headway.wire.http2.connection import Connection
from headway.wire.http2.heads import Metadata
from headway.wire.http2.lifetime import Lifetime
from headway.wire.http2.method import Direct, Method
from headway.wire.port import Port

_MOST_REMEMBERED = 1024  # paths; a client that makes names up costs no more than this
_MOST_ADDRESSES = 4096  # with a remembered budget, the latest ones
_UNPACKED_AT_ONCE = 2  # messages; each may grow to the limit before it is counted


class _Details(NamedTuple):
    """What a generic handler is asked with."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()


class Entrance(Protocol):
    """Looks at a call's head, before anything of its request is read."""

    @property
    def admit(self) -> Callable[[str, Metadata], Caller | Refusal] | None:
        """Asked with a path and the metadata; None: every client may do everything."""
        ...

    def is_open(self, path: str) -> bool:
        """Whether a call of it needs no key."""
        ...


class H2Server(Port[Lifetime]):
    def __init__(
        self,
        config: ServerConfig,
        *,
        limit_bytes: int,
        tls: Callable[[], ssl.SSLContext] | None = None,
        room: BodyRoom | None = None,
        entrance: Entrance | None = None,
    ) -> None:
        super().__init__(config, tls=tls, room=room)
        self._limit_bytes = limit_bytes
        self._handlers: list[Any] = []
        self._direct: dict[str, Direct] = {}
        self._methods: dict[str, Method | None] = {}
        self.unpacking = asyncio.Semaphore(_UNPACKED_AT_ONCE)
        self._entrance = entrance
        self._budgets: dict[str, Budget] = {}  # by client, the latest last

    # ---- what is served

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._handlers += handlers

    def add_direct(self, path: str, direct: Direct) -> None:
        self._direct[path] = direct

    def _find(self, path: str) -> Method | None:
        try:
            return self._methods[path]
        except KeyError:
            pass
        if len(self._methods) >= _MOST_REMEMBERED:
            self._methods.clear()
        found = (each.service(_Details(path)) for each in self._handlers)
        handler = next((each for each in found if each is not None), None)
        method = None
        if handler is not None:
            is_open = self._entrance is not None and self._entrance.is_open(path)
            method = _method_of(handler, self._direct.get(path), is_open=is_open)
        self._methods[path] = method
        return method

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
        """Accept nothing, finish what has begun, refuse the rest at the deadline. A second call
        may shorten it."""
        await self._stop(Lifetime.finish_calls, grace_s or 0.0)

    # ---- the connections call

    @property
    def admit(self) -> Callable[[str, Metadata], Caller | Refusal] | None:
        return None if self._entrance is None else self._entrance.admit

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


def _method_of(handler: Any, direct: Direct | None, *, is_open: bool) -> Method:
    """`handler` is a grpc.RpcMethodHandler: one of its four functions is set."""
    functions = (
        *(handler.unary_unary, handler.unary_stream),
        *(handler.stream_unary, handler.stream_stream),
    )
    return Method(
        run=next(each for each in functions if each is not None),
        parse=handler.request_deserializer or bytes,
        serialise=handler.response_serializer or bytes,
        takes_stream=handler.request_streaming,
        gives_stream=handler.response_streaming,
        direct=direct,
        is_open=is_open,
    )
