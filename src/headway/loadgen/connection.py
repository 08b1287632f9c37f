"""A connection that carries one request at a time over HTTP/1.1, as cheaply as Python can."""

import errno
import os
import select
import selectors
import socket
import ssl
import time
from collections.abc import Callable

import httptools

from headway.errors import ConfigError
from headway.loadgen.exchange import TOKEN, Address

READ, WRITE = 1, 4  # as epoll's own EPOLLIN and EPOLLOUT
_CHUNK = 262_144
_CONNECT_S = 5.0
_MOST_BYTES = 2**28  # of an answer
NO_ROOM = "this client can open no more connections"
# The kernel wakes a sleeper up to this late; from here on the driver looks again and again.
_SPIN_S = 100e-6

REFUSED = os.strerror(errno.ECONNREFUSED).lower()  # no server listens there


class LostServer(Exception):
    """The server cannot be reached, hung up, or does not speak HTTP."""


class NoRoom(LostServer):
    """It is this client that can open no more connections."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{NO_ROOM}: {reason}")


class LoadConnection:
    """One socket. `send` a request, then `receive` until it returns the whole answer."""

    __slots__ = (
        "_chunked",
        "_is_new",
        "_length",
        "_out",
        "_read",
        "arrived",
        "due",
        "free_since",
        "is_busy",
        "is_last",
        "late",
        "leaves",
        "must_read",
        "number",
        "socket",
        "token",
    )

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.due = self.late = 0.0
        self.number = 0  # of the request that is under way
        self.is_busy = False
        self.is_last = False  # the server said that it closes this connection
        self.free_since = 0.0
        self.leaves = 0  # the request after which its client leaves; 0: none
        self.must_read = False  # TLS waits for the server's part of the handshake
        self.arrived: list[tuple[float, int]] | None = None  # tokens of a stream, and when
        self.token = TOKEN
        self._out = b""
        self._is_new = isinstance(connected, ssl.SSLSocket)  # nothing was sent
        self._read = bytearray()
        self._length = 0  # of the whole answer, once its head is known; -1: ends with the stream
        self._chunked: _ChunkedAnswer | None = None

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def is_writing(self) -> bool:
        return bool(self._out)

    def shake_hands(self) -> None:
        """Wait for the server, and for TLS; without it, what is sent first waits for them."""
        if isinstance(self.socket, ssl.SSLSocket):
            try:
                select.select([], [self.socket], [], _CONNECT_S)  # connected
                self.socket.settimeout(_CONNECT_S)
                self.socket.do_handshake()
                self.socket.setblocking(False)
            except OSError as error:
                raise LostServer(_reason(error)) from error

    def send(self, request: bytes) -> bool:
        """Whether all of it left. If not, call `flush` when the socket is ready: to be written
        to, or, if `must_read`, to be read."""
        self.must_read = False
        if self._is_new and (number := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            raise LostServer(os.strerror(number).lower())  # TLS would not say why
        try:
            sent = self.socket.send(request)
            self._is_new = False
        except ssl.SSLWantReadError:
            sent, self.must_read = 0, True
        except (BlockingIOError, ssl.SSLWantWriteError):
            sent = 0
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EAGAIN):  # it is still connecting
                raise LostServer(_reason(error)) from error
            sent = 0
        self._out = request[sent:]
        return not self._out

    def flush(self) -> bool:
        return self.send(self._out)

    def receive(self) -> bytes | None:
        """The whole answer, or None while there is more to come."""
        try:
            data = self.socket.recv(_CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        except OSError as error:
            raise LostServer(_reason(error)) from error
        if not data:
            return self._ended()
        while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            data += self.socket.recv(_CHUNK)
        if self.arrived is not None and (pieces := len(self.token.findall(data))):
            self.arrived.append((time.perf_counter(), pieces))
        if len(self._read) + len(data) > _MOST_BYTES:
            raise LostServer(f"an answer has more than {_MOST_BYTES} bytes")
        return self._take(data)

    def _take(self, data: bytes) -> bytes | None:
        if self._chunked is not None:
            return self._finish_chunked(data)
        if not self._read and not self._length:  # the usual case: the whole answer at once
            end = data.find(b"\r\n\r\n")
            if end >= 0 and self._measure(data[:end].lower(), end) == len(data):
                self._length = 0
                return data
        self._read += data
        if not self._length:
            end = self._read.find(b"\r\n\r\n")
            if end < 0:
                return None
            self._measure(bytes(self._read[:end]).lower(), end)
        if self._chunked is not None:
            data, self._read = bytes(self._read), bytearray()
            return self._finish_chunked(data)
        if self._length < 0 or len(self._read) < self._length:
            return None
        answer, self._read, self._length = bytes(self._read), bytearray(), 0
        return answer

    def _measure(self, head: bytes, end: int) -> int:
        """The length of the whole answer: -1 where only the end of the stream tells."""
        connection = _field(head, b"\r\nconnection:") or b""
        is_kept = b"keep-alive" in connection if head.startswith(b"http/1.0") else True
        if not is_kept or b"close" in connection:
            self.is_last = True
        length = _field(head, b"\r\ncontent-length:")
        if length is not None:
            if not length.isdigit():
                raise LostServer(f"no HTTP: Content-Length is {length!r:.60}")
            self._length = end + 4 + int(length)
        elif b"chunked" in (_field(head, b"\r\ntransfer-encoding:") or b""):
            self._chunked = _ChunkedAnswer()
            self._length = 0
        elif head[9:12] in (b"204", b"304"):
            self._length = end + 4
        else:
            self._length, self.is_last = -1, True
        return self._length

    def _finish_chunked(self, data: bytes) -> bytes | None:
        assert self._chunked is not None
        answer = self._chunked.feed(data)
        if answer is not None:
            self._chunked = None
        return answer

    def _ended(self) -> bytes:
        if self._length < 0:
            answer, self._read, self._length = bytes(self._read), bytearray(), 0
            return answer
        raise LostServer("the server closed the connection")


def _field(head: bytes, name: bytes) -> bytes | None:
    """Its value in a head of small letters; its name comes with what is around it."""
    at = head.find(name)
    return head[at + len(name) :].split(b"\r", 1)[0].strip() if at >= 0 else None


class _ChunkedAnswer:
    """An answer whose body comes in chunks, put together."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._is_done = False

    def feed(self, data: bytes) -> bytes | None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise LostServer(f"no HTTP: {error}") from error
        if len(self._body) > _MOST_BYTES:
            raise LostServer(f"an answer has more than {_MOST_BYTES} bytes")
        if not self._is_done:
            return None
        return b"HTTP/1.1 %d\r\n\r\n" % self._parser.get_status_code() + bytes(self._body)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._is_done = True


