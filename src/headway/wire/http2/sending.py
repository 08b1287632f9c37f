"""The sending half of an HTTP/2 connection: answers within the peer's windows, and what waits for
them to open. It knows no frames that come in."""

import asyncio

from headway.errors import QueueFull
from headway.wire.http2 import frames, heads
from headway.wire.http2.call import GrpcCall
from headway.wire.http2.call_state import CallState
from headway.wire.http2.frames import Code, ConnectionFailed
from headway.wire.http2.inbox import prefix_of
from headway.wire.http2.joined_writes import GatheringTransport
from headway.wire.http2.outbox import Outbox

_OK_HEAD = frames.head(frames.HEADERS, frames.END_HEADERS, 0, len(heads.HEAD_BLOCK))[:5]
_OK_END = frames.head(
    frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 0, len(heads.OK_BLOCK)
)[:5]


_AT_ONCE = 2**18  # bytes that are written before we look whether the peer reads
UNREAD_CALLS = 64  # with unsent answers: we stop reading from such a peer …
UNREAD_BYTES = 2**20  # … or with this many bytes unsent
SLOWEST_BYTES_A_S = 8192.0  # a peer that reads more slowly is not waited for


class Sending(asyncio.BufferedProtocol):
    """The other half derives from it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
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

    def _forget(self, call: CallState) -> None:
        """Forget a call whose last byte was sent."""
        raise NotImplementedError

    def _drop(self, stream_id: int) -> None:
        """Drop a call whose answer the client does not want."""
        raise NotImplementedError

    def earn(self, units: int) -> None:
        """Credit work that was done for the peer."""
        raise NotImplementedError

    def _set_reading(self) -> None:
        """Resume reading from the peer, or pause it."""
        raise NotImplementedError

    @property
    def _held_bytes(self) -> int:
        """The bytes that all calls of this connection hold."""
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
