"""A connection of ours, and the `h2` package as its independent client, without a socket."""

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import h2.config
import h2.connection
import h2.events
import hpack

from headway.config import ServerConfig
from headway.server.auth.keys import NOBODY, Caller
from headway.wire.body_room import BodyRoom
from headway.wire.http2 import frames
from headway.wire.http2.budget import Budget, address_budget
from headway.wire.http2.connection import Connection
from headway.wire.http2.method import Method
from headway.wire.http2.status import CallRefusal, Status
from headway.wire.read_turns import ReadTurns
from headway.wire.writes import Writes

LIMIT_BYTES = 100_000
CONFIG = ServerConfig(
    max_header_bytes=4096,
    header_timeout_s=10,
    body_timeout_s=60,
    write_timeout_s=60,
    keep_alive_s=75,
)
HEAD = (
    *((":method", "POST"), (":scheme", "http"), (":path", "/test/echo"), (":authority", "x")),
    *(("te", "trailers"), ("content-type", "application/grpc")),
)


def head(path: str = "/test/echo", **more: str) -> list[tuple[str, str]]:
    fields = dict(HEAD) | {":path": path}
    return [*fields.items(), *((key.replace("_", "-"), value) for key, value in more.items())]


def message(data: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(data)) + data


def messages(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = int.from_bytes(data[1:5], "big")
        found.append(data[5 : 5 + size])
        data = data[5 + size :]
    return found


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.unsent_bytes = 0
        self.pauses = 0  # of reading
        self.is_closed = self.is_aborted = self.is_paused = False

    def write(self, data: Any) -> None:
        assert not self.is_closed, "written after its end"
        self.written += data

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_paused = True
        self.pauses += 1

    def resume_reading(self) -> None:
        self.is_paused = False

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("::1", 5) if name == "peername" else default


class Service:
    """What is served, and what became of it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.cancelled = 0
        self.is_done: list[Any] = []
        self.methods = {
            "/test/echo": self._method(self.echo),
            "/test/wait": self._method(self.wait),
            "/test/fail": self._method(self.fail),
            "/test/many": self._method(self.many, gives=True),
            "/test/stream": self._method(self.stream, takes=True, gives=True),
            "/test/count": self._method(self.count, takes=True),
            "/test/open": self._method(self.echo)._replace(is_open=True),
        }

    @staticmethod
    def _method(run: Any, *, takes: bool = False, gives: bool = False) -> Method:
        return Method(run, bytes, bytes, takes_stream=takes, gives_stream=gives)

    async def echo(self, request: bytes, context: Any) -> bytes:
        context.add_done_callback(self.is_done.append)
        return request

    async def wait(self, request: bytes, context: Any) -> bytes:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request

    async def fail(self, request: bytes, context: Any) -> bytes:
        raise RuntimeError("a mistake")

    async def many(self, request: bytes, context: Any) -> None:
        for _ in range(int(request)):
            await context.write(b"x" * 1000)

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        try:
            async for request in requests:
                yield request
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def count(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        await self.gate.wait()
        return b"%d" % len([each async for each in requests])


class Owner:
    def __init__(self) -> None:
        self.has_room = True
        self.room = BodyRoom(CONFIG)
        self.turns = ReadTurns()
        self.writes = Writes(0.0)
        self.buffer = memoryview(bytearray(2**16))
        self.unpacking = asyncio.Semaphore(2)
        self.budget = address_budget(0.0)
        self.keys: set[str] = set()  # none: everybody may
        self.admit = self._admit
        self.is_closed = False
        self.tasks: set[Any] = set()

    def _admit(self, path: str, metadata: Any) -> Caller | CallRefusal:
        if not self.keys or path == "/test/open" or dict(metadata).get("x-api-key") in self.keys:
            return NOBODY
        return CallRefusal(Status.UNAUTHENTICATED, "no key", ())

    def budget_of(self, address: str) -> Budget:
        return self.budget

    def opened(self, connection: Connection, address: str) -> bool:
        return self.has_room

    def closed(self, connection: Connection) -> None:
        self.is_closed = True

    def left(self, task: Any) -> None:
        self.tasks.add(task)


class Link:
    """Both ends. `client` is h2's; what it wants to send goes over with `send`."""

    def __init__(
        self,
        config: ServerConfig = CONFIG,
        *,
        has_room: bool = True,
        budget: Budget | None = None,
    ) -> None:
        self.service, self.owner, self.transport = Service(), Owner(), FakeTransport()
        self.owner.has_room = has_room
        self.owner.budget = budget or self.owner.budget
        loop = asyncio.get_running_loop()
        self.server = Connection(
            self.service.methods.get, config, loop, self.owner, limit_bytes=LIMIT_BYTES
        )
        self.client = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self.events: list[Any] = []
        self.server.connection_made(self.transport)

    def greet(self) -> None:
        self.client.initiate_connection()
        self.take()  # our settings
        self.send()

    def send(self) -> None:
        self.server.data_received(self.client.data_to_send())

    def feed(self, *raw: bytes) -> None:
        """Bytes that h2 would not send."""
        for each in raw:
            self.server.data_received(each)

    async def turn(self, rounds: int = 5) -> None:
        """Both ends have said what they have to say to each other."""
        for _ in range(rounds):
            for _ in range(10):
                await asyncio.sleep(0)
            self.take()
            out = self.client.data_to_send()
            if out and not self.transport.is_closed:
                self.server.data_received(out)

    def take(self) -> None:
        data, self.transport.written = bytes(self.transport.written), bytearray()
        if data:
            self.events += self.client.receive_data(data)

    def ask(self, data: bytes | None, path: str = "/test/echo", **more: str) -> int:
        """One call, whole; without data, only its head."""
        number: int = self.client.get_next_available_stream_id()
        self.client.send_headers(number, head(path, **more))
        if data is not None:
            framed = message(data)
            for at in range(0, len(framed), 2**14):
                self.client.send_data(number, framed[at : at + 2**14])
            self.client.end_stream(number)
        self.send()
        return number

    def of(self, kind: type, number: int | None = None) -> list[Any]:
        return [
            each
            for each in self.events
            if isinstance(each, kind) and number in (None, getattr(each, "stream_id", None))
        ]

    def answer(self, number: int) -> tuple[str, list[bytes]]:
        """The call's status, and its messages."""
        trailers = [
            *self.of(h2.events.TrailersReceived, number),
            *self.of(h2.events.ResponseReceived, number),
        ]
        for each in trailers:
            fields = dict(each.headers)
            if "grpc-status" in fields:
                return fields["grpc-status"], messages(self.data(number))
        raise AssertionError(f"no status in {self.events}")

    def data(self, number: int) -> bytes:
        return b"".join(each.data for each in self.of(h2.events.DataReceived, number))

    @property
    def goodbye(self) -> int | None:
        """The code with which we went away."""
        found = self.of(h2.events.ConnectionTerminated)
        return int(found[-1].error_code) if found else None

    def lose(self) -> None:
        self.server.connection_lost(None)


def raw_call(number: int, data: bytes, encoder: hpack.Encoder, path: str = "/test/echo") -> bytes:
    """A whole call as bytes."""
    block = encoder.encode(head(path))
    return frames.headers(number, block, is_last=False) + frames.frame(
        frames.DATA, frames.END_STREAM, number, message(data)
    )


GREETING = frames.PREFACE + frames.settings({})
