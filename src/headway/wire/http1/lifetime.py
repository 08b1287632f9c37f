"""The life of an HTTP/1.1 connection: its clock, how it refuses and how it ends."""

import asyncio
import math
from collections import deque
from collections.abc import Iterator
from typing import Protocol, cast

import httptools

from headway.wire.application import Application
from headway.wire.body_room import UNCOUNTED_BYTES, BodyRoom
from headway.wire.connections import client_of
from headway.wire.headers import request_id
from headway.wire.http1 import half_close, wire
from headway.wire.http1.turns import Phase, Received, Refused, Turn
from headway.wire.limits import Limits
from headway.wire.messages import Pending
from headway.wire.round_robin import RoundRobin
from headway.wire.writes import Writes

LINGER_S = 2.0  # how long a refused client is listened to, so that it can read why


class Owner(Protocol):
    """The server that holds the connections."""

    room: BodyRoom
    turns: RoundRobin  # of work that would hold all connections up
    writes: Writes  # of streams
    buffer: memoryview  # that all connections read into, one after the other

    def opened(self, connection: "Lifetime", address: str) -> str | None:
        """Why there is no room for it; None: there is; "": not even for an answer."""
        ...

    def closed(self, connection: "Lifetime", task: asyncio.Task[None] | None) -> None:
        """It is gone. `task` has been cancelled and may still be cleaning up."""
        ...


