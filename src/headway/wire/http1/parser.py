"""Parses bytes into requests with httptools, within the limits for a head and a body. It knows no
transport and no clock: requests are handed to a listener, mistakes are raised."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import httptools

from headway.errors import QueueFull
from headway.wire.body_room import UNCOUNTED_BYTES, BodyRoom
from headway.wire.headers import WireHeaders
from headway.wire.http1 import wire
from headway.wire.http1.received import Phase, Received, RequestRefused, request_of
from headway.wire.limits import ConnectionLimits

if TYPE_CHECKING:
    from headway.wire.http1.connection import Connection

_STEP = 64 * 2**10  # bytes of room that are taken at once
_PIECE = 4 * 2**10  # bytes that are parsed at a time, where they are not all of one body
_IN_CHUNKS = 64  # bytes at least: chunks may be full of blank lines
_JOINED_HERE = 2**18  # bytes of a body: to copy them takes less than a task
_LONG = 32 * 2**10  # bytes of a body: its head is checked before it is read
_HOST = re.compile(rb"([\w.~%-]*|\[[\da-fA-F:.%]+\])(:\d*)?")
_END_OF_HEAD = b"\r\n\r\n"
_BLANK = b"\r\n"  # before a request these mean nothing, and a read may have ten thousand
_STOPS = (httptools.HttpParserError, httptools.HttpParserUpgrade)  # why the parser stops


class RequestParser:
    __slots__ = (
        *("_allowed_bytes", "_body", "_body_bytes", "_body_bytes_before", "_config", "_head_bytes"),
        *("_is_upgrade", "_listener", "_read_bytes", "_room", "_taken_bytes", "_uncounted_bytes"),
        *("begins_to_wait", "headers", "http", "partial", "phase", "url"),
    )

    def __init__(self, listener: "Connection", config: ConnectionLimits, room: BodyRoom) -> None:
        self._listener = listener
        self._config = config
        self._room = room
        self.http = httptools.HttpRequestParser(self)
        self.phase = Phase.NOTHING
        self.partial = Phase.NOTHING  # the part being read, if one read was not enough
        self.begins_to_wait = False  # such a phase has begun with the last read
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._body_bytes_before = 0  # in the read before
        self._head_bytes = 0  # of a head (or trailers) that came in several reads
        self._read_bytes = 0  # in the current read
        self._is_upgrade = False  # the request asks for another protocol; it is parsed once more
        self._uncounted_bytes = min(UNCOUNTED_BYTES, config.max_body_bytes)
        self._allowed_bytes = self._uncounted_bytes  # of this body; for more, ask
        self._taken_bytes = 0  # of the room that all share

    # --- the connection calls

    def begin_read(self, size: int) -> None:
        self._read_bytes = size

    def feed(self, data: bytes | memoryview) -> bool:
        """Parse data. False: what follows is not HTTP. Raises RequestRefused."""
        self.begins_to_wait = False
        try:
            self.http.feed_data(data)
        except _STOPS as error:
            if not self._goes_on_after(error, data):
                return False
        if self.phase is not Phase.NOTHING:
            self._note_partial(len(data))
        return True

    def first_piece(self, data: memoryview) -> tuple[memoryview, memoryview]:
        """Split off a first piece: the body if its length is known, else up to the end of a head,
        else a little. (One read may contain a thousand requests, or ten thousand chunks.) Returns
        it and the rest."""
        if self.phase is Phase.NOTHING and data[0] in _BLANK:
            data = memoryview(bytes(data).lstrip(_BLANK))  # all at once
        size = self.left_of_body()
        if size <= 0:
            piece = bytes(data[:_PIECE])
            end = piece.find(_END_OF_HEAD, _IN_CHUNKS if self.phase is Phase.BODY else 0)
            size = _PIECE if end < 0 else end + len(_END_OF_HEAD)
        return data[:size], data[size:]

    def left_of_body(self) -> int:
        """The bytes left of a body of known length; else 0."""
        if self.phase is not Phase.BODY:
            return 0
        return int(self.headers.get(b"content-length", 0)) - self._body_bytes

    def received(self, body: bytes, parts: Sequence[bytes]) -> Received:
        """The request that is whole. Raises RequestRefused."""
        http, headers, url = self.http, self.headers, self.url
        if not url.startswith(b"/"):
            url = _relative(url)
        request = request_of(http.get_method(), url, headers, body)
        keep_alive = http.should_keep_alive()
        # Asking for the version costs a string; HTTP/1.0 stays open only where a header says so.
        is_http_10 = (
            not keep_alive or b"connection" in headers
        ) and http.get_http_version() == "1.0"
        return Received(request, keep_alive, is_http_10, parts)

    @property
    def is_plain_post(self) -> bool:
        """Whether the request is a POST that leaves the connection open, in HTTP/1.1."""
        http = self.http
        is_post: bool = http.get_method() == b"POST" and http.should_keep_alive()
        return is_post and (b"connection" not in self.headers or http.get_http_version() == "1.1")

    @property
    def holds_room(self) -> bool:
        return self._taken_bytes > 0

    def give_back(self, waiting: Sequence[int], *, is_over: bool) -> None:
        """Give back all room, except that of waiting requests (their sizes) and of the one being
        read."""
        kept = sum(max(0, size - self._uncounted_bytes) for size in waiting)
        if self.phase is Phase.BODY and not is_over:
            kept += self._allowed_bytes - self._uncounted_bytes
        self._room.give_back(self._taken_bytes - kept)
        self._taken_bytes = kept

    def forget_body(self) -> None:
        self._body = []

    def close(self) -> None:
        """Break the reference cycles: the parser and the listener refer to us."""
        self.http = self._listener = None  # type: ignore[assignment]

    # --- httptools calls

    def on_message_begin(self) -> None:
        self.phase = Phase.HEAD
        self.url = b""
        self.headers = {}
        self._body = []
        self._body_bytes = 0
        self._allowed_bytes = self._uncounted_bytes

    def on_url(self, part: bytes) -> None:
        self.url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase is not Phase.HEAD:
            return  # a trailer must not pass for a header
        name = name.lower()
        headers = self.headers
        headers[name] = value if name not in headers else self._joined(name, value)

    def on_headers_complete(self) -> None:
        self.phase = Phase.BODY
        headers = self.headers
        if b"upgrade" in headers and self._asks_for_upgrade():
            self._is_upgrade = True
            return
        self._check_host(headers.get(b"host"))
        if b"transfer-encoding" in headers:
            self._check_coding(headers[b"transfer-encoding"])
        if self.partial is Phase.HEAD or self._read_bytes > self._config.max_header_bytes:
            self._check_size_of_head()
        length = int(headers.get(b"content-length", 0))
        if length > _LONG or b"transfer-encoding" in headers:
            self._listener.check_head(WireHeaders(headers))
        if length > self._allowed_bytes:
            self._check_length(length)
        if b"expect" in headers:
            self._check_expectation(headers[b"expect"])

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > self._allowed_bytes:
            self._take_room()
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        self.phase = self.partial = Phase.NOTHING
        parts, self._body = self._body, []
        if len(parts) == 1:
            self._listener.on_request(parts[0], ())
        elif self._body_bytes <= _JOINED_HERE:
            self._listener.on_request(b"".join(parts), ())
        else:
            self._listener.on_request(b"", parts)

    # --- another protocol

    def _goes_on_after(self, error: Exception, data: bytes | memoryview) -> bool:
        """The parser has stopped: was that only for a protocol that we do not change to?"""
        rest = memoryview(data)
        while isinstance(error, httptools.HttpParserUpgrade):
            if not self._is_upgrade:  # CONNECT: what follows is not HTTP
                return False
            rest = rest[error.args[0] :]
            try:
                self._parse_without_upgrade(rest)
            except _STOPS as next_error:
                error = next_error
            else:
                return True
        if not isinstance(error, httptools.HttpParserCallbackError):
            raise RequestRefused(400, "bad_request", f"malformed HTTP: {error}") from error
        assert error.__context__ is not None, "a callback raised"
        raise error.__context__

    def _parse_without_upgrade(self, rest: memoryview) -> None:
        """The parser stops after a head that asks for an upgrade, and leaves the body out. RFC 9110
        lets a server ignore the upgrade, so the request is parsed again without it."""
        self._is_upgrade = False
        http = self.http
        head = wire.head_without_upgrade(
            http.get_method(), self.url, http.get_http_version(), self.headers
        )
        self.http = httptools.HttpRequestParser(self)
        self.http.feed_data(head)
        self.http.feed_data(rest)

    def _asks_for_upgrade(self) -> bool:
        return bool(self.http.should_upgrade()) and self.http.get_method() != b"CONNECT"

    # --- what a request may be

    def _joined(self, name: bytes, value: bytes) -> bytes:
        if name == b"host":
            raise RequestRefused(400, "bad_request", "the request has two Host headers")
        return self.headers[name] + b", " + value

    def _note_partial(self, size: int) -> None:
        """A request that did not fit in one read: from here on its sizes are counted."""
        if self.partial is not self.phase:
            self.partial = self.phase
            self.begins_to_wait = True
            self._head_bytes = 0
        elif self._body_bytes == self._body_bytes_before:  # a head, or trailers
            self._head_bytes += size
            if self._head_bytes > self._config.max_header_bytes:
                raise self._head_too_large()
        self._body_bytes_before = self._body_bytes

    def _check_host(self, host: bytes | None) -> None:
        if host is None and self.http.get_http_version() != "1.0":
            raise RequestRefused(400, "bad_request", "the request has no Host header")
        if host and not _HOST.fullmatch(host):
            raise RequestRefused(400, "bad_request", "the Host header is not a host")

    def _check_coding(self, coding: bytes) -> None:
        if self.http.get_http_version() == "1.0":
            raise RequestRefused(400, "bad_request", "HTTP/1.0 has no Transfer-Encoding")
        if coding.strip().lower() != b"chunked":
            text = coding.decode("latin-1")
            raise RequestRefused(
                501, "not_implemented", f"Transfer-Encoding {text!r}: only 'chunked' is read"
            )

    def _check_size_of_head(self) -> None:
        size = len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers.items())
        if size > self._config.max_header_bytes:
            raise self._head_too_large()

    def _check_expectation(self, what: bytes) -> None:
        if what.lower() != b"100-continue":
            raise RequestRefused(417, "bad_request", "the only expectation we meet is 100-continue")
        if self.http.get_http_version() != "1.0":
            self._listener.on_expect()

    def _check_length(self, length: int) -> None:
        """Refuse a body that is too long before any of it has been received."""
        if length > self._config.max_body_bytes:
            raise self._too_large()
        try:
            self._room.check(length - self._uncounted_bytes)
        except QueueFull as error:
            raise RequestRefused(503, error.code, str(error)) from error

    def _take_room(self) -> None:
        limit = self._config.max_body_bytes
        if self._body_bytes > limit:
            raise self._too_large()
        allowed = min(limit, self._body_bytes + _STEP)
        try:
            self._room.take(allowed - self._allowed_bytes)
        except QueueFull as error:
            raise RequestRefused(503, error.code, str(error)) from error
        self._taken_bytes += allowed - self._allowed_bytes
        self._allowed_bytes = allowed

    def _too_large(self) -> RequestRefused:
        limit = self._config.max_body_bytes
        return RequestRefused(413, "input_too_large", f"the body is larger than {limit} bytes")

    def _head_too_large(self) -> RequestRefused:
        limit = self._config.max_header_bytes
        return RequestRefused(431, "head_too_large", f"the head is larger than {limit} bytes")


def _relative(url: bytes) -> bytes:
    """`http://host/path`, as proxies send it, or `*`."""
    if url == b"*":
        return url
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError as error:
        raise RequestRefused(400, "bad_request", "the URL is not valid") from error
    path = parsed.path or b"/"
    return path + b"?" + parsed.query if parsed.query else path
