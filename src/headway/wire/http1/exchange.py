"""One request and its answer: whole or as a stream, in a task or without one. It knows no other
requests of its connection, and nothing of how they are read."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from headway.errors import HeadwayError
from headway.wire.application import HttpApplication
from headway.wire.body_room import joined
from headway.wire.compression import compress_answer, is_worth_it
from headway.wire.headers import request_id
from headway.wire.http1 import wire
from headway.wire.http1.known_heads import Head
from headway.wire.http1.received import Received, RequestRefused, request_of
from headway.wire.messages import Headers, Pending, Response, StreamResponse
from headway.wire.own_cancellation import is_asked_to_stop
from headway.wire.writes import StreamSink, Writes, write_parts

logger = logging.getLogger(__name__)

SMALL = 32 * 2**10  # bytes; up to here a copy is cheaper than a second write


class Link(Protocol):
    """The part of a connection that an exchange needs."""

    client: str
    is_last: bool  # no request follows this one
    writes: Writes  # of streams

    def on_answered(self, *, keep_alive: bool) -> None: ...


class _Gone:
    """Takes the place of a lost connection, so that nothing keeps that in memory."""

    client = ""
    is_last = True
    writes = Writes(0.0)

    def on_answered(self, *, keep_alive: bool) -> None:
        pass


class Exchange:
    """The exchanges of one connection, one after the other. A stream is answered without a task:
    the exchange is the `Out` of a `StreamSink`."""

    __slots__ = (
        *("_app", "_asked", "_comment", "_handle", "_is_chunked", "_last_words", "_link", "_loop"),
        *("is_answering", "task", "transport", "writable"),
    )

    def __init__(self, app: HttpApplication, loop: asyncio.AbstractEventLoop, link: Link) -> None:
        self._app = app
        self._handle = app.handle
        self._loop = loop
        self._link: Link = link
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # until connected
        self.task: asyncio.Task[None] | Pending | None = None  # answers the request; None: idle
        self.is_answering = False  # the answer's head is on the wire
        self.writable: asyncio.Future[None] | None = None  # the client reads too slowly
        self._asked: tuple[bytes, dict[bytes, bytes]] = (b"", {})  # its URL and headers, if direct
        self._is_chunked = True  # the stream that is answered
        self._comment: bytes | None = None  # may be sent at any time while a stream is answered
        # Makes the last bytes of the running stream: what is still held, then its error event.
        self._last_words: Callable[[HeadwayError], bytes] | None = None

    # --- as a stream's way out

    def send(self, data: bytes) -> None:
        transport = self.transport
        if transport.is_closing():
            return
        if len(data) > SMALL:
            write_parts(transport, wire.parts_of_chunk(data, is_chunked=self._is_chunked))
        else:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    # --- the connection calls

    def close(self) -> None:
        """The connection is lost."""
        if self.task is not None:
            self.task.cancel()
        self._link = _Gone()

    def pause(self) -> None:
        """The client reads too slowly."""
        self.writable = self._loop.create_future()

    def resume(self) -> None:
        if self.writable is not None and not self.writable.done():
            self.writable.set_result(None)
        self.writable = None

    def start(self, received: Received) -> None:
        self.is_answering = False
        self.task = self._loop.create_task(self._answer(received))

    def start_direct(self, head: Head, body: bytes) -> bool:
        """Start an answer without a task. False: this request needs a task."""
        self.task = head.start(body, self)
        if self.task is None:
            return False
        self.is_answering = False
        self._asked = (head.url, head.headers)
        return True

    def interim(self, *, is_http_10: bool) -> bytes | None:
        """Bytes that may be sent now and are no part of an answer."""
        if self._comment is not None:
            return self._comment
        return None if self.is_answering or is_http_10 else wire.CONTINUE

    @property
    def is_stream_of_events(self) -> bool:
        """Whether a stream of events is under way, which can be ended with an error."""
        return self._last_words is not None and self.task is not None

    def end_stream(self, error: HeadwayError) -> None:
        """End the stream with its error, but not in the middle of an event."""
        assert self._last_words is not None, "no stream is under way"
        self._comment = None
        self.send(self._last_words(error))
        if self._is_chunked:
            self.transport.write(wire.LAST_CHUNK)

    # --- the application calls one of these, once

    def answer(self, body: bytes, timing: bytes = b"") -> str:
        headers = self._asked[1]
        if b"accept-encoding" in headers and is_worth_it(body):
            received = self._received_direct()
            own = (("Server-Timing", timing.decode()),) if timing else ()
            self.task = self._loop.create_task(self._answer_packed(received, body, own))
            return received.request.id
        self.is_answering = True
        line = b"\r\nServer-Timing: " + timing if timing else b""
        if self._link.is_last:
            line += wire.CLOSE
        own_id = request_id(headers.get(b"x-request-id"))
        head = wire.encode_ok(body, own_id, line)
        if len(body) <= SMALL:
            self.transport.write(head + body)
        else:
            write_parts(self.transport, (head, body))
        self._end(keep_alive=True)
        return own_id

    def encode_refusal(
        self, refusal: RequestRefused, url: bytes, headers: dict[bytes, bytes]
    ) -> bytes:
        """The last answer of the connection, to a request that was not understood."""
        self._app.note_error(refusal.code)
        path = url.decode("latin-1").partition("?")[0]
        response = self._app.refuse(
            path, refusal.status, str(refusal), code=refusal.code, headers=refusal.headers
        )
        sent_id = request_id(headers.get(b"x-request-id"))
        return wire.encode_head(response, sent_id, wire.CLOSE) + response.body

    def fail(self, error: BaseException) -> str:
        received = self._received_direct()
        try:
            self._send(received, self._app.answer_error(received.request, error))
        except Exception:
            logger.exception("an error answer could not be sent")
            self.transport.abort()  # or the client would wait for an answer for ever
        else:
            self._end(keep_alive=True)
        return received.request.id

    async def _answer_packed(self, received: Received, body: bytes, headers: Headers) -> None:
        response = Response(body, headers=headers)
        try:
            await compress_answer(received.request, response)
            if not self.transport.is_closing():
                self._send(received, response)
        except Exception:
            logger.exception("an answer could not be compressed")
            self.transport.abort()
            return
        self._end(keep_alive=True)

    def _received_direct(self) -> Received:
        url, headers = self._asked
        return Received(request_of(b"POST", url, headers, b""), True, False)

    def _end(self, *, keep_alive: bool) -> None:
        self.task = None
        self._link.on_answered(keep_alive=keep_alive)

    # --- every other request has a task of its own

    async def _answer(self, received: Received) -> None:
        is_answered = False
        transport = self.transport
        received.request.client = self._link.client
        try:
            if received.parts:
                received.request.body = await joined(received.parts)
                received = received._replace(parts=())
            answer = await self._handle(received.request)
            if isinstance(answer, StreamResponse):
                await self._send_stream(received, answer)
            elif not transport.is_closing():
                self._send(received, answer)
            is_answered = True
        finally:
            if not is_answered and not transport.is_closing():
                transport.abort()  # cut short: the client must not take it for an answer
        self._end(keep_alive=received.keep_alive)

    def _send(self, received: Received, response: Response) -> None:
        self.is_answering = True
        request, body, transport = received.request, response.body, self.transport
        head = wire.encode_head(response, request.id, self._connection_line(received))
        if request.method == "HEAD" or not body:
            transport.write(head)
        elif len(body) <= SMALL:
            transport.write(head + body)
        else:
            write_parts(transport, (head, body))

    async def _send_stream(self, received: Received, response: StreamResponse) -> None:
        """The head leaves with the first chunk: what fails before it still is a proper error."""
        try:
            try:
                first = await anext(response.chunks, None)
                await self._send_chunks(received, response, first)
            finally:
                await response.close()
        except BaseException as error:
            response.end(error)
            if is_asked_to_stop(error):
                raise
            # The stream is the model's code.
            if self.is_answering:
                logger.exception("a stream broke off", extra={"id": received.request.id})
                self.transport.abort()
            elif not self.transport.is_closing():
                self._send(received, self._app.answer_error(received.request, error))
        else:
            response.end(None)

    async def _send_chunks(
        self, received: Received, response: StreamResponse, chunk: bytes | None
    ) -> None:
        self.is_answering = True
        self._is_chunked = is_chunked = not received.is_http_10
        if not is_chunked:
            self._link.is_last = True  # its end is the connection's
        line = self._connection_line(received)
        head = wire.encode_stream_head(response, received.request.id, line, is_chunked=is_chunked)
        if received.request.method == "HEAD":
            self.transport.write(head)
            return
        is_events = response.content_type.startswith("text/event-stream")
        comment = wire.encode_comment(is_chunked=is_chunked) if is_events else None
        held = b""
        if chunk is not None and (pump := getattr(response.chunks, "pump", None)) is not None:
            self._write_chunk(head, chunk, is_chunked=is_chunked)
            head, chunk = b"", None
            self._comment = comment
            held = await self._pumped(response, pump)
        while chunk is not None:
            if chunk:  # an empty one would end the stream
                self._write_chunk(head, chunk, is_chunked=is_chunked)
                head = b""
                self._comment = comment
            if self.writable is not None:
                await self.writable
            chunk = await anext(response.chunks, None)
        self._comment = None
        if held:
            head += wire.encode_chunk(held) if is_chunked else held
        self.transport.write(head + (wire.LAST_CHUNK if is_chunked else b""))

    async def _pumped(
        self, response: StreamResponse, pump: Callable[[StreamSink], Awaitable[None]]
    ) -> bytes:
        """The part of the stream that the pump has not written yet."""
        sink = StreamSink(self._link.writes, self)
        if (error_of := response.error_of) is not None:
            self._last_words = lambda error: sink.take() + error_of(error)
        try:
            await pump(sink)
        finally:
            self._last_words = None
        return sink.take()

    def _write_chunk(self, head: bytes, chunk: bytes, *, is_chunked: bool) -> None:
        transport = self.transport
        if len(chunk) > SMALL:
            write_parts(transport, (head, *wire.parts_of_chunk(chunk, is_chunked=is_chunked)))
        else:
            transport.write(head + (wire.encode_chunk(chunk) if is_chunked else chunk))

    def _connection_line(self, received: Received) -> bytes:
        if self._link.is_last or not received.keep_alive:
            return wire.CLOSE
        return wire.KEEP_ALIVE if received.is_http_10 else b""
