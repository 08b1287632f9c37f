"""The life of an HTTP/2 connection: what it owes, which calls are answered or dropped, how it ends,
and its timers. It knows no frames that come in."""

import asyncio
from typing import TYPE_CHECKING

from headway.wire.http2 import frames
from headway.wire.http2.budget import PeerAccount
from headway.wire.http2.call_state import CallState
from headway.wire.http2.frames import Code, ConnectionFailed
from headway.wire.http2.sending import Sending
from headway.wire.http2.status import Status
from headway.wire.limits import ConnectionLimits
from headway.wire.writes import Writes

if TYPE_CHECKING:
    from headway.wire.http2.server import H2Server

LINGER_S = 2.0  # how long a peer that failed is listened to, so that it can read why
PING_TIMEOUT_S = 20.0
RESET_COSTS = 4  # a call that was begun for nothing, or refused
_ANSWER_EARNS = 8


class Lifetime(Sending):
    """The middle layer of a connection: between the sending half and the receiving half."""

    def __init__(
        self, config: ConnectionLimits, loop: asyncio.AbstractEventLoop, owner: "H2Server"
    ) -> None:
        super().__init__(loop)
        self._config = config
        self._owner = owner
        self._account: PeerAccount = None  # type: ignore[assignment]  # until connected
        self._client = ""  # its address; until connected
        self._open_calls = 0  # those that need no key
        self._highest_id = 0
        self._only: int | None = frames.SETTINGS  # the only kind of frame allowed now
        self._is_last = False  # no call after those that have begun
        self._is_over = False  # received data is thrown away
        self._heard_at = self._only_since = 0.0
        self._pinged_at = 0.0
        limits = (
            *(config.header_timeout_s, config.body_timeout_s),
            *(config.write_timeout_s, config.keep_alive_s),
        )
        self._tick_s = min(5.0, *(each / 2 for each in limits))
        self._timer: asyncio.TimerHandle | None = None

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
            self._open_calls -= 1
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
                self._open_calls -= 1
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
        self._open_calls = 0
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