def opener(
    address: Address,
    tls: ssl.SSLContext | None = None,
    kind: Callable[[socket.socket], LoadConnection] | None = None,
) -> Callable[[], LoadConnection]:
    """Makes connections of that kind to one address, whose name is looked up once."""
    speak = kind or LoadConnection
    context = (tls or ssl.create_default_context()) if address.is_tls else None
    try:
        [(family, socket_kind, protocol, _, place), *_] = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise ConfigError(f"{address.url}: {error.strerror or error}") from error

    def connect() -> LoadConnection:
        try:
            made = socket.socket(family, socket_kind, protocol)
        except OSError as error:  # as many files are open as this process may have
            raise NoRoom(_reason(error)) from error
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setblocking(False)
        if context is not None:
            made = context.wrap_socket(
                made, server_hostname=address.host, do_handshake_on_connect=False
            )
        if made.connect_ex(place) == errno.EADDRNOTAVAIL:
            made.close()
            raise NoRoom(os.strerror(errno.EADDRNOTAVAIL).lower())
        return speak(made)  # it connects meanwhile; a failure shows when it is used

    return connect


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason}"
    return os.strerror(error.errno).lower() if error.errno else str(error)


class Poller:
    """Which connections can be read or written, with a timer that is finer than epoll's."""

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._selector = None if self._epoll else selectors.DefaultSelector()
        self.idle_s = 0.0  # spent looking when there was nothing

    def close(self) -> None:
        for each in (self._epoll, self._selector):
            if each is not None:
                each.close()

    def add(self, connection: LoadConnection) -> None:
        if self._epoll is not None:
            self._epoll.register(connection.fileno(), READ)
        else:
            assert self._selector is not None
            self._selector.register(connection.fileno(), selectors.EVENT_READ)

    def want_write(self, connection: LoadConnection, *, wanted: bool) -> None:
        if self._epoll is not None:
            self._epoll.modify(connection.fileno(), READ | (WRITE if wanted else 0))
        else:
            assert self._selector is not None
            more = selectors.EVENT_WRITE if wanted else 0
            self._selector.modify(connection.fileno(), selectors.EVENT_READ | more)

    def remove(self, connection: LoadConnection) -> None:
        each = self._epoll or self._selector
        assert each is not None
        each.unregister(connection.fileno())

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """File descriptors, and for what each is ready, after that many seconds at the latest."""
        if self._epoll is None:
            assert self._selector is not None
            found = self._selector.select(max(0.0, timeout_s))
            return [(key.fd, READ if mask & 1 else WRITE) for key, mask in found]
        ready = self._epoll.poll(0)
        if ready or timeout_s <= 0:
            return ready
        if timeout_s > _SPIN_S:
            select.select([self._epoll.fileno()], [], [], timeout_s - _SPIN_S)
            return self._epoll.poll(0)
        began = time.perf_counter()
        end = began + timeout_s
        while not ready and time.perf_counter() < end:
            ready = self._epoll.poll(0)
        self.idle_s += time.perf_counter() - began
        return ready
