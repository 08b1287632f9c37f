"""One HTTP/1.1 connection: httptools parses, the app answers, in order, one request at a time.

The hot path (a whole request in one read) costs one task and one write, and sets no timer: each
connection has one deadline, looked at when its only timer happens to fire.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias, cast

import httptools

from headway.config import ServerConfig
from headway.errors import HeadwayError, QueueFull
from headway.server.app import WISHES, App, Pending, refuse
from headway.server.errors import headers_of, status_of
from headway.server.net.background import joined
from headway.server.net.compression import compress_answer, is_worth_it
from headway.server.net.headers import WireHeaders, has_wishes, request_id
from headway.server.net.holding import UNCOUNTED_BYTES, BodyRoom
from headway.server.net.http1 import half_close, wire
from headway.server.net.messages import Headers, Request, Response, StreamResponse

logger = logging.getLogger(__name__)

LINGER_S = 2.0  # how long a refused client is listened to, so that it can read why
_SMALL = 32 * 2**10  # bytes; up to here a copy is cheaper than a second write
_STEP = 64 * 2**10  # bytes of room that are taken at once
_STOPS = (httptools.HttpParserError, httptools.HttpParserUpgrade)  # why the parser stops


class Owner(Protocol):
    """The server that holds the connections."""

    room: BodyRoom

    def opened(self, connection: "Connection", address: str) -> str | None:
        """Why there is no room for it; None: there is; "": not even for an answer."""
        ...

    def closed(self, connection: "Connection", task: asyncio.Task[None] | None) -> None:
        """It is gone. `task` has been cancelled and may still be cleaning up."""
        ...


class Phase(Enum):
    """What the client is sending."""

    NOTHING = 0
    HEAD = 1
    BODY = 2


class _Refused(Exception):
    """Raised in the parser's callbacks to stop it."""

    def __init__(self, status: int, code: str, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = (("Retry-After", "1"),) if status == 503 else headers


class _Received(NamedTuple):
    request: Request
    keep_alive: bool
    is_http_10: bool
    parts: Sequence[bytes] = ()  # of its body, where that is still to be joined

    @property
    def body_bytes(self) -> int:
        return len(self.request.body) + sum(map(len, self.parts))


_Turn: TypeAlias = _Received | _Refused


def _request(method: bytes, url: bytes, headers: dict[bytes, bytes], body: bytes) -> Request:
    path, _, query = url.decode("latin-1").partition("?")
    sent_id = request_id(headers.get(b"x-request-id"))
    return Request(method.decode("ascii"), path, query, WireHeaders(headers), body, sent_id)


class _Sink:
    """A stream's way to its client, without a task."""

    __slots__ = ("_connection", "_is_chunked", "_transport")

    def __init__(
        self, connection: "Connection", transport: asyncio.Transport, *, is_chunked: bool
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._is_chunked = is_chunked

    @property
    def writable(self) -> "asyncio.Future[None] | None":
        return self._connection.writable

    async def wait_writable(self) -> None:
        if self._connection.writable is not None:
            await self._connection.writable

    def write(self, data: bytes) -> None:
        self._transport.write(wire.encode_chunk(data) if self._is_chunked else data)


class Connection(asyncio.Protocol):
    # More attributes than CPython keeps fast without being told their names.
    __slots__ = (
        "_allowed_bytes",
        "_app",
        "_asked",
        "_body",
        "_body_bytes",
        "_body_bytes_before",
        "_comment",
        "_config",
        "_deadline",
        "_handle",
        "_has_ended",
        "_head_bytes",
        "_headers",
        "_is_answering",
        "_is_last",
        "_is_over",
        "_is_upgrade",
        "_loop",
        "_owes_continue",
        "_owner",
        "_parser",
        "_phase",
        "_read_bytes",
        "_taken_bytes",
        "_task",
        "_timed",
        "_timer",
        "_timer_at",
        "_transport",
        "_uncounted_bytes",
        "_unsent_bytes",
        "_url",
        "_waiting",
        "writable",
    )

    def __init__(
        self, app: App, config: ServerConfig, loop: asyncio.AbstractEventLoop, owner: Owner
    ) -> None:
        self._app = app
        self._handle = app.handle
        self._config = config
        self._loop = loop
        self._owner = owner
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # until connected
        self._parser = httptools.HttpRequestParser(self)

        self._task: asyncio.Task[None] | Pending | None = None  # answers the current request
        self._asked: tuple[bytes, dict[bytes, bytes]] = (b"", {})  # its URL and headers, if direct
        self._waiting: deque[_Turn] = deque()  # pipelined behind it
        self._is_answering = False  # the current answer's head is on the wire
        self._is_last = False  # no request after the current one
        self._is_over = False  # what still comes in is thrown away
        self._has_ended = False  # the client sends no more, but reads
        self._comment: bytes | None = None  # may be sent at any time while a stream is answered
        self._is_upgrade = False  # the request asks for another protocol; it is parsed once more
        self.writable: asyncio.Future[None] | None = None  # the client reads too slowly
        self._unsent_bytes = 0  # when we last looked
        self._owes_continue = False

        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._timed = Phase.NOTHING  # the phase that the deadline is for

        self._phase = Phase.NOTHING
        self._read_bytes = 0  # in the current read
        self._head_bytes = 0  # of a head (or trailers) that came in several reads
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._body_bytes_before = 0  # in the read before
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
        full = self._owner.opened(self, peer[0] if peer else "")
        if full is None:
            self._arm(self._config.header_timeout_s)
        elif full:
            self._refuse(_Refused(503, "too_many_connections", full))
        else:
            self._is_over = True
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._read_bytes = len(data)
        try:
            self._parser.feed_data(data)
        except _STOPS as error:
            if not self._goes_on_after(error, data):
                return
        if self._phase is not Phase.NOTHING:
            self._watch_partial(len(data))

    def eof_received(self) -> bool:
        """True: the transport stays open, for who has ended its requests but reads the answers."""
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

    def pause_writing(self) -> None:
        self.writable = self._loop.create_future()
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._arm(self._config.write_timeout_s)

    def resume_writing(self) -> None:
        if self.writable is not None and not self.writable.done():
            self.writable.set_result(None)
        self.writable = None
        if self._task is not None:
            self._deadline = math.inf
        elif not self._is_over:
            self._transport.resume_reading()
            self._go_on()

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

    # --- the parser calls

    def on_message_begin(self) -> None:
        self._phase = Phase.HEAD
        self._url = b""
        self._headers = {}
        self._body = []
        self._body_bytes = 0
        self._allowed_bytes = self._uncounted_bytes

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is not Phase.HEAD:
            return  # a trailer must not pass for a header
        name = name.lower()
        headers = self._headers
        headers[name] = value if name not in headers else self._joined(name, value)

    def on_headers_complete(self) -> None:
        self._phase = Phase.BODY
        headers = self._headers
        if b"upgrade" in headers and self._asks_for_upgrade():
            self._is_upgrade = True
            return
        if b"host" not in headers and self._parser.get_http_version() != "1.0":
            raise _Refused(400, "bad_request", "the request has no Host header")
        if b"transfer-encoding" in headers:
            self._check_coding(headers[b"transfer-encoding"])
        if self._timed is Phase.HEAD or self._read_bytes > self._config.max_header_bytes:
            self._check_head()
        length = headers.get(b"content-length")
        if length is not None and int(length) > self._allowed_bytes:
            self._check_length(int(length))
        if b"expect" in headers:
            self._expect(headers[b"expect"])

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > self._allowed_bytes:
            self._take_room()
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        self._phase = self._timed = Phase.NOTHING
        self._owes_continue = False
        parser, url, headers = self._parser, self._url, self._headers
        parts, self._body = self._body, []
        body = b""
        if len(parts) == 1:
            body, parts = parts[0], []
        elif self._body_bytes <= _SMALL:
            body, parts = b"".join(parts), []
        if not parts and self._start_direct(body):
            return
        if not url.startswith(b"/"):
            url = self._relative(url)
        request = _request(parser.get_method(), url, headers, body)
        keep_alive = parser.should_keep_alive()
        # Asking for the version costs a string; HTTP/1.0 stays open only where a header says so.
        is_http_10 = (
            not keep_alive or b"connection" in headers
        ) and parser.get_http_version() == "1.0"
        received = _Received(request, keep_alive, is_http_10, parts)
        if self._task is None and not self._waiting:
            self._start(received)
        else:
            self._wait(received)

    # --- receiving

    def _goes_on_after(self, error: Exception, data: bytes) -> bool:
        """The parser has stopped: was that only for a protocol that we do not change to?"""
        rest = memoryview(data)
        while isinstance(error, httptools.HttpParserUpgrade):
            if not self._is_upgrade:  # CONNECT: what follows is not HTTP
                self._is_last = True
                return False
            rest = rest[error.args[0] :]
            try:
                self._parse_without_upgrade(rest)
            except _STOPS as next_error:
                error = next_error
            else:
                return True
        if not isinstance(error, httptools.HttpParserCallbackError):
            self._refuse(_Refused(400, "bad_request", f"malformed HTTP: {error}"))
        elif isinstance(error.__context__, _Refused):
            self._refuse(error.__context__)
        else:
            raise error
        return False

    def _parse_without_upgrade(self, rest: memoryview) -> None:
        """The parser stops behind such a head and leaves the body out. RFC 9110 lets a server
        answer as if nothing had been asked for: so that is parsed."""
        self._is_upgrade = False
        parser = self._parser
        head = wire.head_without_upgrade(
            parser.get_method(), self._url, parser.get_http_version(), self._headers
        )
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(head)
        self._parser.feed_data(rest)

    def _asks_for_upgrade(self) -> bool:
        return bool(self._parser.should_upgrade()) and self._parser.get_method() != b"CONNECT"

    def _joined(self, name: bytes, value: bytes) -> bytes:
        if name == b"host":
            raise _Refused(400, "bad_request", "the request has two Host headers")
        return self._headers[name] + b", " + value

    def _check_coding(self, coding: bytes) -> None:
        if coding.strip().lower() != b"chunked":
            text = coding.decode("latin-1")
            raise _Refused(
                501, "not_implemented", f"Transfer-Encoding {text!r}: only 'chunked' is read"
            )

    def _check_head(self) -> None:
        size = len(self._url) + sum(len(n) + len(v) + 4 for n, v in self._headers.items())
        if size > self._config.max_header_bytes:
            raise self._head_too_large()

    def _watch_partial(self, size: int) -> None:
        """A request that did not fit in one read: from here on there is a clock and a scale."""
        config = self._config
        if self._timed is not self._phase:
            self._timed = self._phase
            self._head_bytes = 0
            is_head = self._phase is Phase.HEAD
            self._arm(config.header_timeout_s if is_head else config.body_timeout_s)
        elif self._body_bytes == self._body_bytes_before:  # a head, or trailers
            self._head_bytes += size
            if self._head_bytes > config.max_header_bytes:
                self._refuse(self._head_too_large())
        self._body_bytes_before = self._body_bytes

    def _expect(self, what: bytes) -> None:
        if what.lower() != b"100-continue":
            raise _Refused(417, "bad_request", "the only expectation we meet is 100-continue")
        if self._parser.get_http_version() == "1.0":
            return
        if self._task is None and not self._waiting:
            self._transport.write(wire.CONTINUE)
        else:
            self._owes_continue = True  # after the answers that come before it

    def _relative(self, url: bytes) -> bytes:
        """`http://host/path`, as proxies send it, or `*`."""
        if url == b"*":
            return url
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError as error:
            raise _Refused(400, "bad_request", "the URL is not valid") from error
        path = parsed.path or b"/"
        return path + b"?" + parsed.query if parsed.query else path

    def _check_length(self, length: int) -> None:
        """Of a long body, before any of it has come."""
        if length > self._config.max_body_bytes:
            raise self._too_large()
        try:
            self._owner.room.check(length - self._uncounted_bytes)
        except QueueFull as error:
            raise _Refused(503, error.code, str(error)) from error

    def _take_room(self) -> None:
        limit = self._config.max_body_bytes
        if self._body_bytes > limit:
            raise self._too_large()
        allowed = min(limit, self._body_bytes + _STEP)
        try:
            self._owner.room.take(allowed - self._allowed_bytes)
        except QueueFull as error:
            raise _Refused(503, error.code, str(error)) from error
        self._taken_bytes += allowed - self._allowed_bytes
        self._allowed_bytes = allowed

    def _give_back(self) -> None:
        """All but what those who wait have, and what is coming in."""
        bodies = [turn.body_bytes for turn in self._waiting if isinstance(turn, _Received)]
        kept = sum(max(0, size - self._uncounted_bytes) for size in bodies)
        if self._phase is Phase.BODY and not self._is_over:
            kept += self._allowed_bytes - self._uncounted_bytes
        self._owner.room.give_back(self._taken_bytes - kept)
        self._taken_bytes = kept

    def _too_large(self) -> _Refused:
        limit = self._config.max_body_bytes
        return _Refused(413, "input_too_large", f"the body is larger than {limit} bytes")

    def _head_too_large(self) -> _Refused:
        limit = self._config.max_header_bytes
        return _Refused(431, "head_too_large", f"the head is larger than {limit} bytes")

    def _wait(self, turn: _Turn) -> None:
        self._waiting.append(turn)
        self._transport.pause_reading()  # one read may hold many; there is no second

    # --- answering

    def _start(self, received: _Received) -> None:
        self._deadline = math.inf
        self._is_answering = False
        self._task = self._loop.create_task(self._answer(received))

    # The hot path: a whole answer without a task. The app calls `answer` or `fail`, once.

    def _start_direct(self, body: bytes) -> bool:
        parser, headers = self._parser, self._headers
        if (
            self._task is not None
            or self._waiting
            or not WISHES.isdisjoint(headers)
            or has_wishes(headers)
            or parser.get_method() != b"POST"
            or not parser.should_keep_alive()
            or (b"connection" in headers and parser.get_http_version() != "1.1")
        ):
            return False
        self._task = self._app.start_direct(self._url, body, self, headers)
        if self._task is None:
            return False
        self._deadline = math.inf
        self._is_answering = False
        self._asked = (self._url, headers)
        return True

    def answer(self, body: bytes) -> None:
        headers = self._asked[1]
        if b"accept-encoding" in headers and is_worth_it(body):
            self._task = self._loop.create_task(self._answer_packed(body))
            return
        self._is_answering = True
        line = wire.CLOSE if self._is_last else b""
        head = wire.encode_ok(body, request_id(headers.get(b"x-request-id")), line)
        if len(body) <= _SMALL:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        self._next(keep_alive=True)

    def fail(self, error: BaseException) -> None:
        try:
            received = self._received_direct()
            self._send(received, self._app.answer_error(received.request, error))
        except Exception:
            logger.exception("an error could not be told")
            self._transport.abort()  # nobody may wait for an answer that never comes
            return
        self._next(keep_alive=True)

    async def _answer_packed(self, body: bytes) -> None:
        received, response = self._received_direct(), Response(body)
        try:
            await compress_answer(received.request, response)
            if not self._transport.is_closing():
                self._send(received, response)
        except Exception:
            logger.exception("an answer could not be packed")
            self._transport.abort()
            return
        self._next(keep_alive=True)

    def _received_direct(self) -> _Received:
        url, headers = self._asked
        return _Received(_request(b"POST", url, headers, b""), True, False)

    # Every other request has a task of its own.

    async def _answer(self, received: _Received) -> None:
        is_answered = False
        try:
            if received.parts:
                received.request.body = await joined(received.parts)
                received = received._replace(parts=())
            answer = await self._handle(received.request)
            if isinstance(answer, StreamResponse):
                await self._send_stream(received, answer)
            elif not self._transport.is_closing():
                self._send(received, answer)
            is_answered = True
        finally:
            if not is_answered and not self._transport.is_closing():
                self._transport.abort()  # cut short: nobody may take it for an answer
        self._next(keep_alive=received.keep_alive)

    def _send(self, received: _Received, response: Response) -> None:
        self._is_answering = True
        request, body = received.request, response.body
        head = wire.encode_head(response, request.id, self._connection_line(received))
        if request.method == "HEAD" or not body:
            self._transport.write(head)
        elif len(body) <= _SMALL:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    async def _send_stream(self, received: _Received, response: StreamResponse) -> None:
        """The head leaves with the first chunk: what fails before it still is a proper error."""
        chunks = response.chunks
        try:
            first = await anext(chunks, None)
            await self._send_chunks(received, response, first)
        except Exception as error:
            # The stream is the model's code.
            if self._is_answering:
                logger.exception("a stream broke off", extra={"id": received.request.id})
                self._transport.abort()
            else:
                self._send(received, self._app.answer_error(received.request, error))
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    async def _send_chunks(
        self, received: _Received, response: StreamResponse, chunk: bytes | None
    ) -> None:
        self._is_answering = True
        is_chunked = not received.is_http_10
        if not is_chunked:
            self._is_last = True  # its end is the connection's
        line = self._connection_line(received)
        head = wire.encode_stream_head(response, received.request.id, line, is_chunked=is_chunked)
        if received.request.method == "HEAD":
            self._transport.write(head)
            return
        is_events = response.content_type.startswith("text/event-stream")
        comment = wire.encode_comment(is_chunked=is_chunked) if is_events else None
        if chunk is not None and (pump := getattr(response.chunks, "pump", None)) is not None:
            self._transport.write(head + (wire.encode_chunk(chunk) if is_chunked else chunk))
            head, chunk = b"", None
            await pump(_Sink(self, self._transport, is_chunked=is_chunked))
        while chunk is not None:
            if chunk:  # an empty one would end the stream
                self._transport.write(head + (wire.encode_chunk(chunk) if is_chunked else chunk))
                head = b""
                self._comment = comment
            if self.writable is not None:
                await self.writable
            chunk = await anext(response.chunks, None)
        self._comment = None
        self._transport.write(head + (wire.LAST_CHUNK if is_chunked else b""))

    def _connection_line(self, received: _Received) -> bytes:
        if self._is_last or not received.keep_alive:
            return wire.CLOSE
        return wire.KEEP_ALIVE if received.is_http_10 else b""

    def _next(self, *, keep_alive: bool) -> None:
        """The current request is answered: on with the next, or wait for one."""
        self._task = None
        if self._taken_bytes:
            self._give_back()
        if self._transport.is_closing():
            return
        if self._is_last or not keep_alive or (self._has_ended and not self._waiting):
            self._close()
        elif self.writable is None:
            self._go_on()
        else:
            self._transport.pause_reading()  # nothing more for it until it reads what it has

    def _go_on(self) -> None:
        if self._waiting:
            self._take_turn()
        else:
            self._arm(self._config.keep_alive_s)
            if self._owes_continue:
                self._owes_continue = False
                self._transport.write(wire.CONTINUE)

    def _take_turn(self) -> None:
        turn = self._waiting.popleft()
        if isinstance(turn, _Refused):
            self._send_refusal(turn)
        else:
            self._start(turn)
        if not self._waiting:
            self._transport.resume_reading()

    # --- ending

    def finish(self) -> None:
        """Take no request after those that have begun."""
        self._is_last = True
        if self.is_idle and not self._is_over:
            self._close()

    def cut(self) -> None:
        """Time is up: an unanswered request is refused, a stream ends in the middle."""
        if self._task is None or self._is_answering or self._transport.is_closing():
            self._transport.abort()
            return
        self._is_over = True
        self._task.cancel()
        refusal = _Refused(503, "closed", "the server is stopping")
        self._transport.write(self._encode_refusal(refusal))
        self._transport.close()

    def _refuse(self, refusal: _Refused) -> None:
        """The last answer of this connection, after those that come before it."""
        self._is_over = True
        self._body = []
        if self._task is None and not self._waiting:
            self._give_back()
            self._send_refusal(refusal)
        else:
            self._wait(refusal)

    def _send_refusal(self, refusal: _Refused) -> None:
        self._transport.write(self._encode_refusal(refusal))
        if self._transport.can_write_eof():
            # Closing on unread bytes makes the kernel reset the connection, and the client would
            # never see the answer: stay a while and throw away what comes.
            self._transport.write_eof()
            self._arm(LINGER_S)
        else:
            self._close()

    def _encode_refusal(self, refusal: _Refused) -> bytes:
        self._app.errors.count(refusal.code)
        path = self._url.decode("latin-1")
        response = refuse(
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
            self._refuse(_Refused(408, "timeout", f"the {what} of the request took too long"))


Admit: TypeAlias = Callable[[Mapping[str, str]], HeadwayError | None]  # by headers: why not


class GuardedConnection(Connection):
    """Where there are keys: who has none is told before its body is read, if that is long."""

    __slots__ = ("_admit",)

    def __init__(
        self,
        app: App,
        config: ServerConfig,
        loop: asyncio.AbstractEventLoop,
        owner: Owner,
        admit: Admit,
    ) -> None:
        super().__init__(app, config, loop, owner)
        self._admit = admit

    def on_headers_complete(self) -> None:
        headers = self._headers
        length = headers.get(b"content-length")
        if b"transfer-encoding" in headers or (length is not None and int(length) > _SMALL):
            error = self._admit(WireHeaders(headers))
            if error is not None:
                status = status_of(error).http
                raise _Refused(status, error.code, str(error), headers_of(error))
        super().on_headers_complete()
