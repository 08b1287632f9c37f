"""The half of an HTTP/2 connection that knows no frames that come in: answers within the peer's
windows, and what waits for them to open; what the connection owes; how it ends, and its timers."""

import asyncio
from typing import TYPE_CHECKING

from headway.errors import QueueFull
from headway.wire.http2 import frames, heads
from headway.wire.http2.budget import PeerAccount
from headway.wire.http2.call import GrpcCall
from headway.wire.http2.call_state import CallState
from headway.wire.http2.frames import Code, ConnectionFailed
from headway.wire.http2.inbox import prefix_of
from headway.wire.http2.joined_writes import GatheringTransport
from headway.wire.http2.outbox import Outbox
from headway.wire.http2.status import Status
from headway.wire.limits import ConnectionLimits
from headway.wire.writes import Writes

if TYPE_CHECKING:
    from headway.wire.http2.server import H2Server

_OK_HEAD = frames.head(frames.HEADERS, frames.END_HEADERS, 0, len(heads.HEAD_BLOCK))[:5]
_OK_END = frames.head(
    frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 0, len(heads.OK_BLOCK)
)[:5]
_AT_ONCE = 2**18  # bytes that are written before we look whether the peer reads
UNREAD_CALLS = 64  # with unsent answers: we stop reading from such a peer …
UNREAD_BYTES = 2**20  # … or with this many bytes unsent
SLOWEST_BYTES_A_S = 8192.0  # a peer that reads more slowly is not waited for
LINGER_S = 2.0  # how long a peer that failed is listened to, so that it can read why
PING_TIMEOUT_S = 20.0
RESET_COSTS = 4  # a call that was begun for nothing, or refused
_ANSWER_EARNS = 8


