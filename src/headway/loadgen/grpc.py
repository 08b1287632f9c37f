"""v2 over gRPC: one call at a time on each connection, in `wire`'s HTTP/2 frames, and the few
messages that it takes, written as Protocol Buffers has them."""

import json
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from headway.errors import ConfigError
from headway.loadgen.asking import NoAnswer, RemoteServer, only_model
from headway.loadgen.connection import LoadConnection, LostServer, opener
from headway.loadgen.exchange import Address, AskedRequest
from headway.loadgen.target import Target, Wanted, length_of, tensor_inputs
from headway.loadgen.tensors import TensorInput, as_bytes
from headway.wire.http2 import frames
from headway.wire.http2.status import Status
from headway.wire.varint import varint

try:
    from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple
except ImportError as error:
    raise ConfigError(f"{error}; for grpc://: pip install 'headway[grpc]'") from error

_SERVICE = "/inference.GRPCInferenceService"
_TIMEOUT_S = 10.0
_REPLENISH = 2**30  # bytes that were read, after which the peer gets as much room anew
_OWN_FIELDS = ("content-type", "te", "host", "connection", "grpc-timeout")
_HTTP = {  # the HTTP status with the same meaning: errors are reported by it
    Status.UNAVAILABLE: 503,
    Status.RESOURCE_EXHAUSTED: 429,
    Status.DEADLINE_EXCEEDED: 504,
    Status.INTERNAL: 500,
    Status.UNKNOWN: 500,
}