class Lifetime(asyncio.BufferedProtocol):
    """Under the half that answers, and the one that receives."""

    # There are more attributes than CPython keeps fast without being told their names.
    __slots__ = (
        "_allowed_bytes",
        "_app",
        "_body",
        "_comment",
        "_config",
        "_deadline",
        "_has_ended",
        "_headers",
        "_is_answering",
        "_is_last",
        "_is_over",
        "_loop",
        "_owner",
        "_parser",
        "_phase",
        "_taken_bytes",
        "_task",
        "_timer",
        "_timer_at",
        "_transport",
        "_uncounted_bytes",
        "_unsent_bytes",
        "_url",
        "_waiting",
        "client",
    )

    def __init__(
        self, app: Application, config: Limits, loop: asyncio.AbstractEventLoop, owner: Owner
    ) -> None:
        self._app = app
        self._config = config
        self._loop = loop
        self._owner = owner
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until connected
        self._parser = httptools.HttpRequestParser(self)
        self.client = ""  # whose turn it is; until connected

        self._task: asyncio.Task[None] | Pending | None = None  # answers the current request
        self._waiting: deque[Turn] = deque()  # pipelined behind it
        self._is_answering = False  # the current answer's head is on the wire
        self._is_last = False  # no request after the current one
        self._is_over = False  # what still comes in is thrown away
        self._has_ended = False  # the client sends no more, but reads
        self._comment: bytes | None = None  # may be sent at any time while a stream is answered
        self._unsent_bytes = 0  # when we last looked

        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

        self._phase = Phase.NOTHING
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._uncounted_bytes = min(UNCOUNTED_BYTES, config.max_body_bytes)
        self._allowed_bytes = self._uncounted_bytes  # of this body; for more, ask
        self._taken_bytes = 0  # of the room that all share

    @property
    def is_idle(self) -> bool:
        return self._task is None and self._phase is Phase.NOTHING and not self._waiting

    # --- the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        address = peer[0] if peer else ""
        self.client = client_of(address)
        full = self._owner.opened(self, address)
        if full is None:
            self._arm(self._config.header_timeout_s)
            return
        self._is_over = True
        if full:  # in turns: hundreds may be accepted at once
            self._owner.turns.begin(self.client, self._turned_away(full))
        else:
            self._transport.abort()

    def eof_received(self) -> bool:
        """True: the transport stays open, for a client that sends no more but reads answers."""
        if self._is_over or (self._task is None and not self._waiting) or self._is_tls:
            return False
        if not self._has_ended:
            self._has_ended = True
            return self._is_read(half_close.CHECKS_S)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        task = self._task
        if task is not None:
            task.cancel()
        self._give_back()
        self._owner.closed(self, task if isinstance(task, asyncio.Task) else None)
        self._parser = None  # type: ignore[assignment]  # it holds us: end the circle here

    def _is_read(self, checks_s: tuple[float, ...]) -> bool:
        sock = self._transport.get_extra_info("socket")
        if self._transport.get_write_buffer_size():
            peer = half_close.peer_of(sock)
        elif (interim := self._interim()) is not None:
            peer = half_close.send_interim(sock, interim)
        else:
            return not self._is_answering
        if peer is half_close.Peer.UNKNOWN and checks_s:
            self._loop.call_later(checks_s[0], self._check_read, checks_s[1:])
        return peer is not half_close.Peer.LEFT

    def _check_read(self, checks_s: tuple[float, ...]) -> None:
        if self._transport.is_closing() or self._task is None:
            return
        peer = half_close.peer_of(self._transport.get_extra_info("socket"))
        if peer is half_close.Peer.LEFT:
            self._transport.abort()
        elif peer is half_close.Peer.UNKNOWN and checks_s:
            self._loop.call_later(checks_s[0], self._check_read, checks_s[1:])

    def _interim(self) -> bytes | None:
        """What may be sent now without being part of an answer."""
        if self._comment is not None:
            return self._comment
        is_possible = not self._is_answering and self._parser.get_http_version() != "1.0"
        return wire.CONTINUE if is_possible else None

    @property
    def _is_tls(self) -> bool:
        return self._transport.get_extra_info("sslcontext") is not None

    # --- ending

    def finish(self) -> None:
        """Take no request after those that have begun."""
        self._is_last = True
        if self.is_idle and not self._is_over:
            self._close()

    def cut(self) -> None:
        """Time is up: an unanswered request is refused, an answer ends in the middle."""
        if self._task is None or self._is_answering or self._transport.is_closing():
            self._transport.abort()
            return
        self._is_over = True
        self._task.cancel()
        refusal = Refused(503, "closed", "the server is stopping")
        self._transport.write(self._encode_refusal(refusal))
        self._transport.close()

    def _refuse(self, refusal: Refused) -> None:
        """The last answer of this connection, after those that come before it."""
        self._is_over = True
        self._body = []
        if self._task is None and not self._waiting:
            self._give_back()
            self._send_refusal(refusal)
        else:
            self._wait(refusal)

    def _turned_away(self, why: str) -> Iterator[float]:
        if not self._transport.is_closing():
            self._refuse(Refused(503, "too_many_connections", why))
        yield 0.0

    def _wait(self, turn: Turn) -> None:
        self._waiting.append(turn)
        self._transport.pause_reading()  # one read may hold many; there is no second

    def _send_refusal(self, refusal: Refused) -> None:
        self._transport.write(self._encode_refusal(refusal))
        if self._transport.can_write_eof():
            # Closing on unread bytes makes the kernel reset the connection, and the client would
            # never see the answer: stay a while and throw away what comes.
            self._transport.write_eof()
            self._arm(LINGER_S)
        else:
            self._close()

    def _encode_refusal(self, refusal: Refused) -> bytes:
        self._app.note_error(refusal.code)
        path = self._url.decode("latin-1").partition("?")[0]
        response = self._app.refuse(
            path, refusal.status, str(refusal), code=refusal.code, headers=refusal.headers
        )
        sent_id = request_id(self._headers.get(b"x-request-id"))
        return wire.encode_head(response, sent_id, wire.CLOSE) + response.body

    def _close(self) -> None:
        self._is_over = True
        self._waiting.clear()
        self._transport.close()
        self._unsent_bytes = self._transport.get_write_buffer_size()
        if self._unsent_bytes:
            self._arm(self._config.write_timeout_s)

    def _give_back(self) -> None:
        """All but what waiting requests hold, and what is coming in."""
        bodies = [turn.body_bytes for turn in self._waiting if isinstance(turn, Received)]
        kept = sum(max(0, size - self._uncounted_bytes) for size in bodies)
        if self._phase is Phase.BODY and not self._is_over:
            kept += self._allowed_bytes - self._uncounted_bytes
        self._owner.room.give_back(self._taken_bytes - kept)
        self._taken_bytes = kept

    # --- the clock

    def _arm(self, seconds: float) -> None:
        now = self._loop.time()
        self._deadline = deadline = now + seconds
        if deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        self._timer_at = self._deadline
        self._timer = self._loop.call_later(self._deadline - now, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        now = self._loop.time()
        if now >= self._deadline:
            self._expire()
        elif self._deadline < math.inf:
            self._set_timer(now)

    def _expire(self) -> None:
        unsent_bytes = self._transport.get_write_buffer_size()
        if 0 < unsent_bytes < self._unsent_bytes:  # slow, but reading
            self._unsent_bytes = unsent_bytes
            self._arm(self._config.write_timeout_s)
        elif self._is_over or unsent_bytes:
            self._transport.abort()
        elif self._task is not None:
            self._arm(self._config.header_timeout_s)  # half a request behind the current one
        elif self._phase is Phase.NOTHING:
            self._close()
        else:
            what = "head" if self._phase is Phase.HEAD else "body"
            self._refuse(Refused(408, "timeout", f"the {what} of the request took too long"))
