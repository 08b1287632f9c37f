"""One HTTP/2 connection: what comes in, the limits of patience, and the end.

The hot path (a call's head and message in one read, its answer in one write) makes no task, no
timer and no future. Whatever a peer does wrong ends its stream or its connection with the code of
RFC 9113, and is not logged: it is not our mistake.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import grpc

from headway.config import ServerConfig
from headway.server.grpc.calls import Refusal
from headway.server.net.holding import BodyRoom
from headway.server.net.http2 import frames, heads
from headway.server.net.http2.budget import Account, Budget
from headway.server.net.http2.call import ENCODINGS, WINDOW, Call, Method
from headway.server.net.http2.frames import Code, ConnectionFailed, StreamFailed
from headway.server.net.http2.heads import Head, HeadReader, Metadata
from headway.server.net.http2.sending import Sending

MAX_CALLS = 1000  # at once, of one connection
MAX_OPEN_CALLS = 100  # of those, calls that need no key
CONNECTION_WINDOW = 2**24
LINGER_S = 2.0  # how long a peer that failed is listened to, so that it can read why
PING_TIMEOUT_S = 20.0
_RESET_COSTS = 4  # a call that was begun for nothing, or refused
_ANSWER_EARNS = 8
_SMALL_DATA = 256  # bytes of a frame; a smaller one that ends nothing costs more than it brings
_LARGE_HEAD = 1024  # bytes, decoded; from here on they are counted as long as the call lives
_CALLS_A_UNIT = 8  # that are looked at when a window changes for all of them
_NO_METHOD = Method(lambda *_: None, bytes, bytes, takes_stream=True, gives_stream=True)


class Owner(Protocol):
    """The server that holds the connections."""

    room: BodyRoom
    unpacking: asyncio.Semaphore  # how many packed messages are unpacked at a time

    def refusal_of(self, path: str, metadata: Metadata) -> Refusal | None:
        """Why this caller may not call this method; None: it may."""
        ...

    def budget_of(self, address: str) -> Budget:
        """What all connections of that host share."""
        ...

    def opened(self, connection: "Connection", address: str) -> bool:
        """Whether there is room for it, from that host."""
        ...

    def closed(self, connection: "Connection") -> None: ...

    def left(self, task: "asyncio.Task[None]") -> None:
        """A call's task that has been cancelled, and may still be cleaning up."""
        ...


class _Partial(NamedTuple):
    """A header block whose end has not come."""

    stream_id: int
    flags: int
    block: bytes


