"""An HTTP client that notices what others overlook: bytes that come when nobody waits for any."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import cast

import httptools

HEAD = (
    "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    "Content-Length: {n}\r\n\r\n"
)


class HungUp(Exception):
    """The server closed the connection before the answer was whole."""


class Connection(asyncio.Protocol):
    """One exchange at a time: `send`, then `wait_answer`, or `events` for a stream."""

    def __init__(self, stray: Callable[[bytes], None]) -> None:
        self._stray = stray
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None  # None: nobody waits
        self._parts: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._is_complete = False
        self._has_status = False
        self.is_usable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_usable = False
        self._news.set()

    def send(self, path: str, body: bytes) -> None:
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._parts.clear()
        self._is_complete = self._has_status = False
        self._news.clear()
        self._transport.write(HEAD.format(path=path, n=len(body)).encode() + body)

    async def wait_answer(self) -> tuple[int, bytes]:
        """Status and body."""
        while not self._is_complete:
            await self._wait_news()
        return self._end(), b"".join(self._parts)

    async def wait_head(self) -> int:
        """The status, as soon as it is known."""
        while not self._has_status:
            await self._wait_news()
        assert self._parser is not None
        return self._parser.get_status_code()

    async def events(self) -> AsyncIterator[bytes]:
        """The data of server-sent events, as they come."""
        read = b""
        while True:
            read += b"".join(self._parts)
            self._parts.clear()
            *events, read = read.split(b"\n\n")
            for event in events:
                yield event.removeprefix(b"data: ")
            if self._is_complete and not self._parts:
                break
            if not self._parts:
                await self._wait_news()
        self._end()

    def abort(self) -> None:
        """Leave, whatever is on its way."""
        self.is_usable = False
        self._parser = None
        if self._transport is not None:
            self._transport.abort()

    async def _wait_news(self) -> None:
        if not self.is_usable:
            raise HungUp
        await self._news.wait()
        self._news.clear()

    def _end(self) -> int:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.abort()
        self._parser = None
        return status

    # ---- what comes

    def data_received(self, data: bytes) -> None:
        if not self.is_usable:
            return
        if self._parser is None or self._is_complete:
            self._stray(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._stray(data)
            self.abort()
        self._news.set()

    def on_message_begin(self) -> None:
        if self._is_complete:  # a second answer in the same packet
            self._stray(b"a second answer")

    def on_headers_complete(self) -> None:
        self._has_status = True

    def on_body(self, body: bytes) -> None:
        if not self._is_complete:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = True


class Pool:
    """Connections to one server, used in turn; as many as there are exchanges at once."""

    def __init__(self, port: int, stray: Callable[[bytes], None]) -> None:
        self._port = port
        self._stray = stray
        self._free: deque[Connection] = deque()

    async def take(self) -> Connection:
        while self._free:
            connection = self._free.popleft()
            if connection.is_usable:
                return connection
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self._stray), "127.0.0.1", self._port
        )
        return connection

    def give_back(self, connection: Connection) -> None:
        if connection.is_usable:
            self._free.append(connection)

    def close(self) -> None:
        for connection in self._free:
            connection.abort()


def error_in(body: bytes) -> str:
    """What an error answer says."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return repr(body[:200])
