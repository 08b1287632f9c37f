"""Listening on a port, with TLS or without. Handshakes that are not finished have limits, too."""

import asyncio
import errno
import functools
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from headway.errors import ConfigError
from headway.wire.limits import ConnectionLimits

_log = logging.getLogger(__name__)
_BACKLOG = 1024
_AT_ONCE = 64  # accepted in one turn of the event loop
_PAUSE_S = 1.0  # when the process has no descriptors left


class Listener(Protocol):
    port: int

    def close(self) -> None:
        """Accept no more connections; open ones stay."""


async def listen(
    make: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    *,
    tls: Callable[[], ssl.SSLContext] | None,  # for each handshake
    limits: Callable[[], ConnectionLimits],  # as they are at each new connection
) -> Listener:
    """Raises OSError where the port is taken."""
    if tls is not None:
        return TlsListener(await _bound(host, port), make, tls, limits)
    loop = asyncio.get_running_loop()
    return _PlainListener(await loop.create_server(make, host, port, backlog=_BACKLOG))


def cannot_listen(where: str, error: OSError | UnicodeError, flag: str) -> ConfigError:
    """The error for the operator: port taken, not permitted, no such address, or no such name."""
    number = getattr(error, "errno", None) or 0
    reason = os.strerror(number) if number > 0 else error  # a resolver's are below
    hint = f"; {flag} chooses another port" if number == errno.EADDRINUSE else ""
    return ConfigError(f"cannot listen on {where}: {reason}{hint}")


class _PlainListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]
        self.close = server.close


class TlsListener:
    """Accepts by itself: the event loop's own server hides connections until their handshake."""

    def __init__(
        self,
        sockets: list[socket.socket],
        make: Callable[[], asyncio.BaseProtocol],
        tls: Callable[[], ssl.SSLContext],
        limits: Callable[[], ConnectionLimits],
    ) -> None:
        self._sockets = sockets
        self._make = make
        self._tls = tls
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._is_closed = False
        self.port: int = sockets[0].getsockname()[1]
        for each in sockets:
            self._watch(each)

    def close(self) -> None:
        self._is_closed = True
        for each in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        for handshake in list(self._handshakes):
            handshake.cancel()

    def _watch(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted = listening.accept()[0]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors, no memory: it would be readable for ever
                _log.error("connections cannot be accepted for a moment: %s", error)
                self._loop.remove_reader(listening)
                self._loop.call_later(_PAUSE_S, self._watch, listening)
                return
            accepted.setblocking(False)
            self._begin(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        """Begin a handshake. If there are too many, the oldest is dropped: an honest one takes only
        a moment."""
        if len(self._handshakes) >= self._limits().max_handshakes:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.cancel()
        task = self._loop.create_task(self._shake_hands(accepted))
        self._handshakes[task] = None
        task.add_done_callback(functools.partial(self._ended, accepted))

    async def _shake_hands(self, accepted: socket.socket) -> None:
        await self._loop.connect_accepted_socket(
            self._make,
            accepted,
            ssl=self._tls(),
            ssl_handshake_timeout=self._limits().header_timeout_s,
        )

    def _ended(self, accepted: socket.socket, handshake: "asyncio.Task[None]") -> None:
        """End a handshake. A slow one, or one that is not TLS, is the peer's mistake and not
        logged."""
        self._handshakes.pop(handshake, None)
        error = None if handshake.cancelled() else handshake.exception()
        if handshake.cancelled() or error is not None:
            accepted.close()  # where it was cancelled before it began, nothing else closes it
        if error is not None and not isinstance(error, OSError):
            _log.error("a connection could not be set up", exc_info=error)


async def _bound(host: str, port: int) -> list[socket.socket]:
    """A socket for each address that the host has on this machine."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            sockets.append(socket.create_server(address, family=family, backlog=_BACKLOG))
            sockets[-1].setblocking(False)
    except BaseException:
        for each in sockets:
            each.close()
        raise
    return sockets
