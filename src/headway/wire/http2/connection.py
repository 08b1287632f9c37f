"""One HTTP/2 connection: handles received frames one by one.

The hot path (a call's head and message in one read, its answer in one write) makes no task, no
timer and no future. Every mistake of a peer ends its stream or its connection with the code of RFC
9113, and is not logged: it is not our mistake.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from headway.wire.connections import client_of
from headway.wire.http2 import frames, heads
from headway.wire.http2.budget import PeerAccount
from headway.wire.http2.call import ENCODINGS, GrpcCall
from headway.wire.http2.call_state import WINDOW
from headway.wire.http2.frames import Code, ConnectionFailed, Frame, StreamFailed
from headway.wire.http2.heads import CallHead, HeadReader
from headway.wire.http2.joined_writes import GatheringTransport
from headway.wire.http2.lifetime import RESET_COSTS, Lifetime
from headway.wire.http2.method import Method
from headway.wire.http2.status import CallRefusal, Status
from headway.wire.limits import ConnectionLimits

if TYPE_CHECKING:
    from headway.wire.http2.server import H2Server

MAX_CALLS = 1000  # at once, of one connection
MAX_OPEN_CALLS = 100  # of those, calls that need no key
CONNECTION_WINDOW = 2**24
AT_ONCE = 64  # frames of a read; the others wait for this connection's next turn
_FREE_HEAD = 24  # units of a head's cost that a call has for nothing; a reset or refused one pays
_SMALL_DATA = 256  # bytes of a frame; a smaller one that ends nothing costs more than it brings
_LARGE_HEAD = 1024  # bytes, decoded; from here on they are counted as long as the call lives
_CALLS_A_UNIT = 8  # that are looked at when a window changes for all of them
_NO_METHOD = Method(lambda *_: None, bytes, bytes, takes_stream=True, gives_stream=True)


class _Partial(NamedTuple):
    """A header block that is not complete."""

    stream_id: int
    flags: int
    block: bytes


class Connection(Lifetime):
    def __init__(
        self,
        find: Callable[[str], Method | None],
        config: ConnectionLimits,
        loop: asyncio.AbstractEventLoop,
        owner: "H2Server",
        *,
        limit_bytes: int,
    ) -> None:
        super().__init__(config, loop, owner)
        self._find = find
        self._admit = owner.admit
        self.limit_bytes = limit_bytes
        self.peer = ""
        self.unpacking = owner.unpacking
        self._preface = frames.PREFACE  # the part that has not been received
        self._buffer = owner.buffer
        self._reader = frames.FrameReader()
        self._heads = HeadReader(limit_bytes=config.max_header_bytes)
        self._partial: _Partial | None = None
        self._unread: list[bytes] | None = None  # received while older data waits; None: none waits
        self._is_stopped = False  # the transport reads nothing
        self._owed = 0  # bytes received and not yet given back

    # ---- the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = GatheringTransport(cast(asyncio.Transport, transport), self.loop)
        host, port = _peer_of(transport)
        self._client = client_of(host)
        self.peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        self._heard_at = self._only_since = now = self.loop.time()
        self._account = PeerAccount(self._owner.budget_of(host), self._owner.room, now)
        self._timer = self.loop.call_later(self._tick_s, self._tick)
        first = {
            frames.MAX_CONCURRENT_STREAMS: MAX_CALLS,
            frames.INITIAL_WINDOW_SIZE: WINDOW,
            frames.MAX_HEADER_LIST_SIZE: self._config.max_header_bytes,
        }
        more = CONNECTION_WINDOW - frames.FIRST_WINDOW
        self._transport.write(frames.settings(first) + frames.window_update(0, more))
        if not self._owner.opened(self, host):
            self._fail(Code.ENHANCE_YOUR_CALM, "too many connections")

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        if self._is_over:
            return  # thrown away
        self.data_received(self._buffer[:size].tobytes())
        if size == len(self._buffer) and self._unread is None and not self._is_over:
            self._wait_turn(iter(()))  # uvloop would read 32 times before the others

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._unread is not None:
            self._unread.append(data)  # a transport that is paused may have some left
            return
        self._heard_at = self.loop.time()
        try:
            if self._preface:
                data = self._greeted(data)
        except ConnectionFailed as error:
            self._fail(error.code, str(error))
        else:
            found = self._reader.feed(data)
            if not self._handle(found):
                self._wait_turn(found)

    def _wait_turn(self, found: Iterator[Frame]) -> None:
        if self._unread is None:
            self._unread = []
        self._owner.turns.wait(lambda: self._go_on(found))
        self._set_reading()

    def _handle(self, found: Iterator[Frame]) -> bool:
        """Handle some frames. False: there may be more."""
        most = AT_ONCE
        try:
            for kind, flags, stream_id, payload in found:
                if self._only is not None and kind != self._only:
                    raise _protocol_error("another frame is due")
                handler = _HANDLERS[kind] if kind < len(_HANDLERS) else Connection._on_unknown
                try:
                    handler(self, flags, stream_id, payload)
                except StreamFailed as error:
                    self._reset(stream_id, error.code)
                if self._is_over:  # the handler gave the connection up
                    return True
                most -= 1
                if not most:
                    return False
        except ConnectionFailed as error:
            self._fail(error.code, str(error))
        return True

    def _go_on(self, found: Iterator[Frame]) -> None:
        """Handle more frames of one read, then the data received meanwhile."""
        self._heard_at = self.loop.time()
        if not self._is_over and not self._handle(found):
            self._wait_turn(found)
            return
        unread, self._unread = self._unread or [], None
        self._set_reading()
        for data in unread:
            self.data_received(data)

    def _set_reading(self) -> None:
        should_stop = self._unread is not None or self._is_choked
        if should_stop is self._is_stopped or self._transport.is_closing():
            return
        self._is_stopped = should_stop
        if should_stop:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._partial = None
        self._reader = frames.FrameReader()
        self._end_calls()
        self._owner.closed(self)

    # ---- frames

    def _greeted(self, data: bytes) -> bytes:
        size = min(len(data), len(self._preface))
        if data[:size] != self._preface[:size]:
            raise _protocol_error("this is not HTTP/2")
        self._preface = self._preface[size:]
        return data[size:]

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._owed += len(payload)
        if self._owed >= CONNECTION_WINDOW // 2:
            self._transport.write(frames.window_update(0, self._owed))
            self._owed = 0
        data = payload if not flags & frames.PADDED else frames.unpadded(flags, payload)
        call = self._calls.get(stream_id)
        if call is None:
            self._check_known(stream_id)
            self._charge()
            return
        if call.is_received:
            raise StreamFailed(Code.STREAM_CLOSED, "it had ended")
        is_last = bool(flags & frames.END_STREAM)
        if len(data) < _SMALL_DATA and not is_last:
            self._charge()
        call.receive(data, len(payload), is_last=is_last)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise _protocol_error("a client's streams have odd numbers")
        is_plain = not flags & (frames.PADDED | frames.PRIORITISED)
        block = payload if is_plain else frames.block_of(flags, payload)
        if flags & frames.END_HEADERS:
            self._on_block(flags, stream_id, block)
        else:
            self._partial = _Partial(stream_id, flags, block)
            self._only, self._only_since = frames.CONTINUATION, self._heard_at

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        partial = self._partial
        if partial is None or partial.stream_id != stream_id:
            raise _protocol_error("a continuation of nothing")
        self._charge()
        block = partial.block + payload
        if len(block) > self._config.max_header_bytes:
            raise ConnectionFailed(Code.ENHANCE_YOUR_CALM, "a head without an end")
        if flags & frames.END_HEADERS:
            self._partial = self._only = None
            self._on_block(partial.flags, stream_id, block)
        else:
            self._partial = partial._replace(block=block)

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        is_last = bool(flags & frames.END_STREAM)
        if stream_id > self._highest_id:
            self._highest_id = stream_id
            try:
                head = self._heads.read(block)
            except StreamFailed:
                self._charge(self._heads.cost)
                raise
            if self._heads.cost > _FREE_HEAD:
                self._charge(self._heads.cost - _FREE_HEAD)
            if not self._is_last:  # else we have sent GOAWAY, and ignore it
                self._open(stream_id, head, is_last=is_last)
            return
        self._heads.decode(block)
        self._charge(1 + self._heads.cost)
        call = self._calls.get(stream_id)
        if call is None or call.is_received:
            return  # it has been answered or reset, which the peer could not know
        if not is_last:
            raise StreamFailed(Code.PROTOCOL_ERROR, "trailers end a stream")
        call.receive(b"", 0, is_last=True)

    def _open(self, stream_id: int, head: CallHead, *, is_last: bool) -> None:
        if len(self._calls) >= MAX_CALLS:
            raise StreamFailed(Code.REFUSED_STREAM, "too many calls at once")
        method = self._find(head.path)
        if method is None or not head.is_grpc or head.encoding not in ENCODINGS:
            self._refuse(self._new_call(stream_id, head, _NO_METHOD, is_last=is_last), method)
            return
        caller = None
        if self._admit is not None:
            admitted = self._admit(head.path, head.metadata)
            if isinstance(admitted, CallRefusal):
                self._charge(RESET_COSTS + self._heads.cost)
                call = self._new_call(stream_id, head, _NO_METHOD, is_last=is_last)
                call.is_refused = True
                call.end(*admitted)
                return
            caller = admitted
        if method.is_open:
            self._count_keyless()
        call = self._new_call(stream_id, head, method, is_last=is_last)
        if caller is not None:
            call.caller = caller
        call.start(head.size_bytes if head.size_bytes > _LARGE_HEAD else 0)
        if is_last and not call.is_over:
            call.receive(b"", 0, is_last=True)

    def _count_keyless(self) -> None:
        if self._keyless_calls >= MAX_OPEN_CALLS:
            raise StreamFailed(Code.REFUSED_STREAM, "too many calls at once without a key")
        self._keyless_calls += 1

    def _new_call(
        self, stream_id: int, head: CallHead, method: Method, *, is_last: bool
    ) -> GrpcCall:
        call = GrpcCall(self, stream_id, head, method, self._first_window, self._heard_at)
        call.is_received = is_last
        if self._heads.cost:
            call.head_cost = min(self._heads.cost, _FREE_HEAD)
        self._calls[stream_id] = call
        return call

    def _refuse(self, call: GrpcCall, method: Method | None) -> None:
        """Refuse a call of a method that does not exist for any client."""
        self._charge(RESET_COSTS + self._heads.cost)
        call.is_refused = True
        if not call.head.is_grpc:
            call.head_block = None
            call.is_over = True
            self.finish(call, heads.NOT_GRPC_BLOCK)
        elif method is None:
            call.end(Status.UNIMPLEMENTED, "Method not found!")
        else:
            text = f"the encoding {call.head.encoding!r} is not known"
            call.end(Status.UNIMPLEMENTED, text)

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._charge()
        if not stream_id or len(payload) != 5:
            raise frames.failed_size("a priority is a stream's, and takes 5 bytes")

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.parse_number(payload)
        self._check_known(stream_id)
        self._charge_reset(stream_id)
        self._drop(stream_id)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise _protocol_error("settings are the connection's")
        self._charge()
        self._only = None
        if flags & frames.ACK:
            if payload:
                raise frames.failed_size("an acknowledgement is empty")
            return
        found = frames.parse_settings(payload)
        first = found.get(frames.INITIAL_WINDOW_SIZE)
        if first is not None and first != self._first_window:
            self._look_at(len(self._calls))
            for call in list(self._calls.values()):
                self._widen(call, first - self._first_window)
            self._first_window = first
        self._transport.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._send_blocked()

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise _protocol_error("a client does not push")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise _protocol_error("pings are the connection's")
        if len(payload) != 8:
            raise frames.failed_size("a ping takes 8 bytes")
        self._charge()
        if not flags & frames.ACK:
            self._transport.write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        """The peer will make no new calls; those that it has made are answered."""
        if stream_id:
            raise _protocol_error("GOAWAY belongs to the connection, not to a stream")
        if len(payload) < 8:
            raise frames.failed_size("going away takes 8 bytes or more")
        self._charge()

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        increment = frames.increment_of(payload)
        self._charge()
        if not stream_id:
            if not increment:
                raise _protocol_error("a window opens by one byte or more")
            self._window += increment
            if self._window > frames.MAX_WINDOW:
                raise ConnectionFailed(Code.FLOW_CONTROL_ERROR, "a window beyond 2^31 - 1")
            self._look_at(len(self._blocked))
            self._send_blocked()
            return
        self._check_known(stream_id)
        call = self._calls.get(stream_id)
        if call is not None:
            if not increment:
                raise StreamFailed(Code.PROTOCOL_ERROR, "a window opens by one byte or more")
            self._widen(call, increment)
            if stream_id in self._blocked:
                self._send_some(call)

    def _look_at(self, calls: int) -> None:
        """A window changes for this many calls."""
        self._charge(calls // _CALLS_A_UNIT)

    def _on_unknown(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Ignore a frame of an unknown type."""
        self._charge()

    def _check_known(self, stream_id: int) -> None:
        if not 0 < stream_id <= self._highest_id or not stream_id & 1:
            raise _protocol_error(f"stream {stream_id} has not been opened")


_HANDLERS: tuple[Callable[[Connection, int, int, bytes], None], ...] = (  # by the frame's kind
    Connection._on_data,
    Connection._on_headers,
    Connection._on_priority,
    Connection._on_rst_stream,
    Connection._on_settings,
    Connection._on_push_promise,
    Connection._on_ping,
    Connection._on_goaway,
    Connection._on_window_update,
    Connection._on_continuation,
)


def _protocol_error(message: str) -> ConnectionFailed:
    return ConnectionFailed(Code.PROTOCOL_ERROR, message)


def _peer_of(transport: asyncio.BaseTransport) -> tuple[str, int]:
    address = transport.get_extra_info("peername")
    return address[:2] if isinstance(address, tuple) and len(address) >= 2 else ("", 0)
