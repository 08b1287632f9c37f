"""One HTTP/1.1 connection: httptools parses, the app answers, in order, one request at a time.

The hot path (a whole request in one read) costs one task and one write, and sets no timer: each
connection has one deadline, looked at when its only timer happens to fire.
"""

import asyncio
import re
from collections.abc import Iterator

import httptools

from headway.errors import QueueFull
from headway.wire.application import Application
from headway.wire.headers import WireHeaders
from headway.wire.http1 import wire
from headway.wire.http1.answering import SMALL, Answering
from headway.wire.http1.lifetime import Owner
from headway.wire.http1.turns import Phase, Received, Refused, request_of
from headway.wire.limits import Limits

_STEP = 64 * 2**10  # bytes of room that are taken at once
_READ_S = 1e-4  # what a full read takes
_PIECE = 4 * 2**10  # bytes that are parsed at a time, where they are not all of one body
_IN_CHUNKS = 64  # bytes at least: chunks may be full of blank lines
_JOINED_HERE = 2**18  # bytes of a body: to copy them takes less than a task
_END_OF_HEAD = b"\r\n\r\n"
_BLANK = b"\r\n"  # before a request these mean nothing, and a read may have ten thousand
_NOTHING = memoryview(b"")
_HOST = re.compile(rb"([\w.~%-]*|\[[\da-fA-F:.%]+\])(:\d*)?")
_STOPS = (httptools.HttpParserError, httptools.HttpParserUpgrade)  # why the parser stops