class Connection(Sending):
    def __init__(
        self,
        find: Callable[[str], Method | None],
        config: ServerConfig,
        loop: asyncio.AbstractEventLoop,
        owner: Owner,
        *,
        limit_bytes: int,
    ) -> None:
        super().__init__(loop)
        self._find = find
        self._config = config
        self.limit_bytes = limit_bytes
        self.peer = ""
        self._owner = owner
        self.unpacking = owner.unpacking
        self._preface = frames.PREFACE  # what of it has not come
        self._reader = frames.FrameReader()
        self._heads = HeadReader(limit_bytes=config.max_header_bytes)
        self._only: int | None = frames.SETTINGS  # the only kind of frame that may come now
        self._partial: _Partial | None = None

        self._highest_id = 0
        self._is_last = False  # no call after those that have begun
        self._is_over = False  # what still comes in is thrown away

        self._owed = 0  # bytes received and not yet given back
        self._open_calls = 0  # those that need no key
        self._heard_at = self._only_since = 0.0
        self._pinged_at = 0.0
        limits = (
            *(config.header_timeout_s, config.body_timeout_s),
            *(config.write_timeout_s, config.keep_alive_s),
        )
        self._tick_s = min(5.0, *(each / 2 for each in limits))
        self._timer: asyncio.TimerHandle | None = None

    # ---- the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        host, port = _peer_of(transport)
        self.peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        self._heard_at = self._only_since = now = self.loop.time()
        self._account = Account(self._owner.budget_of(host), self._owner.room, now)
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

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._heard_at = self.loop.time()
        try:
            if self._preface:
                data = self._greeted(data)
            for kind, flags, stream_id, payload in self._reader.feed(data):
                if self._only is not None and kind != self._only:
                    raise _protocol_error("another frame is due")
                if kind < len(_HANDLERS):
                    try:
                        _HANDLERS[kind](self, flags, stream_id, payload)
                    except StreamFailed as error:
                        self._reset(stream_id, error.code)
                else:
                    self._charge()  # frames that we do not know are to be ignored
        except ConnectionFailed as error:
            self._fail(error.code, str(error))

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        for call in list(self._calls.values()):
            call.cancel()
        self._calls.clear()
        self._blocked.clear()
        self._partial = None
        self._reader = frames.FrameReader()
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
            head = self._heads.read(block)
            if self._heads.cost:
                self._charge(self._heads.cost)
            if not self._is_last:  # else GOAWAY has said that we do not see it
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

    def _open(self, stream_id: int, head: Head, *, is_last: bool) -> None:
        if len(self._calls) >= MAX_CALLS:
            raise StreamFailed(Code.REFUSED_STREAM, "too many calls at once")
        method = self._find(head.path)
        if method is None or not head.is_grpc or head.encoding not in ENCODINGS:
            self._refuse(self._new_call(stream_id, head, _NO_METHOD, is_last=is_last), method)
            return
        refusal = self._owner.refusal_of(head.path, head.metadata)
        if refusal is not None:
            self._charge(_RESET_COSTS)
            call = self._new_call(stream_id, head, _NO_METHOD, is_last=is_last)
            call.is_refused = True
            call.end(*refusal)
            return
        if method.is_open:
            if self._open_calls >= MAX_OPEN_CALLS:
                raise StreamFailed(Code.REFUSED_STREAM, "too many calls at once without a key")
            self._open_calls += 1
        call = self._new_call(stream_id, head, method, is_last=is_last)
        call.start(head.size_bytes if head.size_bytes > _LARGE_HEAD else 0)
        if is_last and not call.is_over:
            call.receive(b"", 0, is_last=True)

    def _new_call(self, stream_id: int, head: Head, method: Method, *, is_last: bool) -> Call:
        call = Call(self, stream_id, head, method, self._first_window, self._heard_at)
        call.is_received = is_last
        self._calls[stream_id] = call
        return call

    def _refuse(self, call: Call, method: Method | None) -> None:
        """There is no such call, whoever asks."""
        self._charge(_RESET_COSTS)
        call.is_refused = True
        if not call.head.is_grpc:
            call.head_block = None
            call.is_over = True
            self.finish(call, heads.NOT_GRPC_BLOCK)
        elif method is None:
            call.end(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        else:
            said = f"the encoding {call.head.encoding!r} is not known"
            call.end(grpc.StatusCode.UNIMPLEMENTED, said)

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._charge()
        if not stream_id or len(payload) != 5:
            raise frames.failed_size("a priority is a stream's, and takes 5 bytes")

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.parse_number(payload)
        self._check_known(stream_id)
        self._charge(_RESET_COSTS)
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
            self._charge(len(self._calls) // _CALLS_A_UNIT)
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
        """It will make no new calls; those that it made are answered."""
        if stream_id:
            raise _protocol_error("who goes away does so with the connection")
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
            self._charge(len(self._blocked) // _CALLS_A_UNIT)
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

    def _check_known(self, stream_id: int) -> None:
        if not 0 < stream_id <= self._highest_id or not stream_id & 1:
            raise _protocol_error(f"stream {stream_id} has not been opened")

    def _charge(self, cost: int = 1) -> None:
        """A frame that brings no work. Work that is done makes up for it."""
        if self._account.is_overdrawn(cost, self._heard_at):
            raise ConnectionFailed(Code.ENHANCE_YOUR_CALM, "too many frames for nothing")

    def charge_refused(self) -> None:
        """A request that could not be read, found out outside of `data_received`."""
        if not self._is_over and self._account.is_overdrawn(_RESET_COSTS, self.loop.time()):
            self._fail(Code.ENHANCE_YOUR_CALM, "too many calls for nothing")

    def hold(self, more_bytes: int) -> None:
        self._account.hold(more_bytes)

    def left(self, task: "asyncio.Task[None]") -> None:
        self._owner.left(task)

    # ---- work and what is none

    def earn(self, units: int) -> None:
        self._account.earn(units)

    def _forget(self, call: Call) -> None:
        self._take_out(call.id)
        if not call.is_refused:
            self._account.earn(_ANSWER_EARNS)
        call.close()
        self._close_if_done()

    def _drop(self, stream_id: int) -> None:
        call = self._take_out(stream_id)
        if call is not None:
            call.cancel()
            self._close_if_done()

    def _take_out(self, stream_id: int) -> Call | None:
        call = self._calls.pop(stream_id, None)
        self._blocked.pop(stream_id, None)
        if call is not None and call.method.is_open:
            self._open_calls -= 1
        return call

    def _reset(self, stream_id: int, code: Code) -> None:
        self._charge(_RESET_COSTS)
        self._transport.write(frames.rst_stream(stream_id, code))
        self._drop(stream_id)

    # ---- ending

    def finish_calls(self) -> None:
        """Take no call after those that have begun."""
        if self._is_last or self._is_over:
            return
        self._is_last = True
        self._transport.write(frames.goaway(self._highest_id, Code.NO_ERROR, "the server stops"))
        self._close_if_done()

    def cut(self) -> None:
        """Time is up: whoever still waits is told so."""
        for call in list(self._calls.values()):
            call.end(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
            call.cancel()
        self._calls.clear()
        self._blocked.clear()
        self._close()

    def _close_if_done(self) -> None:
        if self._is_last and not self._calls and not self._is_over:
            self._close()

    def _close(self) -> None:
        self._is_over = True
        self._paused_at = self.loop.time()  # what is unsent has its time to leave
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._transport.close()

    def _fail(self, code: Code, message: str) -> None:
        """It cannot go on. Its calls are lost, as the peer knows."""
        self._is_over = True
        for stream_id in list(self._calls):
            self._drop(stream_id)
        if self._transport.is_closing():
            return
        self._transport.write(frames.goaway(self._highest_id, code, message))
        if self._transport.can_write_eof():
            # Closing on unread bytes makes the kernel reset the connection, and the peer would
            # never see the reason: stay a while and throw away what comes.
            self._transport.write_eof()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_later(LINGER_S, self._transport.abort)
        else:
            self._close()

    # ---- the clock

    def _tick(self) -> None:
        """Now and then: no call sets a timer of its own."""
        self._timer = self.loop.call_later(self._tick_s, self._tick)
        now, config = self.loop.time(), self._config
        if (self.is_paused or self._is_over) and self._is_stuck(now, config.write_timeout_s):
            self._transport.abort()
        elif self._is_over:
            return
        elif self._only is not None and now - self._only_since > config.header_timeout_s:
            self._fail(Code.ENHANCE_YOUR_CALM, "the head takes too long")
        elif now - self._heard_at > config.keep_alive_s:
            self._ping(now)
        self._check_calls(now)

    def _ping(self, now: float) -> None:
        """Is there still somebody?"""
        if self._pinged_at <= self._heard_at:
            self._pinged_at = now
            self._transport.write(frames.frame(frames.PING, 0, 0, b"headway?"))
        elif now - self._pinged_at > PING_TIMEOUT_S:
            self._transport.abort()

    def _check_calls(self, now: float) -> None:
        config = self._config
        for call in list(self._calls.values()):
            limit_s = config.header_timeout_s if call.method.is_open else config.body_timeout_s
            if call.is_late(now, limit_s):
                call.end(grpc.StatusCode.DEADLINE_EXCEEDED, "the request took too long to arrive")
            elif call.outbox and now > call.due_at + config.write_timeout_s:
                self._transport.write(frames.rst_stream(call.id, Code.CANCEL))
                self._drop(call.id)


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
