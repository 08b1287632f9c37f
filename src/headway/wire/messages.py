"""HTTP as an application sees it: a request in, an answer out. It knows no sockets, no ASGI."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from headway.errors import HeadwayError

Headers: TypeAlias = tuple[tuple[str, str], ...]
JSON = "application/json"


class Request:
    """A request, complete with its body. Header names are lower case."""

    __slots__ = (
        *("body", "caller", "client", "headers", "id", "max_json_bytes", "method", "path"),
        "query",
    )

    def __init__(
        self,
        method: str,
        path: str,  # as sent, percent-encoded; without the query
        query: str,
        headers: Mapping[str, str],
        body: bytes,
        request_id: str,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.id = request_id
        self.client = ""  # the address that it came from, or its network
        self.caller: Any = None  # set by the application, once it knows
        self.max_json_bytes = sys.maxsize  # of JSON in its body; the application sets it


class Response:
    """A whole answer."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self, body: bytes = b"", status: int = 200, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        self.body = body
        self.status = status
        self.content_type = content_type
        self.headers = headers


class ErrorResponse(Response):
    """An error's answer, and the word for it."""

    __slots__ = ("code",)

    def __init__(self, body: bytes, status: int, *, code: str, headers: Headers = ()) -> None:
        super().__init__(body, status, headers=headers)
        self.code = code


class Pending(Protocol):
    """An answer on its way."""

    def cancel(self) -> object: ...


class Asker(Protocol):
    """Takes the one answer, in the event loop."""

    def answer(self, body: bytes, timing: bytes = b"") -> str:
        """A JSON answer with status 200. `timing`: for `Server-Timing`, where there are headers.
        Returns the request's id; empty: it has none."""

    def fail(self, error: BaseException) -> str: ...


class Out(Protocol):
    """A stream's way out: a connection of HTTP/1.1, a call of gRPC."""

    @property
    def writable(self) -> "asyncio.Future[None] | None":
        """None if there is room now; else a future that is done when there is."""

    def send(self, data: bytes) -> None:
        """Send parts of the stream. Raises nothing, even if the client has left."""


class Sink(Protocol):
    """Takes the parts of a stream."""

    @property
    def out(self) -> Out: ...

    async def wait_writable(self) -> None: ...

    def write(self, data: bytes) -> None: ...


EVENT_STREAM = "text/event-stream; charset=utf-8"
# For server-sent events: tells nginx to send each one at once instead of collecting them.
EVENT_HEADERS: Headers = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))


class StreamResponse:
    """An answer that is written as it comes. Its iterator is closed when the client leaves; then
    `on_end` is called with None, with what the iterator raised, or with CancelledError where the
    client has left.

    Chunks that can `pump` write into a sink by themselves, from the second part on. `error_of`
    makes the bytes that end the stream with an error.
    """

    __slots__ = ("chunks", "content_type", "error_of", "headers", "on_end", "status")

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        status: int = 200,
        content_type: str = EVENT_STREAM,
        headers: Headers = (),
    ) -> None:
        self.chunks = chunks
        self.error_of: Callable[[HeadwayError], bytes] | None = getattr(chunks, "error_of", None)
        self.status = status
        self.content_type = content_type
        self.headers = headers
        self.on_end: list[Callable[[BaseException | None], object]] = []

    def end(self, error: BaseException | None) -> None:
        """The first time counts."""
        on_end, self.on_end = self.on_end, []
        for callback in on_end:
            callback(error)

    async def close(self) -> None:
        """Close the iterator, if it has anything to close."""
        close = getattr(self.chunks, "aclose", None)
        if close is not None:
            await close()


Answer: TypeAlias = Response | StreamResponse