class Connection(Answering):
    """The half that receives, over the one that answers."""

    __slots__ = (
        "_body_bytes",
        "_body_bytes_before",
        "_buffer",
        "_head_bytes",
        "_is_queued",
        "_is_upgrade",
        "_read_bytes",
        "_timed",
        "_unparsed",
    )

    def __init__(
        self, app: Application, config: Limits, loop: asyncio.AbstractEventLoop, owner: Owner
    ) -> None:
        super().__init__(app, config, loop, owner)
        self._is_upgrade = False  # the request asks for another protocol; it is parsed once more
        self._timed = Phase.NOTHING  # the phase that the deadline is for
        self._read_bytes = 0  # in the current read
        self._unparsed: memoryview | None = None  # of a read, until it is our turn
        self._is_queued = False  # it is not: other clients have theirs, and nothing is read
        self._buffer = owner.buffer
        self._head_bytes = 0  # of a head (or trailers) that came in several reads
        self._body_bytes = 0
        self._body_bytes_before = 0  # in the read before

    # --- the transport calls

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        data = self._buffer[:size]
        if self._is_over:
            pass  # thrown away
        elif size > SMALL and self._unparsed is None and size <= self._left_of_body():
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
        self._read_bytes = len(data)
        if len(data) <= _PIECE:
            self._parse(data)
        else:
            self._parse_some(memoryview(data))

    # --- in turns

    def _wait_turn(self) -> None:
        """Of this client. uvloop would read 32 times before the others have theirs."""
        if not self._is_queued and not self._transport.is_closing():
            self._is_queued = True
            self._transport.pause_reading()
            self._owner.turns.begin(self.client, self._turn())

    def _turn(self) -> Iterator[float]:
        """The rest of a read, until requests wait for those before them; then the next read."""
        while self._unparsed is not None and not self._is_held_up:
            self._unparsed = self._parse_piece(self._unparsed) or None
            yield 0.0
        self._is_queued = False
        if self._unparsed is None:
            self._resume_reading()
            yield _READ_S

    def _resume_reading(self) -> None:
        """Unless there is another reason not to, which ends by itself."""
        if self._is_held_up or self._is_queued or self._transport.is_closing():
            return
        if self._unparsed is not None:
            self._wait_turn()
        else:
            self._transport.resume_reading()

    @property
    def _is_held_up(self) -> bool:
        """Requests wait for the one before them, or for the client to read its answer."""
        return bool(self._waiting) or self.writable is not None

    # --- parsing

    def _parse(self, data: bytes | memoryview) -> None:
        try:
            self._parser.feed_data(data)
        except _STOPS as error:
            if not self._goes_on_after(error, data):
                return
        if self._phase is not Phase.NOTHING:
            self._watch_partial(len(data))

    def _parse_some(self, data: memoryview) -> None:
        """A head and its body at once, what else there is in turns."""
        rest = self._parse_piece(data)
        if rest and not self._is_held_up:
            rest = self._parse_piece(rest)
        if rest:
            self._unparsed = rest
            self._wait_turn()

    def _parse_piece(self, data: memoryview) -> memoryview:
        """All that belongs to a body of known length, or up to the end of a head, or a little: a
        read may be a thousand requests, or ten thousand chunks. What is left."""
        if self._is_over:
            return _NOTHING
        if self._phase is Phase.NOTHING and data[0] in _BLANK:
            data = memoryview(bytes(data).lstrip(_BLANK))  # all at once
            if not data:
                return data
        size = self._left_of_body()
        if size <= 0:
            piece = bytes(data[:_PIECE])
            end = piece.find(_END_OF_HEAD, _IN_CHUNKS if self._phase is Phase.BODY else 0)
            size = _PIECE if end < 0 else end + len(_END_OF_HEAD)
        self._parse(data[:size])
        # A server that stops takes no further request, but all of the one that has begun.
        is_between = self._is_last and self._phase is Phase.NOTHING
        return _NOTHING if self._is_over or is_between else data[size:]

    def _left_of_body(self) -> int:
        if self._phase is not Phase.BODY:
            return 0
        return int(self._headers.get(b"content-length", 0)) - self._body_bytes

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
        self._check_host(headers.get(b"host"))
        if b"transfer-encoding" in headers:
            self._check_coding(headers[b"transfer-encoding"])
        if self._timed is Phase.HEAD or self._read_bytes > self._config.max_header_bytes:
            self._check_head()
        self._check_body(int(headers.get(b"content-length", 0)))
        if b"expect" in headers:
            self._expect(headers[b"expect"])

    def _check_host(self, host: bytes | None) -> None:
        if host is None and self._parser.get_http_version() != "1.0":
            raise Refused(400, "bad_request", "the request has no Host header")
        if host and not _HOST.fullmatch(host):
            raise Refused(400, "bad_request", "the Host header is not a host")

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
        elif self._body_bytes <= _JOINED_HERE:
            body, parts = b"".join(parts), []
        if not parts and self._start_direct(body):
            return
        if not url.startswith(b"/"):
            url = self._relative(url)
        request = request_of(parser.get_method(), url, headers, body)
        keep_alive = parser.should_keep_alive()
        # Asking for the version costs a string; HTTP/1.0 stays open only where a header says so.
        is_http_10 = (
            not keep_alive or b"connection" in headers
        ) and parser.get_http_version() == "1.0"
        received = Received(request, keep_alive, is_http_10, parts)
        if self._task is None and not self._waiting:
            self._start(received)
        else:
            self._wait(received)

    # --- receiving

    def _goes_on_after(self, error: Exception, data: bytes | memoryview) -> bool:
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
            self._refuse(Refused(400, "bad_request", f"malformed HTTP: {error}"))
        elif isinstance(error.__context__, Refused):
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
            raise Refused(400, "bad_request", "the request has two Host headers")
        return self._headers[name] + b", " + value

    def _check_coding(self, coding: bytes) -> None:
        if self._parser.get_http_version() == "1.0":
            raise Refused(400, "bad_request", "HTTP/1.0 has no Transfer-Encoding")
        if coding.strip().lower() != b"chunked":
            text = coding.decode("latin-1")
            raise Refused(
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
            raise Refused(417, "bad_request", "the only expectation we meet is 100-continue")
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
            raise Refused(400, "bad_request", "the URL is not valid") from error
        path = parsed.path or b"/"
        return path + b"?" + parsed.query if parsed.query else path

    def _check_body(self, length: int) -> None:
        """A long one is refused before any of it has come."""
        if length > SMALL or b"transfer-encoding" in self._headers:
            rejection = self._app.reject_head(WireHeaders(self._headers))
            if rejection is not None:
                raise Refused(*rejection)
        if length > self._allowed_bytes:
            self._check_length(length)

    def _check_length(self, length: int) -> None:
        if length > self._config.max_body_bytes:
            raise self._too_large()
        try:
            self._owner.room.check(length - self._uncounted_bytes)
        except QueueFull as error:
            raise Refused(503, error.code, str(error)) from error

    def _take_room(self) -> None:
        limit = self._config.max_body_bytes
        if self._body_bytes > limit:
            raise self._too_large()
        allowed = min(limit, self._body_bytes + _STEP)
        try:
            self._owner.room.take(allowed - self._allowed_bytes)
        except QueueFull as error:
            raise Refused(503, error.code, str(error)) from error
        self._taken_bytes += allowed - self._allowed_bytes
        self._allowed_bytes = allowed

    def _too_large(self) -> Refused:
        limit = self._config.max_body_bytes
        return Refused(413, "input_too_large", f"the body is larger than {limit} bytes")

    def _head_too_large(self) -> Refused:
        limit = self._config.max_header_bytes
        return Refused(431, "head_too_large", f"the head is larger than {limit} bytes")
