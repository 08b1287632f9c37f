"""A port of its own that says how loaded the server is, from a thread: also while the event loop
is busy. HAProxy's agent check gets a line that sets its weight; `GET` gets `/metrics/load`."""

import contextlib
import logging
import socket
import threading

from headway.config import ServerConfig
from headway.core.lifecycle.scaling import weight_percent
from headway.errors import ConfigError
from headway.hosting.registry import Registry
from headway.observe.exposition import TEXT, Exposition
from headway.observe.load import LoadSignals

_log = logging.getLogger(__name__)
_PATIENCE_S = 0.05  # for the first bytes: an agent check sends none
_LONGEST_S = 2.0  # for an answer to be taken


class LoadPort:
    """A front end beside HTTP and gRPC. It needs no key: it tells figures of the whole server."""

    def __init__(self, signals: LoadSignals, registry: Registry, config: ServerConfig) -> None:
        self._signals = signals
        self._registry = registry
        self._address = (config.host, config.load_port)
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

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
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        if self._thread is not None:
            self._thread.join(_LONGEST_S)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(OSError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_PATIENCE_S)
        try:
            asked = connection.recv(4096)
        except TimeoutError:
            asked = b""
        connection.settimeout(_LONGEST_S)
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
