"""A port of its own that says how loaded the server is, from a thread: also while the event loop
is busy. HAProxy's agent check gets a line that sets its weight; `GET` gets `/metrics/load`."""

import contextlib
import logging
import math
import selectors
import socket
import threading
import time

from headway.config import ServerConfig
from headway.core.lifecycle.scaling import weight_percent
from headway.errors import ConfigError
from headway.hosting.registry import Registry
from headway.observe.exposition import TEXT, Exposition
from headway.observe.load import LoadSignals

_log = logging.getLogger(__name__)
_PATIENCE_S = 0.05  # for the first bytes: an agent check sends none
_MOST_WAITING = 512  # clients that may still ask; then all are answered at once
_LONGEST_S = 2.0  # for the thread to end


class LoadPort:
    """A front end beside HTTP and gRPC. It needs no key: it tells figures of the whole server."""

    def __init__(self, signals: LoadSignals, registry: Registry, config: ServerConfig) -> None:
        self._signals = signals
        self._registry = registry
        self._address = (config.host, config.load_port)
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = threading.Event()

    async def start(self) -> None:
        host, port = self._address
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family)
        except OSError as error:
            told = f"cannot listen on {host}:{port}: {error}"
            raise ConfigError(told, field="load_port") from error
        _log.info("saying the load on %s:%d", host, self._listener.getsockname()[1])
        self._thread = threading.Thread(
            target=self._serve, args=(self._listener,), name="headway-load", daemon=True
        )
        self._thread.start()

    def change(self, config: ServerConfig) -> None:
        pass

    async def stop(self, drain_s: float) -> None:
        self._is_stopped.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            if self._thread is not None:
                self._thread.join(_LONGEST_S)
            self._listener.close()

    def _serve(self, listener: socket.socket) -> None:
        """A silent client holds up no other: each has its own time limit for its request."""
        waiting: dict[socket.socket, float] = {}  # until when each may ask, oldest first
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while not self._is_stopped.is_set():
                until = next(iter(waiting.values()), None)
                left_s = None if until is None else max(0.0, until - time.monotonic())
                ready = {key.fileobj for key, _ in selector.select(left_s)}
                if listener in ready and (new := self._accepted(listener)) is not None:
                    selector.register(new, selectors.EVENT_READ)
                    waiting[new] = time.monotonic() + _PATIENCE_S
                now = math.inf if len(waiting) >= _MOST_WAITING else time.monotonic()
                for each in [each for each, end in waiting.items() if each in ready or end <= now]:
                    del waiting[each]
                    selector.unregister(each)
                    self._answer(each)
        for each in waiting:
            each.close()

    def _accepted(self, listener: socket.socket) -> socket.socket | None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it has left already, or too many files are open
            self._is_stopped.wait(_PATIENCE_S)
            return None
        connection.setblocking(False)
        return connection

    def _answer(self, connection: socket.socket) -> None:
        # RuntimeError: a model came or went in the other thread meanwhile.
        with connection, contextlib.suppress(OSError, RuntimeError):
            asked = b""
            with contextlib.suppress(BlockingIOError):
                asked = connection.recv(4096)
            # It fits into the socket's buffer: nobody is waited for.
            connection.sendall(self._page() if asked.startswith(b"GET ") else self._line())

    def _line(self) -> bytes:
        """As HAProxy's agent check reads it."""
        try:
            is_ready = self._registry.is_ready
        except RuntimeError:  # a model came or went in the other thread meanwhile
            is_ready = True
        if not is_ready:
            return b"drain\n"
        return b"up ready %d%%\n" % weight_percent(self._signals.read().load.queue_s)

    def _page(self) -> bytes:
        page = Exposition()
        self._signals.add_to(page)
        body = page.text().encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {TEXT}\r\nContent-Length: {len(body)}\r\n"
        return f"{head}Connection: close\r\n\r\n".encode() + body
