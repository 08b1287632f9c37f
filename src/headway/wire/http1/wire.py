"""Answers as bytes of HTTP/1.1. It knows no sockets; all but the date is pure."""

import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

from headway.wire.headers import one_line
from headway.wire.messages import Headers, Response, StreamResponse

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
CLOSE = b"\r\nConnection: close"
KEEP_ALIVE = b"\r\nConnection: keep-alive"  # HTTP/1.0 clients need it
_NO_BODY = frozenset([204, 304])
_MOST_STARTS = 256
_UPGRADE = (b"upgrade", b"http2-settings")  # headers, and the words of `Connection` that name them


class _Date:
    """The `Date` line, made once a second."""

    __slots__ = ("line", "second")

    def __init__(self) -> None:
        self.second = 0
        self.line = b""

    def now(self) -> bytes:
        second = int(time.time())
        if second != self.second:
            self.second = second
            self.line = b"\r\nDate: " + formatdate(second, usegmt=True).encode()
        return self.line


_OK = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d"
    b"\r\nX-Request-Id: %b%b%b\r\n\r\n"
)
_date = _Date()
_starts: dict[tuple[int, str], bytes] = {}  # status line and content type, ready made


def encode_head(response: Response, request_id: str, connection: bytes = b"") -> bytes:
    """Everything before the body, blank line included."""
    if response.status in _NO_BODY:
        parts = [_status_line(response.status), b"\r\nX-Request-Id: ", request_id.encode()]
    else:
        start = _starts.get((response.status, response.content_type)) or _make_start(response)
        length = b"%d" % len(response.body)
        parts = [start, b"\r\nContent-Length: ", length, b"\r\nX-Request-Id: ", request_id.encode()]
    parts += (_date.now(), connection)
    if response.headers:
        parts.append(_encode_headers(response.headers))
    parts.append(b"\r\n\r\n")
    return b"".join(parts)


def encode_ok(body: bytes, request_id: str, connection: bytes = b"") -> bytes:
    """The head of the commonest answer: JSON, 200, no headers of its own."""
    return _OK % (len(body), request_id.encode(), _date.now(), connection)


def encode_stream_head(
    response: StreamResponse, request_id: str, connection: bytes = b"", *, is_chunked: bool
) -> bytes:
    return b"".join(
        (
            _starts.get((response.status, response.content_type)) or _make_start(response),
            b"\r\nTransfer-Encoding: chunked" if is_chunked else b"",
            b"\r\nX-Request-Id: ",
            request_id.encode(),
            _date.now(),
            connection,
            _encode_headers(response.headers),
            b"\r\n\r\n",
        )
    )


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def parts_of_chunk(data: bytes, *, is_chunked: bool) -> tuple[bytes, ...]:
    """The same without a copy."""
    return (b"%x\r\n" % len(data), data, b"\r\n") if is_chunked else (data,)


def encode_comment(*, is_chunked: bool) -> bytes:
    """An empty comment between server-sent events."""
    return encode_chunk(b":\n\n") if is_chunked else b":\n\n"


def head_without_upgrade(
    method: bytes, url: bytes, version: str, headers: Mapping[bytes, bytes]
) -> bytes:
    """A request's head as if its client had not offered another protocol."""
    tokens = [each.strip() for each in headers.get(b"connection", b"").split(b",")]
    kept = [each for each in tokens if each and each.lower() not in _UPGRADE]
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    lines += [
        b"%b: %b" % each for each in headers.items() if each[0] not in (*_UPGRADE, b"connection")
    ]
    if kept:
        lines.append(b"connection: " + b", ".join(kept))
    return b"\r\n".join((*lines, b"", b""))


def _make_start(response: Response | StreamResponse) -> bytes:
    kind = one_line(response.content_type)
    start = _status_line(response.status) + (b"\r\nContent-Type: " + kind if kind else b"")
    if len(_starts) < _MOST_STARTS:
        _starts[response.status, response.content_type] = start
    return start


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return b"HTTP/1.1 %d %b" % (status, phrase.encode())


def _encode_headers(headers: Headers) -> bytes:
    return b"".join(b"\r\n%b: %b" % (one_line(name), one_line(value)) for name, value in headers)
