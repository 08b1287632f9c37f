"""The half of an HTTP/1.1 connection that answers: one request at a time, in order."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from headway.errors import Closed, HeadwayError
from headway.wire.application import Application
from headway.wire.body_room import joined
from headway.wire.cancellation import is_asked_to_stop
from headway.wire.compression import compress_answer, is_worth_it
from headway.wire.headers import request_id
from headway.wire.http1 import wire
from headway.wire.http1.lifetime import Lifetime, Owner
from headway.wire.http1.turns import Received, Refused, request_of
from headway.wire.limits import Limits
from headway.wire.messages import Response, StreamResponse
from headway.wire.writes import StreamSink

logger = logging.getLogger(__name__)

SMALL = 32 * 2**10  # bytes; up to here a copy is cheaper than a second write


class Answering(Lifetime):
    """A stream that it answers is written without a task: it is the `Out` of a `StreamSink`."""

    __slots__ = ("_asked", "_handle", "_is_chunked", "_last_words", "_owes_continue", "writable")

    def __init__(
        self, app: Application, config: Limits, loop: asyncio.AbstractEventLoop, owner: Owner
    ) -> None:
        super().__init__(app, config, loop, owner)
        self._handle = app.handle
        self._asked: tuple[bytes, dict[bytes, bytes]] = (b"", {})  # its URL and headers, if direct
        self._owes_continue = False
        self._is_chunked = True  # the stream that is answered
        # Makes the last bytes of the running stream: what is still held, then its error event.
        self._last_words: Callable[[HeadwayError], bytes] | None = None
        self.writable: asyncio.Future[None] | None = None  # the client reads too slowly

    # As a stream's way out.

    def send(self, data: bytes) -> None:
        transport = self._transport
        if transport.is_closing():
            return
        if len(data) > SMALL:
            transport.writelines(wire.parts_of_chunk(data, is_chunked=self._is_chunked))
        else:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def cut(self) -> None:
        """A stream of events that is under way ends with its error, not in the middle of it."""
        last_words = self._last_words
        if last_words is None or self._task is None or self._transport.is_closing():
            super().cut()
            return
        self._is_over, self._comment = True, None
        error = Closed("the server is stopping")
        self._app.note_error(error.code)
        self.send(last_words(error))
        if self._is_chunked:
            self._transport.write(wire.LAST_CHUNK)
        task = self._task
        self._close()
        task.cancel()

    def call_in_turn(self, callback: Callable[[], object]) -> None:
        self._owner.turns.call(self.client, callback)

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
            self._resume_reading()
        elif self._waiting or not self._is_over:  # a refusal may wait behind the last answer
            self._go_on()
            self._resume_reading()

    def _start(self, received: Received) -> None:
        self._deadline = math.inf
        self._is_answering = False
        self._task = self._loop.create_task(self._answer(received))

    # The hot path: a whole answer without a task. The app calls `answer` or `fail`, once.

    def _start_direct(self, body: bytes) -> bool:
        parser, headers = self._parser, self._headers
        if (
            self._task is not None
            or self._waiting
            or parser.get_method() != b"POST"
            or not parser.should_keep_alive()
            or (b"connection" in headers and parser.get_http_version() != "1.1")
        ):
            return False
        return self._begin_direct(self._url, headers, body)

    def _begin_direct(self, url: bytes, headers: dict[bytes, bytes], body: bytes) -> bool:
        self._task = self._app.start_direct(url, body, self, headers)
        if self._task is None:
            return False
        self._deadline = math.inf
        self._is_answering = False
        self._url, self._headers = self._asked = (url, headers)
        return True

    def answer(self, body: bytes) -> None:
        headers = self._asked[1]
        if b"accept-encoding" in headers and is_worth_it(body):
            self._task = self._loop.create_task(self._answer_packed(body))
            return
        self._is_answering = True
        line = wire.CLOSE if self._is_last else b""
        head = wire.encode_ok(body, request_id(headers.get(b"x-request-id")), line)
        if len(body) <= SMALL:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        self._next(keep_alive=True)

    def fail(self, error: BaseException) -> None:
        try:
            received = self._received_direct()
            self._send(received, self._app.answer_error(received.request, error))
        except Exception:
            logger.exception("an error answer could not be sent")
            self._transport.abort()  # the client must not wait for an answer that never comes
            return
        self._next(keep_alive=True)

    async def _answer_packed(self, body: bytes) -> None:
        received, response = self._received_direct(), Response(body)
        try:
            await compress_answer(received.request, response)
            if not self._transport.is_closing():
                self._send(received, response)
        except Exception:
            logger.exception("an answer could not be compressed")
            self._transport.abort()
            return
        self._next(keep_alive=True)

    def _received_direct(self) -> Received:
        url, headers = self._asked
        return Received(request_of(b"POST", url, headers, b""), True, False)

    # Every other request has a task of its own.

    async def _answer(self, received: Received) -> None:
        is_answered = False
        received.request.client = self.client
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
                self._transport.abort()  # cut short: the client must not take it for an answer
        self._next(keep_alive=received.keep_alive)

    def _send(self, received: Received, response: Response) -> None:
        self._is_answering = True
        request, body = received.request, response.body
        head = wire.encode_head(response, request.id, self._connection_line(received))
        if request.method == "HEAD" or not body:
            self._transport.write(head)
        elif len(body) <= SMALL:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

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
            if self._is_answering:
                logger.exception("a stream broke off", extra={"id": received.request.id})
                self._transport.abort()
            else:
                self._send(received, self._app.answer_error(received.request, error))
        else:
            response.end(None)

    async def _send_chunks(
        self, received: Received, response: StreamResponse, chunk: bytes | None
    ) -> None:
        self._is_answering = True
        self._is_chunked = is_chunked = not received.is_http_10
        if not is_chunked:
            self._is_last = True  # its end is the connection's
        line = self._connection_line(received)
        head = wire.encode_stream_head(response, received.request.id, line, is_chunked=is_chunked)
        if received.request.method == "HEAD":
            self._transport.write(head)
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
        self._transport.write(head + (wire.LAST_CHUNK if is_chunked else b""))

    async def _pumped(
        self, response: StreamResponse, pump: Callable[[StreamSink], Awaitable[None]]
    ) -> bytes:
        """What it has not written yet."""
        sink = StreamSink(self._owner.writes, self)
        if (error_of := response.error_of) is not None:
            self._last_words = lambda error: sink.take() + error_of(error)
        try:
            await pump(sink)
        finally:
            self._last_words = None
        return sink.take()

    def _write_chunk(self, head: bytes, chunk: bytes, *, is_chunked: bool) -> None:
        if len(chunk) > SMALL:
            self._transport.writelines((head, *wire.parts_of_chunk(chunk, is_chunked=is_chunked)))
        else:
            self._transport.write(head + (wire.encode_chunk(chunk) if is_chunked else chunk))

    def _connection_line(self, received: Received) -> bytes:
        if self._is_last or not received.keep_alive:
            return wire.CLOSE
        return wire.KEEP_ALIVE if received.is_http_10 else b""

    # --- the next

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
        if isinstance(turn, Refused):
            self._send_refusal(turn)
        else:
            self._start(turn)
        if not self._waiting:
            self._resume_reading()

    def _resume_reading(self) -> None:
        """Where nothing else is in the way."""
        raise NotImplementedError
