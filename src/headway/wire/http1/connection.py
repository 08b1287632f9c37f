"""One HTTP/1.1 connection: its parser reads, its exchange answers, in order, one request at a time.

The hot path (a whole request in one read) costs one task and one write, and sets no timer.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from headway.errors import Closed
from headway.wire.application import HttpApplication
from headway.wire.connections import client_of
from headway.wire.headers import WireHeaders
from headway.wire.http1 import half_close, wire
from headway.wire.http1.deadline import Deadline
from headway.wire.http1.exchange import SMALL, Exchange
from headway.wire.http1.known_heads import Head
from headway.wire.http1.parser import RequestParser
from headway.wire.http1.received import Phase, Received, RequestRefused, Turn
from headway.wire.limits import ConnectionLimits

if TYPE_CHECKING:
    from headway.wire.http1.server import HttpServer

LINGER_S = 2.0  # how long a refused client is listened to, so that it can read why
_AT_ONCE = 4 * 2**10  # bytes of a read
_NOTHING = memoryview(b"")


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        *("_app", "_buffer", "_config", "_deadline", "_exchange", "_has_ended", "_is_over"),
        *("_is_queued", "_loop", "_owes_continue", "_owner", "_parser", "_read", "_unparsed"),
        *("_unsent_bytes", "_waiting", "client", "is_last", "transport", "writes"),
    )

    def __init__(
        self,
        app: HttpApplication,
        config: ConnectionLimits,
        loop: asyncio.AbstractEventLoop,
        owner: "HttpServer",
    ) -> None:
        self._app = app
        self._config = config
        self._loop = loop
        self._owner = owner
        self._buffer = owner.buffer
        self.writes = owner.writes
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # until connected
        self.client = ""  # its address; until connected
        self._parser = RequestParser(self, config, owner.room)
        self._exchange = Exchange(app, loop, self)
        self._deadline = Deadline(loop, self._expire)

        self._waiting: deque[Turn] = deque()  # pipelined after the current request
        self.is_last = False  # no request after the current one
        self._is_over = False  # received data is thrown away
        self._has_ended = False  # the client sends no more, but reads
        self._owes_continue = False
        self._unsent_bytes = 0  # when we last looked
        self._read = b""  # all of a short read, while it is parsed
        self._unparsed: memoryview | None = None  # of a read, until it is our turn
        self._is_queued = False  # for its turn; until then nothing is read

    @property
    def is_idle(self) -> bool:
        return self._is_between and self._parser.phase is Phase.NOTHING

    @property
    def _is_between(self) -> bool:
        """Whether no request is being answered, or waits for that."""
        return self._exchange.task is None and not self._waiting

    # --- the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self._exchange.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        address = peer[0] if peer else ""
        self.client = client_of(address)
        full = self._owner.opened(self, address)
        if full is None:
            self._deadline.set(self._config.header_timeout_s)
            return
        self._is_over = True
        if full:
            self._refuse(RequestRefused(503, "too_many_connections", full))
        else:
            self.transport.abort()

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        data = self._buffer[:size]
        if self._is_over:
            pass  # thrown away
        elif size > SMALL and self._unparsed is None and size <= self._parser.left_of_body():
            self._parse(data)  # which copies it
        else:
            self.data_received(data.tobytes())
        if size == len(self._buffer):  # there may be much more
            self._wait_turn()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._unparsed is not None:  # a transport that is paused may have some left
            self._unparsed = memoryview(bytes(self._unparsed) + data)
            return
        is_idle = self.is_idle
        if is_idle and self._starts_again(data):
            return
        self._parser.begin_read(len(data))
        if len(data) <= _AT_ONCE:
            self._read = data if is_idle else b""
            self._parse(data)
            self._read = b""
        else:
            self._parse_some(memoryview(data))

    def eof_received(self) -> bool:
        """True: the transport stays open, for a client that sends no more but reads answers."""
        is_tls = self.transport.get_extra_info("sslcontext") is not None
        if self._is_over or self._is_between or is_tls:
            return False
        if not self._has_ended:
            self._has_ended = True
            return self._is_read(half_close.CHECKS_S)
        return True

    def pause_writing(self) -> None:
        self._exchange.pause()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._deadline.set(self._config.write_timeout_s)

    def resume_writing(self) -> None:
        self._exchange.resume()
        if self._exchange.task is not None:
            self._deadline.clear()
            self._resume_reading()
        elif self._waiting or not self._is_over:  # a refusal may wait for the last answer's end
            self._go_on()
            self._resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._waiting.clear()
        self._deadline.close()
        task = self._exchange.task
        self._exchange.close()
        self._give_back()
        self._owner.closed(self, task if isinstance(task, asyncio.Task) else None)
        self._parser.close()

    # --- reading, in turns

    def _wait_turn(self) -> None:
        """Take turns: uvloop alone would read 32 times before it reads other connections."""
        if not self._is_queued and not self.transport.is_closing():
            self._is_queued = True
            self.transport.pause_reading()
            self._owner.turns.wait(self._read_on)

    def _read_on(self) -> None:
        """Parse a piece of the data that was read, or read on."""
        self._is_queued = False
        if self._unparsed is not None and not self._is_held_up:
            self._unparsed = self._parse_piece(self._unparsed) or None
        self._resume_reading()

    def _resume_reading(self) -> None:
        """Resume reading unless there is another reason to pause, which then ends by itself."""
        if self._is_held_up or self._is_queued or self.transport.is_closing():
            return
        if self._unparsed is not None:
            self._wait_turn()
        else:
            self.transport.resume_reading()

    @property
    def _is_held_up(self) -> bool:
        """Whether requests wait for the one before them, or for the client to read its answer."""
        return bool(self._waiting) or self._exchange.writable is not None

    def _parse_some(self, data: memoryview) -> None:
        """Parse a head and its body at once, and all further data in turns."""
        rest = self._parse_piece(data)
        if rest and not self._is_held_up:
            rest = self._parse_piece(rest)
        if rest:
            self._unparsed = rest
            self._wait_turn()

    def _parse_piece(self, data: memoryview) -> memoryview:
        """Parse one piece. Returns the data that is left."""
        if self._is_over:
            return _NOTHING
        piece, rest = self._parser.first_piece(data)
        if piece:
            self._parse(piece)
        # A server that stops takes no further request, but all of the one that has begun.
        is_between = self.is_last and self._parser.phase is Phase.NOTHING
        return _NOTHING if self._is_over or is_between else rest

    def _parse(self, data: bytes | memoryview) -> None:
        parser = self._parser
        try:
            is_http = parser.feed(data)
        except RequestRefused as refusal:
            refusal.__traceback__ = refusal.__context__ = refusal.__cause__ = None  # frames
            self._refuse(refusal)
            return
        if not is_http:
            self.is_last = True
        elif parser.begins_to_wait:
            config = self._config
            is_head = parser.partial is Phase.HEAD
            self._deadline.set(config.header_timeout_s if is_head else config.body_timeout_s)

    def _starts_again(self, data: bytes) -> bool:
        """Start a whole request with a head that was parsed before. False: it is to be parsed."""
        found = self._owner.known_heads.find(data, self._config.max_body_bytes)
        if found is None or self.is_last or not self._exchange.start_direct(*found):
            return False
        self._deadline.clear()
        return True

    # --- the parser calls

    def check_head(self, headers: WireHeaders) -> None:
        rejection = self._app.reject_head(headers)
        if rejection is not None:
            raise RequestRefused(*rejection)

    def on_expect(self) -> None:
        if self._is_between:
            self.transport.write(wire.CONTINUE)
        else:
            self._owes_continue = True  # to be sent after the answers before it

    def on_request(self, body: bytes, parts: Sequence[bytes]) -> None:
        self._owes_continue = False
        if not parts and self._start_direct(body):
            return
        received = self._parser.received(body, parts)
        if self._is_between:
            self._start(received)
        else:
            self._wait(received)

    def _start(self, received: Received) -> None:
        self._deadline.clear()
        self._exchange.start(received)

    def _start_direct(self, body: bytes) -> bool:
        """The hot path: a whole answer without a task."""
        parser = self._parser
        if not self._is_between or not parser.is_plain_post:
            return False
        start = self._app.direct(parser.url, parser.headers)
        if start is None:
            return False
        head = Head(parser.url, parser.headers, len(body), start)
        if not self._exchange.start_direct(head, body):
            return False
        self._deadline.clear()
        if self._read:
            self._owner.known_heads.keep(self._read, head)
        return True

    # --- the exchange calls

    def on_answered(self, *, keep_alive: bool) -> None:
        """Go on with the next request, or wait for one."""
        if self._parser.holds_room:
            self._give_back()
        if self.transport.is_closing():
            return
        if self.is_last or not keep_alive or (self._has_ended and not self._waiting):
            self._close()
        elif self._exchange.writable is None:
            self._go_on()
        else:
            self.transport.pause_reading()  # nothing more for it until it reads what it has

    def _go_on(self) -> None:
        if self._waiting:
            self._take_turn()
        else:
            self._deadline.set(self._config.keep_alive_s)
            if self._owes_continue:
                self._owes_continue = False
                self.transport.write(wire.CONTINUE)

    def _take_turn(self) -> None:
        turn = self._waiting.popleft()
        if isinstance(turn, RequestRefused):
            self._send_refusal(turn)
        else:
            self._start(turn)
        if not self._waiting:
            self._resume_reading()

    def _wait(self, turn: Turn) -> None:
        self._waiting.append(turn)
        self.transport.pause_reading()  # one read may hold many; there is no second

    def _give_back(self) -> None:
        """The room of what is no longer held."""
        waiting = [turn.body_bytes for turn in self._waiting if isinstance(turn, Received)]
        self._parser.give_back(waiting, is_over=self._is_over)

    # --- a client that has ended its sending

    def _is_read(self, checks_s: tuple[float, ...]) -> bool:
        is_http_10 = self._parser.http.get_http_version() == "1.0"
        if self.transport.get_write_buffer_size():
            peer = half_close.peer_of(self.transport)
        elif (interim := self._exchange.interim(is_http_10=is_http_10)) is not None:
            peer = half_close.send_interim(self.transport, interim)
        else:
            return not self._exchange.is_answering
        if peer is half_close.Peer.UNKNOWN and checks_s:
            self._loop.call_later(checks_s[0], self._check_read, checks_s[1:])
        return peer is not half_close.Peer.LEFT

    def _check_read(self, checks_s: tuple[float, ...]) -> None:
        if self.transport.is_closing() or self._exchange.task is None:
            return
        peer = half_close.peer_of(self.transport)
        if peer is half_close.Peer.LEFT:
            self.transport.abort()
        elif peer is half_close.Peer.UNKNOWN and checks_s:
            self._loop.call_later(checks_s[0], self._check_read, checks_s[1:])

    # --- ending

    def finish(self) -> None:
        """Take no request after those that have begun."""
        self.is_last = True
        if self.is_idle and not self._is_over:
            self._close()

    def cut(self) -> None:
        """Time is up: an unanswered request is refused, an answer ends in the middle, a stream of
        events with its error."""
        exchange, transport = self._exchange, self.transport
        task = exchange.task
        if exchange.is_stream_of_events and not transport.is_closing():
            self._is_over = True
            error = Closed("the server is stopping")
            self._app.note_error(error.code)
            exchange.end_stream(error)
            self._close()
        elif task is None or exchange.is_answering or transport.is_closing():
            transport.abort()
            return
        else:
            self._is_over = True
            refusal = RequestRefused(503, "closed", "the server is stopping")
            transport.write(self._encode_refusal(refusal))
            transport.close()
        if task is not None:
            task.cancel()

    def _refuse(self, refusal: RequestRefused) -> None:
        """The last answer of this connection, after those that come before it."""
        self._is_over = True
        self._parser.forget_body()
        if self._is_between:
            self._give_back()
            self._send_refusal(refusal)
        else:
            self._wait(refusal)

    def _send_refusal(self, refusal: RequestRefused) -> None:
        self.transport.write(self._encode_refusal(refusal))
        if self.transport.can_write_eof():
            # Closing on unread bytes makes the kernel reset the connection, and the client would
            # never see the answer: stay a while, and throw away received data.
            self.transport.write_eof()
            self._deadline.set(LINGER_S)
        else:
            self._close()

    def _encode_refusal(self, refusal: RequestRefused) -> bytes:
        return self._exchange.encode_refusal(refusal, self._parser.url, self._parser.headers)

    def _close(self) -> None:
        self._is_over = True
        self._waiting.clear()
        self.transport.close()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        if self._unsent_bytes:
            self._deadline.set(self._config.write_timeout_s)

    def _expire(self) -> None:
        unsent_bytes = self.transport.get_write_buffer_size()
        if 0 < unsent_bytes < self._unsent_bytes:  # slow, but reading
            self._unsent_bytes = unsent_bytes
            self._deadline.set(self._config.write_timeout_s)
        elif self._is_over or unsent_bytes:
            self.transport.abort()
        elif self._exchange.task is not None:
            self._deadline.set(self._config.header_timeout_s)  # part of the next request is here
        elif self._parser.phase is Phase.NOTHING:
            self._close()
        else:
            what = "head" if self._parser.phase is Phase.HEAD else "body"
            self._refuse(RequestRefused(408, "timeout", f"the {what} of the request took too long"))
