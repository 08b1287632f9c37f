"""Honest clients: each sends one request after the other and notes how long it took.

    python -m benchmarks.attacks.asking PORT GRPC_PORT KEY [PREFIX]

answers every line that it reads with JSON. A number: the figures since the last time, once each
kind of request has that many. `start over`: earlier requests do not count.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import hpack

from benchmarks.attacks.honest import LARGE, LIMIT_S, Figures
from headway.wire.http2 import frames
from headway.wire.http2.inbox import framed

_PAUSE_S = 0.005
_LARGE = 40_000  # bytes: more than the 32 KiB that are not counted


class _Kind:
    """One request after the other, and what became of them."""

    def __init__(self, ask: Callable[[], Awaitable[str | None]]) -> None:
        self._ask = ask
        self._times_s: list[float] = []
        self._failures: list[str] = []
        self._changed = asyncio.Event()

    async def run(self) -> None:
        while True:
            started = time.perf_counter()
            try:
                async with asyncio.timeout(LIMIT_S):
                    failure = await self._ask()
            except (OSError, EOFError, ValueError) as error:  # a timeout is an OSError
                failure = repr(error)
            if failure is None:
                self._times_s.append(time.perf_counter() - started)
            else:
                self._failures.append(failure)
            self._changed.set()
            await asyncio.sleep(_PAUSE_S)

    def start_over(self) -> None:
        self._times_s, self._failures = [], []

    async def take(self, least: int) -> Figures:
        while len(self._times_s) + len(self._failures) < least:
            self._changed.clear()
            await self._changed.wait()
        times, failures = sorted(self._times_s) or [LIMIT_S], self._failures[:10]
        served = len(self._times_s)
        self.start_over()
        return Figures(served, failures, times[int(len(times) * 0.99)] * 1e3)


class _Http:
    """A connection that is kept alive, and made again when it is lost."""

    def __init__(self, port: int, head: str, body: bytes, expected: bytes) -> None:
        self._port = port
        self._sent = f"{head}\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        self._expected = expected
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> str | None:
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(self._sent)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
            body = await reader.readexactly(length)
        except BaseException:
            self._streams = None
            raise
        is_right = head.startswith(b"HTTP/1.1 200") and self._expected in body
        return None if is_right else f"{head[:12]!r} {body[:100]!r}"


class _Grpc:
    """One call at a time on one connection."""

    def __init__(self, port: int, path: str, message: bytes, key: str, expected: bytes) -> None:
        self._port = port
        self._fields = [
            *((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")),
            *(("te", "trailers"), ("content-type", "application/grpc")),
            *((("x-api-key", key),) if key else ()),
        ]
        self._data = framed(message)
        self._expected = expected
        self._link: _Link | None = None

    async def ask(self) -> str | None:
        try:
            if self._link is None:
                loop = asyncio.get_running_loop()
                made = await loop.create_connection(_Link, "127.0.0.1", self._port)
                self._link = cast(_Link, made[1])
            body, fields = await self._link.call(self._fields, self._data)
        except BaseException:
            self._link = None
            raise
        is_right = fields.get("grpc-status") == "0" and self._expected in body
        return None if is_right else f"{fields} {body[:100]!r}"


class _Link(asyncio.Protocol):
    def __init__(self) -> None:
        self._reader = frames.FrameReader()
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self._number = -1
        self._body = b""
        self._answer: asyncio.Future[tuple[bytes, dict[str, str]]] | None = None
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        first = frames.settings({frames.INITIAL_WINDOW_SIZE: 2**30})
        self._transport.write(frames.PREFACE + first + frames.window_update(0, 2**30))

    async def call(
        self, fields: list[tuple[str, str]], data: bytes
    ) -> tuple[bytes, dict[str, str]]:
        if self._is_lost:
            raise ConnectionResetError("it was cut between two calls")
        self._number += 2
        self._body = b""
        self._answer = asyncio.get_running_loop().create_future()
        parts = [frames.headers(self._number, self._encoder.encode(fields), is_last=False)]
        for at in range(0, len(data), frames.MAX_FRAME):
            part = data[at : at + frames.MAX_FRAME]
            is_last = at + frames.MAX_FRAME >= len(data)
            flags = frames.END_STREAM if is_last else 0
            parts.append(frames.frame(frames.DATA, flags, self._number, part))
        self._transport.writelines(parts)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        for kind, flags, number, payload in self._reader.feed(data):
            self._take(kind, flags, number, payload)

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == frames.HEADERS:
            fields = {str(name): str(value) for name, value in self._decoder.decode(payload)}
            if flags & frames.END_STREAM and self._answer and not self._answer.done():
                self._answer.set_result((self._body, fields))
        elif kind == frames.DATA and number == self._number:
            self._body += payload
            self._transport.write(frames.window_update(0, max(1, len(payload))))
        elif kind in (frames.PING, frames.SETTINGS) and not flags & frames.ACK:
            echo = payload if kind == frames.PING else b""
            self._transport.write(frames.frame(kind, frames.ACK, 0, echo))
        elif kind in (frames.RST_STREAM, frames.GOAWAY):
            self._fail(f"frame {kind}: {payload!r}")

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._fail("the server hung up")

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError(why))


def _infer(text: bytes) -> bytes:
    from headway.server.grpc import inference_pb2 as pb

    request = pb.ModelInferRequest(model_name="shout")
    tensor = request.inputs.add(name="input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text)
    return request.SerializeToString()


def _kinds(port: int, grpc_port: int, key: str, prefix: str) -> dict[str, _Kind]:
    known = f"X-Api-Key: {key}"
    infer = f"POST {prefix}/v1/predict/shout HTTP/1.1\r\n{known}"
    live = f"GET {prefix}/v2/health/live HTTP/1.1"
    large = b'"' + b"a" * _LARGE + b'"'
    asks: dict[str, Callable[[], Awaitable[str | None]]] = {
        "HTTP": _Http(port, infer, b'"hello"', b'"HELLO"').ask,
        LARGE: _Http(port, infer, large, large.upper()).ask,
        "HTTP health": _Http(port, live, b"", b"live").ask,
    }
    if grpc_port:
        service = "/inference.GRPCInferenceService/ModelInfer"
        health = "/grpc.health.v1.Health/Check"
        asks["gRPC"] = _Grpc(grpc_port, service, _infer(b"hello"), key, b"HELLO").ask
        asks["gRPC health"] = _Grpc(grpc_port, health, b"", "", b"\x08\x01").ask
    return {name: _Kind(ask) for name, ask in asks.items()}


async def _lines() -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line


async def _main(port: int, grpc_port: int, key: str, prefix: str = "") -> None:
    kinds = _kinds(port, grpc_port, key, prefix)
    tasks = [asyncio.create_task(each.run()) for each in kinds.values()]
    async for line in _lines():
        found: dict[str, Figures] = {}
        for name, each in kinds.items():
            if line.strip().isdigit():
                found[name] = await each.take(int(line))
            else:
                each.start_over()
        print(json.dumps(found), flush=True)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