class Lifetime(asyncio.BufferedProtocol):
    """The receiving half, `Connection`, derives from it."""

    def __init__(
        self, config: ConnectionLimits, loop: asyncio.AbstractEventLoop, owner: "H2Server"
    ) -> None:
        self.loop = loop
        self._transport: GatheringTransport = None  # type: ignore[assignment]  # until connected
        self._calls: dict[int, GrpcCall] = {}  # by the number of their stream
        self._window = frames.FIRST_WINDOW  # what we may send
        self._first_window = frames.FIRST_WINDOW  # of a new stream
        self._blocked: dict[int, CallState] = {}  # by id, oldest first
        self.is_paused = False
        self._is_choked = False  # it has asked for more than it reads
        self._paused_at = 0.0
        self._unsent_bytes = 0  # when we last looked
        self._config = config
        self._owner = owner
        self._account: PeerAccount = None  # type: ignore[assignment]  # until connected
        self._client = ""  # its address; until connected
        self._keyless_calls = 0
        self._highest_id = 0
        self._only: int | None = frames.SETTINGS  # the only kind of frame allowed now
        self._is_last = False  # no call after those that have begun
        self._is_over = False  # received data is thrown away
        self._heard_at = self._only_since = 0.0
        self._pinged_at = 0.0
        on_head_s = min(config.header_timeout_s, config.body_timeout_s)
        self._tick_s = min(5.0, min(on_head_s, config.write_timeout_s, config.keep_alive_s) / 2)
        self._timer: asyncio.TimerHandle | None = None

    def _set_reading(self) -> None:
        """Resume reading from the peer, or pause it."""
        raise NotImplementedError

    # ---- the transport calls

    def pause_writing(self) -> None:
        self.is_paused = True
        self._paused_at = self.loop.time()
        self._unsent_bytes = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self.is_paused = False
        self._send_blocked()
        if self._is_choked and not self.is_paused:
            self._is_choked = False
            self._set_reading()
        for call in list(self._calls.values()):
            call.wake_writer()

    # ---- the calls call

    def send_answer(self, call: CallState, body: bytes) -> None:
        size = len(body) + 5
        if (
            size > frames.MAX_FRAME
            or size > self._window
            or size > call.send_window
            or not call.is_received
            or self.is_paused
        ):
            self.send(call, prefix_of(body), body)
            self.finish(call, heads.OK_BLOCK)
            return
        self._window -= size
        call.head_block = None
        number = call.id.to_bytes(4, "big")
        self._transport.gather(
            b"".join(
                (
                    *(_OK_HEAD, number, heads.HEAD_BLOCK),
                    *(frames.head(frames.DATA, 0, call.id, size), b"\0"),
                    *((size - 5).to_bytes(4, "big"), body),
                    *(_OK_END, number, heads.OK_BLOCK),
                )
            )
        )
        self._forget(call)

    def send(self, call: CallState, *parts: bytes) -> None:
        if call.is_closed:
            return
        if call.head_block is not None:
            # Gathered: a batch of answers that have no window yet would be a write for each.
            self._transport.gather(frames.headers(call.id, call.head_block, is_last=False))
            call.head_block = None
        if call.outbox is None:
            if self._sent_at_once(call, parts):
                return
            call.outbox = Outbox()
            call.due_at = self.loop.time()
        for part in parts:
            call.outbox.put(part)
            call.due_at += len(part) / SLOWEST_BYTES_A_S
        self._send_some(call)
        if call.outbox:
            self._hold_answer(call)

    def _sent_at_once(self, call: CallState, parts: tuple[bytes, ...]) -> bool:
        """The common case: a message that fits into one frame, and nothing waits before it."""
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if (
            size > frames.MAX_FRAME
            or size > self._window
            or size > call.send_window
            or self.is_paused
        ):
            return False
        self._window -= size
        call.send_window -= size
        self.earn(1)
        self._transport.gather(b"".join((frames.head(frames.DATA, 0, call.id, size), *parts)))
        return True

    def finish(self, call: CallState, trailers: bytes) -> None:
        if call.is_closed:
            return
        if call.head_block is not None:
            extra = call.head_block[len(heads.HEAD_BLOCK) :]
            trailers = heads.only_trailers_block(extra + trailers)
        call.trailers = trailers
        if not call.outbox:
            self._send_trailers(call, trailers)

    def give_back(self, call: CallState, size_bytes: int) -> None:
        if not call.is_closed and not self._transport.is_closing():
            self._transport.write(frames.window_update(call.id, size_bytes))

    # ---- sending

    def _hold_answer(self, call: CallState) -> None:
        try:
            call.hold_answer()
        except QueueFull:  # it reads too slowly for what it asks for
            self._transport.write(frames.rst_stream(call.id, Code.ENHANCE_YOUR_CALM))
            self._drop(call.id)
        if self.is_paused and not self._is_choked:
            is_much = self._held_bytes > UNREAD_BYTES or len(self._blocked) >= UNREAD_CALLS
            if is_much:
                self._is_choked = True
                self._set_reading()

    def _send_some(self, call: CallState) -> None:
        """Send as much as the windows have room for, as long as the peer reads."""
        outbox = call.outbox
        assert outbox is not None
        while not self.is_paused:
            room = min(self._window, call.send_window, len(outbox), _AT_ONCE)
            if room <= 0:
                break
            parts: list[bytes] = []
            for at in range(0, room, frames.MAX_FRAME):
                part = outbox.take(min(frames.MAX_FRAME, room - at))
                parts += (frames.head(frames.DATA, 0, call.id, len(part)), part)
            self._window -= room
            call.send_window -= room
            self.earn(len(parts) // 2)
            self._transport.writelines(parts)
        if outbox:
            self._blocked[call.id] = call
            return
        call.outbox = None
        self._blocked.pop(call.id, None)
        call.wake_writer()
        if call.trailers is not None:
            self._send_trailers(call, call.trailers)

    def _send_blocked(self) -> None:
        for call in list(self._blocked.values()):
            if self._window <= 0 or self.is_paused:
                break
            if call.send_window > 0:
                self._send_some(call)

    def _send_trailers(self, call: CallState, block: bytes) -> None:
        data = frames.headers(call.id, block, is_last=True)
        if not call.is_received:  # we do not want the rest
            data += frames.rst_stream(call.id, Code.NO_ERROR)
        self._transport.write(data)
        self._forget(call)

    def _widen(self, call: CallState, increment: int) -> None:
        call.send_window += increment
        if call.send_window > frames.MAX_WINDOW:
            raise ConnectionFailed(Code.FLOW_CONTROL_ERROR, "a window beyond 2^31 - 1")

    def _is_stuck(self, now: float, limit_s: float) -> bool:
        """Whether the peer has read nothing for so long."""
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes:  # slow, but reading
            self._unsent_bytes, self._paused_at = unsent_bytes, now
        return now - self._paused_at > limit_s

    # ---- what it costs

    def _charge(self, cost: int = 1) -> None:
        """A frame that brings no work. Work that is done makes up for it."""
        if self._account.is_overdrawn(cost, self._heard_at):
            raise ConnectionFailed(Code.ENHANCE_YOUR_CALM, "too many frames for nothing")

    def charge_refused(self) -> None:
        """A request that could not be read, found out outside of `data_received`."""
        if not self._is_over and self._account.is_overdrawn(RESET_COSTS, self.loop.time()):
            self._fail(Code.ENHANCE_YOUR_CALM, "too many calls for nothing")

    @property
    def client(self) -> str:
        return self._client

    def hold(self, more_bytes: int) -> None:
        self._account.hold(more_bytes)

    def left(self, task: "asyncio.Task[None]") -> None:
        self._owner.left(task)

    @property
    def writes(self) -> Writes:
        return self._owner.writes

    @property
    def _held_bytes(self) -> int:
        return self._account.held_bytes

    # ---- work and what is none

    def earn(self, units: int) -> None:
        self._account.earn(units)

    def _forget(self, call: CallState) -> None:
        self._calls.pop(call.id, None)
        if call.method.is_open:
            self._keyless_calls -= 1
        if not call.is_refused:
            self._account.earn(_ANSWER_EARNS)
        call.close()
        if self._is_last:
            self._close_if_done()

    def _drop(self, stream_id: int) -> None:
        call = self._calls.pop(stream_id, None)
        self._blocked.pop(stream_id, None)
        if call is not None:
            if call.method.is_open:
                self._keyless_calls -= 1
            call.cancel()
            self._close_if_done()

    def _charge_reset(self, stream_id: int) -> None:
        """Charge for a reset; also for the head of a call that was already begun."""
        call = self._calls.get(stream_id)
        self._charge(RESET_COSTS + (0 if call is None else call.head_cost))

    def _reset(self, stream_id: int, code: Code) -> None:
        self._charge_reset(stream_id)
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
        """The drain has ended: refuse the calls that still wait."""
        for call in list(self._calls.values()):
            call.end(Status.UNAVAILABLE, "the server is stopping")
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
        """End a connection that cannot go on. The peer learns that its calls are lost."""
        self._is_over = True
        self._end_calls()
        if self._transport.is_closing():
            return
        self._transport.write(frames.goaway(self._highest_id, code, message))
        if self._transport.can_write_eof():
            # Closing on unread bytes makes the kernel reset the connection, and the peer would
            # never see the reason: stay a while, and throw away received data.
            self._transport.write_eof()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_later(LINGER_S, self._transport.abort)
        else:
            self._close()

    def _end_calls(self) -> None:
        ended, self._calls = self._calls, {}
        self._blocked.clear()
        self._keyless_calls = 0
        for call in ended.values():
            call.cancel()

    # ---- the clock

    def _tick(self) -> None:
        """Check the time limits of the connection and its calls, so that no call sets a timer of
        its own."""
        self._timer = self.loop.call_later(self._tick_s, self._tick)
        now, config = self.loop.time(), self._config
        if (self.is_paused or self._is_over) and self._is_stuck(now, config.write_timeout_s):
            self._transport.abort()
        elif self._is_over:
            return
        elif self._only is not None and now - self._only_since > config.header_timeout_s:
            self._fail(Code.ENHANCE_YOUR_CALM, "the head takes too long")
        elif now - self._heard_at > config.keep_alive_s and not self._is_choked:
            self._ping(now)
        self._check_calls(now)

    def _ping(self, now: float) -> None:
        """Is the client still there?"""
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
                call.end(Status.DEADLINE_EXCEEDED, "the request took too long to arrive")
            elif call.outbox and now > call.due_at + config.write_timeout_s:
                self._transport.write(frames.rst_stream(call.id, Code.CANCEL))
                self._drop(call.id)
