"""One call of gRPC on one stream: it collects the request, runs the method, and is the context
that the method sees. It knows no frames and no windows but its own."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any, NoReturn, Self

from headway.errors import QueueFull
from headway.wire.http2 import heads
from headway.wire.http2.call_state import WINDOW, CallState, wake
from headway.wire.http2.frames import Code, StreamFailed
from headway.wire.http2.heads import Metadata, Value
from headway.wire.http2.inbox import Broken, GrpcMessage, TooLong, prefix_of, whole
from headway.wire.http2.status import Aborted, Status
from headway.wire.own_cancellation import is_asked_to_stop
from headway.wire.writes import StreamSink

_log = logging.getLogger(__name__)
ENCODINGS = frozenset(["identity", "gzip", "deflate"])
_SMALL = 2**10  # bytes of a whole message that are not counted


class GrpcCall(CallState):
    __slots__ = ()

    # ---- the connection calls

    def start(self, head_bytes: int) -> None:
        """The head has arrived; `head_bytes` of it are counted."""
        if head_bytes or self.method.takes_stream:
            try:
                self._base_bytes = head_bytes
                self._hold(0)
                if self.method.takes_stream:
                    self._open_inbox()
            except QueueFull as error:
                self._refuse_request(error)
                return
        loop = self._wire.loop
        if self.head.timeout_s is not None:
            self._deadline = loop.time() + self.head.timeout_s
            self._timer = loop.call_later(self.head.timeout_s, self._expire)
        if self.method.takes_stream:
            self._work = self._wire.loop.create_task(self._run(_Requests(self)))

    def receive(self, data: bytes, size_bytes: int, *, is_last: bool) -> None:
        """Receive data. `size_bytes` counts against its window. Raises StreamFailed."""
        self.is_received = is_last
        if is_last and self._inbox is None:
            message = whole(data, self._limit_bytes())
            if message is not None:
                self._begin_whole(message)
                return
        self._owed += size_bytes
        if self._owed > WINDOW:
            raise StreamFailed(Code.FLOW_CONTROL_ERROR, "more than its window")
        try:
            self._collect(data)
        except (Broken, TooLong, QueueFull) as error:
            self._refuse_request(error)

    def cancel(self) -> None:
        """The client does not want the answer."""
        self.is_over = True
        task = self._stop_work()
        if task is None:
            self.close()
        else:
            task.add_done_callback(lambda _: self.close())

    def is_late(self, now: float, limit_s: float) -> bool:
        """Whether its one request takes longer than that to arrive."""
        is_arriving = not self.method.takes_stream and not self.is_received
        return is_arriving and now - self.started_at > limit_s

    # ---- the direct way: a whole answer without a task

    def answer(self, body: bytes, timing: bytes = b"") -> str:
        if not self.is_over:
            self.is_over = True
            self._work = None
            self._wire.send_answer(self, body)
        return self._own_id()

    def fail(self, error: BaseException) -> str:
        self._work = None
        assert self.method.direct is not None
        self.end(*self.method.direct.refusal_of(error))
        return self._own_id()

    def _own_id(self) -> str:
        metadata = self.invocation_metadata()
        return next((str(value) for name, value in metadata or () if name == "x-request-id"), "")

    # ---- receiving

    def _begin_whole(self, data: bytes) -> None:
        if len(data) > _SMALL:
            try:
                self._hold(len(data))
            except QueueFull as error:
                self._refuse_request(error)
                return
        self._begin(data)

    def _begin(self, data: bytes) -> None:
        """The only message is here, whole."""
        try:
            request = self.method.parse(data)
        except Exception as error:  # noqa: BLE001 - protobuf's own, and there are three of them
            self._refuse_request(error)
            return
        direct = self.method.direct
        if direct is not None and self.head.is_plain:
            self._work = direct.start(request, self)
            if self._work is not None:
                return
        self._work = self._wire.loop.create_task(self._run(request))

    def _collect(self, data: bytes) -> None:
        inbox = self._open_inbox() if self._inbox is None else self._inbox
        inbox.feed(data)
        self._hold(len(inbox))
        if self.method.takes_stream:
            wake(self._reader)
            return
        if not self.is_received:
            self._give_back()
            return
        message = inbox.take()
        if message is None or len(inbox):
            raise Broken("the call takes exactly one message")
        if not message.is_compressed:
            self._begin(message.data)
        else:
            self._work = self._wire.loop.create_task(self._run_packed(message))

    # ---- running

    async def _run_packed(self, message: GrpcMessage) -> None:
        try:
            request = self.method.parse(await self._unpacked(message))
        except Exception as error:  # noqa: BLE001 - zlib's, ours, protobuf's
            self._work = None  # it is this very task
            self._refuse_request(error)
        else:
            await self._run(request)

    async def _run(self, request: Any) -> None:
        try:
            await self._respond(request)
        except Aborted:
            pass  # the status has been sent
        except asyncio.CancelledError as error:
            if is_asked_to_stop(error):
                raise
            self.end(Status.CANCELLED, "the work was cancelled")
        except Exception as error:  # noqa: BLE001 - the service's code; every caller is answered
            if not self.is_over:
                _log.error("a call failed", exc_info=error, extra={"path": self.head.path})
                self.end(Status.UNKNOWN, "internal error")

    async def _respond(self, request: Any) -> None:
        method = self.method
        result = method.run(request, self)
        if hasattr(result, "__aiter__"):
            async with aclosing(result):
                async for message in result:
                    await self.write(message)
        else:
            response = await result
            if not method.gives_stream:
                self._answer_once(method.serialise(response))
                return
        self.end(self._code, self._details)

    def _answer_once(self, body: bytes) -> None:
        if self.is_over:
            return
        is_plain = self._code is Status.OK and not self._trailing
        if is_plain and self.head_block is heads.HEAD_BLOCK:
            self.is_over = True
            self._wire.send_answer(self, body)
        else:
            self._wire.send(self, prefix_of(body), body)
            self.end(self._code, self._details)

    def _expire(self) -> None:
        if self.is_over:
            return  # its answer waits for room
        self.end(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self._stop_work()

    # ---- the context's face

    async def read(self) -> Any:
        """The next request; None after the last."""
        try:
            message = await self._wait_message()
            if message is None:
                return None
            return self.method.parse(await self._unpacked(message))
        except Exception as error:  # noqa: BLE001 - ours, zlib's, protobuf's
            self._refuse_request(error)
            return await self._wire.loop.create_future()  # until the call is cancelled: it is

    async def _wait_message(self) -> GrpcMessage | None:
        inbox = self._inbox
        assert inbox is not None, "a call of one request has been read"
        while not self.is_over:
            message = inbox.take()
            if message is not None:
                self._give_back(len(inbox))
                self._hold(len(inbox))  # what is read counts for its own answer
                self._wire.earn(1)  # for its frame
                return message
            if self.is_received:
                if len(inbox):
                    raise Broken("the last message has been cut off")
                break
            self._give_back()  # the message may be larger than the window
            self._reader = self._wire.loop.create_future()
            await self._reader
        return None

    async def write(self, message: Any) -> None:
        """Waits until there is room for more."""
        if not self.is_over:  # the client has left
            body = self.method.serialise(message)
            self._wire.send(self, prefix_of(body), body)
        while (writable := self.writable) is not None:
            await writable

    # ---- the same, in steps

    def send(self, data: bytes) -> None:
        """Send framed messages; if there is no room, they wait."""
        if not self.is_over:  # the client has left
            self._wire.send(self, data)

    def sink(self) -> StreamSink:
        """A sink for one of the streams that it answers with."""
        return StreamSink(self._wire.writes, self)

    @property
    def writable(self) -> "asyncio.Future[None] | None":
        """None if there is room now, or the call is over; else a future that is done when that is
        so."""
        if self.is_closed or not (self.outbox or self._wire.is_paused):
            return None
        if self._writer is None or self._writer.done():
            self._writer = self._wire.loop.create_future()
        return self._writer

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, Value]]) -> None:
        if self.head_block is None:
            raise asyncio.InvalidStateError("the initial metadata has been sent")
        self.head_block = heads.HEAD_BLOCK + heads.metadata_block(metadata)

    async def abort(
        self, code: Status, details: str = "", trailing_metadata: Iterable[tuple[str, Value]] = ()
    ) -> NoReturn:
        self.end(code, details, trailing_metadata)
        raise Aborted("the call has its status")

    def set_trailing_metadata(self, metadata: Iterable[tuple[str, Value]]) -> None:
        self._trailing = tuple(metadata)

    def code(self) -> Status:
        return self._code

    def details(self) -> str:
        return self._details

    def invocation_metadata(self) -> Metadata:
        return self.head.metadata

    def time_remaining(self) -> float | None:
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._wire.loop.time())

    def peer(self) -> str:
        return self._wire.peer

    @property
    def client(self) -> str:
        """The address that it came from, or its network."""
        return self._wire.client

    def done(self) -> bool:
        return self.is_closed

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        if self.is_closed:
            callback(self)
        else:
            self._done.append(callback)


class _Requests:
    """The requests of a call, as its method iterates over them."""

    def __init__(self, call: GrpcCall) -> None:
        self._call = call

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        request = await self._call.read()
        if request is None:
            raise StopAsyncIteration
        return request
