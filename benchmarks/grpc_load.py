"""A load of unary gRPC calls that costs a tenth of grpc's own client: whole frames, made once.

What a server sees is what a client of grpc sends once its HPACK table has settled: the same block
of indices for every call.
"""

import asyncio
import time
from typing import cast

import hpack
import uvloop

from headway.wire.http2 import frames
from headway.wire.http2.heads import HEAD_BLOCK, OK_BLOCK
from headway.wire.http2.inbox import framed

_CONNECTIONS = 4
_WINDOW = 2**30  # we never let a server wait


def grpc_rate(port: int, path: str, message: bytes, seconds: float, in_flight: int = 64) -> float:
    """Calls answered with OK in a second. Raises RuntimeError where one is not."""
    return uvloop.run(_rate(port, path, message, seconds, in_flight))


async def _rate(port: int, path: str, message: bytes, seconds: float, in_flight: int) -> float:
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(_CONNECTIONS):
        _, client = await loop.create_connection(
            lambda: _Client(path, message, in_flight // _CONNECTIONS), "127.0.0.1", port
        )
        clients.append(client)
    try:
        before, started = sum(each.done for each in clients), time.perf_counter()
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(each.failed for each in clients))
    except TimeoutError:
        pass
    finally:
        for each in clients:
            each.transport.abort()
    return (sum(each.done for each in clients) - before) / (time.perf_counter() - started)


class _Client(asyncio.Protocol):
    """Keeps calls in flight, until it is aborted."""

    def __init__(self, path: str, message: bytes, in_flight: int) -> None:
        self.done = 0
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = frames.FrameReader()
        self._next_id = 1
        self._in_flight = in_flight
        self._data = framed(message)
        fields = [
            *((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")),
            *(("te", "trailers"), ("content-type", "application/grpc")),
            *(("user-agent", "load"), ("grpc-accept-encoding", "identity, deflate, gzip")),
        ]
        encoder, decoder = hpack.Encoder(), hpack.Decoder()
        self._first, self._block = encoder.encode(fields), encoder.encode(fields)
        self._decoder = decoder
        self._known: dict[bytes, bool] = {}  # whether a block says that all went well

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        settings = frames.settings({frames.INITIAL_WINDOW_SIZE: _WINDOW})
        widened = frames.window_update(0, _WINDOW)
        calls = [self._call(self._first)]
        calls += [self._call(self._block) for _ in range(self._in_flight - 1)]
        self.transport.write(b"".join((frames.PREFACE, settings, widened, *calls)))

    def data_received(self, data: bytes) -> None:
        answers = [self._take(*frame) for frame in self._reader.feed(data)]
        self.transport.write(b"".join(answers))

    def _take(self, kind: int, flags: int, _: int, payload: bytes) -> bytes:
        """What is sent for it."""
        if kind == frames.HEADERS:
            is_ok = self._is_ok(payload)
            if not flags & frames.END_STREAM:
                return b""
            if is_ok:
                self.done += 1
            elif not self.failed.done():
                self.failed.set_exception(RuntimeError("a call failed"))
            return self._call(self._block)
        if kind in (frames.PING, frames.SETTINGS) and not flags & frames.ACK:
            return frames.frame(kind, frames.ACK, 0, payload if kind == frames.PING else b"")
        return b""

    def connection_lost(self, error: Exception | None) -> None:
        if not self.failed.done():
            self.failed.set_exception(RuntimeError("the server hung up"))

    def _is_ok(self, block: bytes) -> bool:
        is_ok = self._known.get(block)
        if is_ok is None:
            is_ok = ("grpc-status", "0") in self._decoder.decode(block)
            if _is_settled(block):
                self._known[block] = is_ok
        return is_ok

    def _call(self, block: bytes) -> bytes:
        number = self._next_id
        self._next_id += 2
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, number, block)
        return head + frames.frame(frames.DATA, frames.END_STREAM, number, self._data)


def _is_settled(block: bytes) -> bool:
    """Whether it is all indices, or ours, which has none: then it changes no table."""
    return block in (HEAD_BLOCK, OK_BLOCK) or all(0x80 < byte < 0xFF for byte in block)
