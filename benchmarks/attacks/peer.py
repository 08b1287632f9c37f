"""A hostile peer of HTTP/2: whole frames, made by hand, and what the server says to them."""

import contextlib
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

import hpack

from benchmarks.attacks.scene import Outcome, Target
from headway.wire.http2 import frames
from headway.wire.http2.frames import Code
from headway.wire.http2.inbox import framed

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
_MOST_CONNECTIONS = 32  # of one flood
_BATCH = 64  # frames in a write


class Peer:
    """One connection. It is written to as long as the server takes it, and never waits."""

    def __init__(
        self, target: Target, *, window: int = frames.FIRST_WINDOW, reads: bool = True
    ) -> None:
        self._key = target.key
        self._socket = target.connect(target.grpc_port)
        self._reads = reads
        self._reader = frames.FrameReader()
        self._decoder = hpack.Decoder()
        self._unsent = bytearray()  # megabytes of it: to cut its beginning off copies nothing
        self.statuses: Counter[str] = Counter()  # of gRPC, by name
        self.codes: Counter[str] = Counter()  # with which streams were reset
        self.goodbye: str | None = None
        self.is_cut = False
        self._socket.setblocking(False)
        self.send(frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: window}))

    def close(self) -> None:
        self._socket.close()

    def block(self, path: str, *more: tuple[str, str]) -> bytes:
        """A head that changes no table, so that it can be sent again."""
        fields = [
            *((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")),
            *(("te", "trailers"), ("content-type", "application/grpc")),
            *((("x-api-key", self._key),) if self._key else ()),
            *more,
        ]
        return b"".join(literal(name.encode(), value.encode()) for name, value in fields)

    def head(self, number: int, path: str, *more: tuple[str, str], is_last: bool = False) -> bytes:
        return frames.headers(number, self.block(path, *more), is_last=is_last)

    def call(self, number: int, path: str, message: bytes, *more: tuple[str, str]) -> bytes:
        data = framed(message)
        parts = [self.head(number, path, *more)]
        for at in range(0, len(data), frames.MAX_FRAME):
            is_last = at + frames.MAX_FRAME >= len(data)
            flags = frames.END_STREAM if is_last else 0
            part = data[at : at + frames.MAX_FRAME]
            parts.append(frames.frame(frames.DATA, flags, number, part))
        return b"".join(parts)

    def send(self, data: bytes) -> None:
        """As much as the server takes now; the rest with the next."""
        self._unsent += data
        self.read()
        if self.is_cut:
            return
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.is_cut = True

    @property
    def is_full(self) -> bool:
        return len(self._unsent) > 2**16

    def read(self) -> None:
        if not self._reads or self.is_cut:
            return
        try:
            while data := self._socket.recv(2**18):
                self._hear(data)
            self.is_cut = True
        except BlockingIOError:
            pass
        except OSError:
            self.is_cut = True

    def wait(self, seconds: float, until: Callable[[], bool]) -> None:
        """Read, and send what is left, until then."""
        ends_at = time.monotonic() + seconds
        while not until() and not self.is_cut and time.monotonic() < ends_at:
            writers = [self._socket] if self._unsent else []
            select.select([self._socket], writers, [], 0.02)
            self.send(b"")

    @property
    def answered(self) -> int:
        return self.statuses.total() + self.codes.total()

    def _hear(self, data: bytes) -> None:
        for kind, flags, _, payload in self._reader.feed(data):
            if kind == frames.HEADERS:
                fields = dict(self._decoder.decode(payload))
                if flags & frames.END_STREAM:
                    number = int(fields.get("grpc-status", "-1"))
                    self.statuses[_STATUSES.get(number, f"status {number}")] += 1
            elif kind == frames.RST_STREAM:
                code = int.from_bytes(payload, "big")
                if code != Code.NO_ERROR:  # that is after a status
                    self.codes[_name_of(code)] += 1
            elif kind == frames.GOAWAY:
                self.goodbye = _name_of(int.from_bytes(payload[4:8], "big"))
            elif kind == frames.SETTINGS and not flags & frames.ACK:
                self._unsent += frames.frame(frames.SETTINGS, frames.ACK, 0)


_STATUSES = {
    **{0: "OK", 1: "CANCELLED", 2: "UNKNOWN", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED"},
    **{7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED", 12: "UNIMPLEMENTED", 13: "INTERNAL"},
    **{14: "UNAVAILABLE", 16: "UNAUTHENTICATED"},
}


def _name_of(code: int) -> str:
    try:
        return Code(code).name
    except ValueError:
        return str(code)


def literal(name: bytes, value: bytes) -> bytes:
    """A header that enters no table."""
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    return bytes(hpack.hpack.encode_integer(size, 7))


# ---- floods


class Told(Counter[str]):
    """What a server said, in one line."""

    def add(self, peer: Peer) -> None:
        self.update(peer.statuses)
        self.update({f"reset {name}": count for name, count in peer.codes.items()})
        if peer.goodbye is not None:
            self[f"GOAWAY {peer.goodbye}"] += 1
        elif peer.is_cut:
            self["cut"] += 1

    def __str__(self) -> str:
        return ", ".join(f"{count} × {name}" for name, count in self.most_common(5)) or "nothing"

    @property
    def cuts(self) -> int:
        return sum(count for name, count in self.items() if name == "cut" or "GOAWAY" in name)


@contextlib.contextmanager
def peers(target: Target, count: int, **options: object) -> Iterator[list[Peer]]:
    found = [Peer(target, **options) for _ in range(count)]  # type: ignore[arg-type]
    try:
        yield found
    finally:
        for each in found:
            each.close()


def flood(
    target: Target,
    tried: str,
    one: Callable[[Peer, int], bytes],
    *,
    first: Callable[[Peer], bytes] = lambda _: b"",
    connections: int = 4,
    batch: int = _BATCH,
    **options: object,
) -> Outcome:
    """As fast as the server takes it, on several connections, each made again when it is cut. It is
    refused where the server cuts them."""
    told, sent, made = Told(), 0, connections
    live: list[tuple[Peer, Iterator[int]]] = []
    ends_at = time.monotonic() + target.seconds
    while time.monotonic() < ends_at + (0.0 if told.cuts else target.patience_s):
        while len(live) < connections and made <= _MOST_CONNECTIONS:
            peer = Peer(target, **options)  # type: ignore[arg-type]
            peer.send(first(peer))
            live.append((peer, iter(range(10**9))))
            made += 1
        if not live:
            break
        for peer, numbers in live:
            if not peer.is_full:
                frames_ = [one(peer, next(numbers)) for _ in range(batch)]
                sent += batch
                peer.send(b"".join(frames_))
            else:
                peer.send(b"")
        for peer, _ in [each for each in live if each[0].is_cut]:
            told.add(peer)
            peer.close()
        live = [each for each in live if not each[0].is_cut]
        _wait_any([each[0] for each in live])
    for peer, _ in live:
        peer.read()
        told.add(peer)
        peer.close()
    return Outcome(f"{tried}: {sent:,} times", str(told), told.cuts > 0)


def _wait_any(live: list[Peer]) -> None:
    """Where every connection is full, until one is not: an attacker must not spin for nothing."""
    sockets = [each._socket for each in live]
    if live and all(each.is_full for each in live):
        select.select(sockets, sockets, [], 0.02)


def small_buffer(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
