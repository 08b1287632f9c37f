"""A client that is as slow, as broken and as rude as a test wants it to be."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, Self

import pytest

from headway.config import ServerConfig
from headway.server.app import App
from headway.server.event_loop import run
from headway.wire.http1.server import HttpServer


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def to(cls, server: HttpServer) -> AsyncIterator[Self]:
        client = cls(*await asyncio.open_connection("127.0.0.1", server.port))
        try:
            yield client
        finally:
            await client.leave()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def get(self, path: str, method: str = "GET") -> Reply:
        await self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return await self.reply(has_body=method != "HEAD")

    async def post(self, path: str, body: bytes, headers: str = "") -> Reply:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        await self.send(head.encode() + body)
        return await self.reply()

    async def reply(self, *, has_body: bool = True) -> Reply:
        async with asyncio.timeout(5):
            status, headers = await self.head()
            body = b""
            if headers.get("transfer-encoding") == "chunked" and has_body:
                while chunk := await self.chunk():
                    body += chunk
            elif has_body and "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            return Reply(status, headers, body)

    async def head(self) -> tuple[int, dict[str, str]]:
        first, *rest = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in rest)
        return int(first.split()[1]), {name.lower(): value for name, value in pairs}

    async def chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def rest(self) -> bytes:
        """Until the server hangs up."""
        async with asyncio.timeout(5):
            return await self.reader.read()

    async def leave(self) -> None:
        self.writer.close()
        with suppress(OSError):  # the server was first
            await self.writer.wait_closed()


@asynccontextmanager
async def serving(app: App, **settings: Any) -> AsyncIterator[HttpServer]:
    options: dict[str, Any] = {"port": 0, "drain_s": 0.2, "debug": False, **settings}
    async with HttpServer(app, ServerConfig(**options)) as server:
        yield server


def on_both_loops(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[str], None]:
    @pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
    def wrapped(loop: str) -> None:
        (asyncio.run if loop == "asyncio" else run)(test())

    wrapped.__name__ = test.__name__
    wrapped.__doc__ = test.__doc__
    return wrapped