class GrpcConnection(LoadConnection):
    """One socket. What it sends is made by `call_bytes`."""

    __slots__ = (
        *("_at", "_block", "_decoder", "_ends", "_first_room", "_frames", "_head", "_message"),
        *("_pending", "_room", "_stream", "_taken", "_window"),
    )

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self._frames = frames.FrameReader()
        self._decoder = Decoder()
        self._stream = -1
        self._window = self._first_room = frames.FIRST_WINDOW  # of the connection; of each call
        self._room = 0  # of this call
        self._pending, self._at = b"", 0  # its message, and how much of it has left
        self._head: dict[str, str] = {}
        self._message = bytearray()
        self._block, self._ends = b"", False
        self._taken = 0

    def send(self, request: bytes) -> bool:
        self._stream += 2
        first = b""
        if self._stream == 1:
            most = frames.MAX_WINDOW
            first = frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: most})
            first += frames.window_update(0, most - frames.FIRST_WINDOW)
        size = int.from_bytes(request[:4], "big") + 4
        self._pending, self._at, self._room = request[size:], 0, self._first_room
        self._head, self._message = {}, bytearray()
        return self._write(
            first + frames.headers(self._stream, request[4:size], is_last=False) + self._data()
        )

    def flush(self) -> bool:
        return super().send(self._out)

    def _write(self, more: bytes) -> bool:
        return super().send(self._out + more)

    def _data(self) -> bytes:
        """As much of the message as the peer has room for."""
        parts = []
        while (left := len(self._pending) - self._at) > 0:
            size = min(left, self._window, self._room, frames.MAX_FRAME)
            if size <= 0:
                break
            part = self._pending[self._at : self._at + size]
            self._at += size
            self._window -= size
            self._room -= size
            flags = frames.END_STREAM if size == left else 0
            parts.append(frames.frame(frames.DATA, flags, self._stream, part))
        return b"".join(parts)

    def _take(self, data: bytes) -> bytes | None:
        answer, out = None, b""
        try:
            for each in self._frames.feed(data):
                out += self._control(*each)
                answer = self._part(*each) or answer
        except (frames.ConnectionFailed, HPACKError, ValueError) as error:
            raise LostServer(f"no HTTP/2: {error}") from error
        if self._taken > _REPLENISH:
            out, self._taken = out + frames.window_update(0, self._taken), 0
        if out:
            self._write(out)
        return answer

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        """What to say to a frame that is about the connection."""
        if kind == frames.SETTINGS and not flags & frames.ACK:
            room = frames.parse_settings(payload).get(frames.INITIAL_WINDOW_SIZE, self._first_room)
            self._room += room - self._first_room
            self._first_room = room
            return frames.frame(frames.SETTINGS, frames.ACK, 0) + self._data()
        if kind == frames.PING and not flags & frames.ACK:
            return frames.frame(frames.PING, frames.ACK, 0, payload)
        if kind == frames.WINDOW_UPDATE:
            if stream == 0:
                self._window += frames.increment_of(payload)
            elif stream == self._stream:
                self._room += frames.increment_of(payload)
            return self._data()
        if kind == frames.GOAWAY:
            self.is_last = True
            if not self.is_busy or frames.increment_of(payload[:4]) < self._stream:
                raise LostServer("the server closed the connection")
        return b""

    def _part(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes | None:
        """The answer, once this frame is its end."""
        is_end = False
        if kind == frames.DATA:
            self._taken += len(payload)
            if stream == self._stream:
                self._message += frames.unpadded(flags, payload)
                is_end = bool(flags & frames.END_STREAM)
        elif kind in (frames.HEADERS, frames.CONTINUATION):
            if kind == frames.HEADERS:
                self._block, self._ends = b"", bool(flags & frames.END_STREAM)
                payload = frames.block_of(flags, payload)
            self._block += payload
            if flags & frames.END_HEADERS:
                fields = self._decoder.decode(self._block)
                if stream == self._stream:
                    self._head.update((str(name), str(value)) for name, value in fields)
                    is_end = self._ends
        elif kind == frames.RST_STREAM and stream == self._stream:
            self._head["grpc-message"] = f"the call was reset, code {frames.parse_number(payload)}"
            is_end = True
        return self._answer() if is_end else None

    def _answer(self) -> bytes:
        """As HTTP/1.1 would have it: a status, and a body."""
        http, head = self._head.get(":status", "200"), self._head
        if http != "200":
            return f"HTTP/1.1 {http}\r\n\r\n".encode()
        status = Status(int(head.get("grpc-status", Status.UNKNOWN)))
        if status is Status.OK:
            return b"HTTP/1.1 200\r\n\r\n" + bytes(self._message)
        told = {"error": f"{status.name} {head.get('grpc-message', '')}".strip()}
        return f"HTTP/1.1 {_HTTP.get(status, 400)}\r\n\r\n{json.dumps(told)}".encode()


def grpc_opener(
    address: Address, tls: ssl.SSLContext | None = None
) -> Callable[[], LoadConnection]:
    """Makes connections, as `opener` does."""
    if address.is_tls:
        tls = tls or ssl.create_default_context()
        tls.set_alpn_protocols(["h2"])
    return opener(address, tls, GrpcConnection)


def call_bytes(
    address: Address, method: str, message: bytes, headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    """What a `GrpcConnection` sends: the length of a block of headers, that, and a message."""
    fields = [
        (":method", "POST"),
        (":scheme", "https" if address.is_tls else "http"),
        (":path", f"{_SERVICE}/{method}"),
        (":authority", address.authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *((name.lower(), value) for name, value in headers),
    ]
    # Not indexed: the block means the same on every connection, however often it is sent.
    block = Encoder().encode([NeverIndexedHeaderTuple(*each) for each in fields])
    head = len(block).to_bytes(4, "big") + block
    return head + b"\0" + len(message).to_bytes(4, "big") + message


# ---- what is at a server


def grpc_target(probe: RemoteServer, wanted: Wanted) -> Target:
    """Look at what the server says about itself, and make calls of ModelInfer."""
    for flag, is_given in (
        ("--json-tensors", wanted.is_binary is False),
        ("--data or --body", bool(wanted.bodies)),
        ("--api", wanted.api != "auto"),
    ):
        if is_given:
            raise ConfigError("is not for grpc://, where tensors of v2 are sent", field=flag)
    for name, _ in wanted.headers:
        if name.startswith(":") or name.lower() in _OWN_FIELDS:
            raise ConfigError(f"{name} is not for grpc://, which has its own", field="--header")
    address = probe.address
    about = dict(_fields(_call(probe, "ServerMetadata")))
    server = " ".join(_text(about.get(number, b"")) for number in (1, 2)).strip()
    model = wanted.model or _only_model(probe)
    declared = [
        _tensor(value)
        for number, value in _fields(_call(probe, "ModelMetadata", _field(1, model.encode())))
        if number == 4 and isinstance(value, bytes)
    ]
    inputs = tensor_inputs(model, declared, wanted)
    exchanges = [
        _exchange(address, model, inputs, number, wanted) for number in range(wanted.variants)
    ]
    return Target(address, f"{_SERVICE}/ModelInfer", "v2 gRPC", model, server, exchanges)


def _exchange(
    address: Address, model: str, inputs: list[TensorInput], number: int, wanted: Wanted
) -> AskedRequest:
    rng = np.random.default_rng([wanted.seed, 5, number])
    mark = _field(3, f"bench-{number}".encode())  # the id: its answer has the same field
    tensors, raws = b"", b""
    for each in inputs:
        values = each.values(rng, length_of(wanted, number))
        shape = b"".join(varint(size) for size in values.shape)
        named = _field(1, each.name.encode()) + _field(2, each.datatype.encode())
        tensors += _field(5, named + _field(3, shape))
        raws += _field(7, as_bytes(values, each.datatype))
    message = _field(1, model.encode()) + mark + tensors + raws
    return AskedRequest(call_bytes(address, "ModelInfer", message, wanted.headers_of(number)), mark)


def _only_model(probe: RemoteServer) -> str:
    names = set()
    for _, value in _fields(_call(probe, "RepositoryIndex")):
        about = dict(_fields(value)) if isinstance(value, bytes) else {}
        if _text(about.get(3, b"")) in ("", "READY"):
            names.add(_text(about.get(1, b"")))
    return only_model(probe.address.url, names)


def _tensor(message: bytes) -> dict[str, Any]:
    about: dict[str, Any] = {"name": "", "datatype": "", "shape": []}
    for number, value in _fields(message):
        if number in (1, 2):
            about["name" if number == 1 else "datatype"] = _text(value)
        elif number == 3:
            sizes = _varints(value) if isinstance(value, bytes) else [value]
            about["shape"] += [size - 2**64 if size >= 2**63 else size for size in sizes]
    return about


def _call(probe: RemoteServer, method: str, message: bytes = b"") -> bytes:
    """The message that answers it. Raises ConfigError for what is wrong with the question."""
    address = probe.address
    try:
        answer = _answer_to(probe, call_bytes(address, method, message, probe.headers))
    except LostServer as error:
        raise NoAnswer(f"{address.url} cannot be reached: {error}") from error
    head, _, body = answer.partition(b"\r\n\r\n")
    if head[9:12] == b"200":
        return body[5:]
    told = str(json.loads(body)["error"]) if body else head[9:12].decode()
    if told.startswith(("UNAUTHENTICATED", "PERMISSION_DENIED")):
        raise ConfigError(f"{address.url}: it wants a key ({told})", field="--api-key")
    raise ConfigError(f"{address.url}, {method}: {told}")


def _answer_to(probe: RemoteServer, request: bytes) -> bytes:
    connection = grpc_opener(probe.address, probe.tls)()
    connection.is_busy = True
    end = time.monotonic() + _TIMEOUT_S
    try:
        connection.send(request)
        while (left := end - time.monotonic()) > 0:
            out = [connection] if connection.is_writing else []
            readable, writable, _ = select.select([connection], out, [], left)
            if writable:
                connection.flush()
            if readable and (answer := connection.receive()) is not None:
                return answer
    finally:
        connection.socket.close()
    raise LostServer(f"no answer in {_TIMEOUT_S:g} s")


# ---- Protocol Buffers


def _field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def _fields(message: bytes) -> Iterator[tuple[int, "int | bytes"]]:
    """Numbers and values, of the two kinds that these messages have."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if key & 7 == 2:
            yield key >> 3, message[at : at + value]
            at += value
        elif key & 7 == 0:
            yield key >> 3, value
        else:
            raise NoAnswer(f"no message of v2: a field of kind {key & 7}")


def _varints(message: bytes) -> Iterator[int]:
    at = 0
    while at < len(message):
        value, at = _read_varint(message, at)
        yield value


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
    raise NoAnswer("no message of v2: it ends within a number")


def _text(value: "int | bytes") -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
