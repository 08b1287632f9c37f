"""One call of gRPC on one stream: it collects the request, runs the method, and is the context
that the method sees, with the face of grpc.aio's. It knows no frames and no windows but its own."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any, NamedTuple, NoReturn, Protocol, Self

import grpc

from headway.errors import HeadwayError, QueueFull
from headway.server.app import Pending
from headway.server.errors import retry_after_s, status_of
from headway.server.grpc.calls import Refusal, is_asked_to_stop
from headway.server.net.compression import decompress
from headway.server.net.holding import UNCOUNTED_BYTES, BodyRoom
from headway.server.net.http2 import heads
from headway.server.net.http2.frames import Code, StreamFailed
from headway.server.net.http2.heads import Head, Metadata, Value
from headway.server.net.http2.inbox import Broken, Inbox, Message, TooLong, framed, whole

_log = logging.getLogger(__name__)
Status = grpc.StatusCode
WINDOW = 2**20  # bytes that a stream may send ahead of its reader
ENCODINGS = frozenset(["identity", "gzip", "deflate"])
_UNPACK_IN_THREAD = 2**12  # bytes; what is smaller unpacks to a few megabytes at most


class Direct(Protocol):
    """The commonest kind of request, answered without a task."""

    def start(self, request: Any, call: "Call") -> Pending | None:
        """None: it is not of that kind."""
        ...

    def refusal_of(self, error: BaseException) -> Refusal: ...


class Method(NamedTuple):
    """As the service has it. It is called with a request, or all requests, and a context."""

    run: Callable[[Any, Any], Any]
    parse: Callable[[bytes], Any]
    serialise: Callable[[Any], bytes]
    takes_stream: bool
    gives_stream: bool
    direct: Direct | None = None


class Wire(Protocol):
    """What a call needs of its connection."""

    loop: asyncio.AbstractEventLoop
    peer: str
    limit_bytes: int  # of a message
    room: BodyRoom  # for what has come and is not answered

    @property
    def is_paused(self) -> bool: ...

    def send_answer(self, call: "Call", body: bytes) -> None:
        """Head, one message, trailers: the whole of a plain answer."""
        ...

    def send(self, call: "Call", data: bytes) -> None: ...

    def finish(self, call: "Call", trailers: bytes) -> None: ...

    def give_back(self, call: "Call", size_bytes: int) -> None:
        """It may send so much more."""
        ...

    def left(self, task: "asyncio.Task[None]") -> None:
        """It has been cancelled, and may still be cleaning up."""
        ...


class Call:
    __slots__ = (
        "_code",
        "_deadline",
        "_details",
        "_done",
        "_inbox",
        "_method",
        "_owed",
        "_reader",
        "_taken_bytes",
        "_timer",
        "_trailing",
        "_wire",
        "_work",
        "_writer",
        "head",
        "head_block",
        "id",
        "is_closed",
        "is_over",
        "is_received",
        "moved_at",
        "outbox",
        "send_window",
        "started_at",
        "trailers",
    )

    def __init__(
        self, wire: Wire, stream_id: int, head: Head, method: Method, window: int, now: float
    ) -> None:
        self._wire = wire
        self._method = method
        self.id = stream_id
        self.head = head
        self.started_at = now
        self.is_received = False  # all that the client sends
        self.is_over = False  # its status is known
        self.is_closed = False  # and has left, or nobody wants it
        # The connection's:
        self.send_window = window
        self.head_block: bytes | None = heads.HEAD_BLOCK  # None: it has been sent
        self.outbox: bytearray | None = None  # what the windows have no room for
        self.trailers: bytes | None = None  # to be sent after it
        self.moved_at = now

        self._inbox: Inbox | None = None
        self._owed = 0  # bytes received and not yet given back to its window
        self._taken_bytes = 0  # of the room that all calls share
        self._work: asyncio.Task[None] | Pending | None = None
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._code = Status.OK
        self._details = ""
        self._trailing: Metadata = ()
        self._done: list[Callable[[Any], object]] = []

    # ---- the connection calls

    def start(self) -> None:
        """Its head is here."""
        loop = self._wire.loop
        if self.head.timeout_s is not None:
            self._deadline = loop.time() + self.head.timeout_s
            self._timer = loop.call_later(self.head.timeout_s, self._expire)
        if self._method.takes_stream:
            self._open_inbox()
            self._work = loop.create_task(self._run(_Requests(self)))

    def receive(self, data: bytes, size_bytes: int, *, is_last: bool) -> None:
        """`size_bytes` counts against its window. Raises StreamFailed."""
        self.is_received = is_last
        if is_last and self._inbox is None:
            message = whole(data, self._wire.limit_bytes)
            if message is not None:
                self._begin(message)
                return
        self._owed += size_bytes
        if self._owed > WINDOW:
            raise StreamFailed(Code.FLOW_CONTROL_ERROR, "more than its window")
        try:
            self._collect(data)
        except (Broken, TooLong, QueueFull) as error:
            self._refuse_request(error)

    def cancel(self) -> None:
        """Nobody wants the answer."""
        self.is_over = True
        task = self._stop_work()
        if task is None:
            self.close()
        else:
            task.add_done_callback(lambda _: self.close())

    def _stop_work(self) -> "asyncio.Task[None] | None":
        """What is still cleaning up."""
        work, self._work = self._work, None
        if isinstance(work, asyncio.Task):
            if work.done():
                return None
            work.cancel()
            self._wire.left(work)
            return work
        if work is not None:
            work.cancel()
        return None

    def close(self) -> None:
        """Its last byte is out, or never will be."""
        if self.is_closed:
            return
        self.is_closed = self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        _wake(self._reader)
        _wake(self._writer)
        for callback in self._done:
            callback(self)

    def wake_writer(self) -> None:
        _wake(self._writer)

    def is_late(self, now: float, limit_s: float) -> bool:
        """Whether its one request takes longer than that to arrive."""
        is_arriving = not self._method.takes_stream and not self.is_received
        return is_arriving and now - self.started_at > limit_s

    # ---- the direct way: a whole answer without a task

    def answer(self, body: bytes) -> None:
        if not self.is_over:
            self.is_over = True
            self._work = None
            self._wire.send_answer(self, body)

    def fail(self, error: BaseException) -> None:
        self._work = None
        assert self._method.direct is not None
        code, message, metadata = self._method.direct.refusal_of(error)
        self.end(code, message, metadata)

    # ---- receiving

    def _begin(self, data: bytes) -> None:
        """The only message is here, whole."""
        method = self._method
        try:
            request = method.parse(data)
        except Exception as error:  # noqa: BLE001 - protobuf's own, and there are three of them
            self._refuse_request(error)
            return
        if method.direct is not None and self.head.is_plain:
            self._work = method.direct.start(request, self)
            if self._work is not None:
                return
        self._work = self._wire.loop.create_task(self._run(request))

    def _collect(self, data: bytes) -> None:
        inbox = self._open_inbox() if self._inbox is None else self._inbox
        inbox.feed(data)
        self._hold(len(inbox))
        if self._method.takes_stream:
            _wake(self._reader)
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

    def _hold(self, size_bytes: int) -> None:
        """So much of the shared room, until the call is closed. Raises QueueFull."""
        more = max(0, size_bytes - UNCOUNTED_BYTES) - self._taken_bytes
        if more > 0:
            self._wire.room.take(more)
        elif more < 0:
            self._wire.room.give_back(-more)
        self._taken_bytes += more

    def _open_inbox(self) -> Inbox:
        """What comes in parts is held, and counted: a plain request never comes here."""
        self._done.append(lambda _: self._hold(0))
        self._inbox = Inbox(self._wire.limit_bytes)
        return self._inbox

    def _refuse_request(self, error: Exception) -> None:
        """What came cannot be read. That is the client's mistake: it is not logged."""
        match error:
            case TooLong():
                self.end(Status.RESOURCE_EXHAUSTED, str(error))
            case Broken():
                self.end(Status.INTERNAL, str(error))
            case HeadwayError():
                self.end(Status[status_of(error).grpc], str(error), _retry_after(error))
            case _:
                self.end(Status.INTERNAL, "the request cannot be parsed")
        self._stop_work()

    def _give_back(self, kept_bytes: int = 0) -> None:
        """In bulk: not for every frame a frame."""
        size = self._owed - kept_bytes
        if size >= WINDOW // 2 and not self.is_received:
            self._owed = kept_bytes
            self._wire.give_back(self, size)

    async def _unpacked(self, message: Message) -> bytes:
        data, limit = message.data, self._wire.limit_bytes
        if not message.is_compressed:
            return data
        if self.head.encoding == "identity":
            raise Broken("a compressed message on a call without a compression")
        if len(data) < _UNPACK_IN_THREAD:
            return decompress(data, limit=limit)
        return await asyncio.to_thread(decompress, data, limit=limit)

    # ---- running

    async def _run_packed(self, message: Message) -> None:
        try:
            data = await self._unpacked(message)
            self._hold(len(data))  # a small message may be a large one, packed
            request = self._method.parse(data)
        except Exception as error:  # noqa: BLE001 - zlib's, ours, protobuf's
            self._work = None  # it is this very task
            self._refuse_request(error)
        else:
            await self._run(request)

    async def _run(self, request: Any) -> None:
        try:
            await self._respond(request)
        except grpc.aio.AbortError:
            pass  # it has said why
        except asyncio.CancelledError:
            if is_asked_to_stop():
                raise
            self.end(Status.CANCELLED, "the work was cancelled")
        except Exception as error:  # noqa: BLE001 - the service's code; every caller is answered
            if not self.is_over:
                _log.error("a call failed", exc_info=error, extra={"path": self.head.path})
                self.end(Status.UNKNOWN, "internal error")

    async def _respond(self, request: Any) -> None:
        method = self._method
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
        if self._code is Status.OK and not self._trailing and self.head_block is heads.HEAD_BLOCK:
            self.is_over = True
            self._wire.send_answer(self, body)
        else:
            self._wire.send(self, framed(body))
            self.end(self._code, self._details)

    def _expire(self) -> None:
        if self.is_over:
            return  # its answer waits for room
        self.end(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self._stop_work()

    def end(
        self, code: grpc.StatusCode, message: str = "", metadata: Iterable[tuple[str, Value]] = ()
    ) -> None:
        """The call's status: the first one counts."""
        if self.is_over:
            return
        self.is_over = True
        self._code, self._details = code, message
        self._trailing = (*self._trailing, *metadata)
        if code is Status.OK and not self._trailing:
            block = heads.OK_BLOCK
        else:
            block = heads.trailers_block(code.value[0], message, self._trailing)
        self._wire.finish(self, block)

    # ---- the context's face

    async def read(self) -> Any:
        """The next request; EOF after the last."""
        try:
            message = await self._wait_message()
            if message is None:
                return grpc.aio.EOF
            return self._method.parse(await self._unpacked(message))
        except Exception as error:  # noqa: BLE001 - ours, zlib's, protobuf's
            self._refuse_request(error)
            return await self._wire.loop.create_future()  # until the call is cancelled: it is

    async def _wait_message(self) -> Message | None:
        inbox = self._inbox
        assert inbox is not None, "a call of one request has been read"
        while not self.is_over:
            message = inbox.take()
            if message is not None:
                self._give_back(len(inbox))
                self._hold(len(inbox))  # what is read counts for its own answer
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
        if self.is_over:
            return  # nobody listens any more
        self._wire.send(self, framed(self._method.serialise(message)))
        while (self.outbox or self._wire.is_paused) and not self.is_closed:
            self._writer = self._wire.loop.create_future()
            await self._writer

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, Value]]) -> None:
        if self.head_block is None:
            raise asyncio.InvalidStateError("the initial metadata has been sent")
        self.head_block = heads.HEAD_BLOCK + heads.metadata_block(metadata)

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, Value]] = (),
    ) -> NoReturn:
        self.end(code, details, trailing_metadata)
        raise grpc.aio.AbortError("the call has been aborted")

    def set_trailing_metadata(self, metadata: Iterable[tuple[str, Value]]) -> None:
        self._trailing = tuple(metadata)

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def set_details(self, details: str) -> None:
        self._details = details

    def invocation_metadata(self) -> Metadata:
        return self.head.metadata

    def time_remaining(self) -> float | None:
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._wire.loop.time())

    def peer(self) -> str:
        return self._wire.peer

    def done(self) -> bool:
        return self.is_closed

    def cancelled(self) -> bool:
        return self.is_closed and self._code is Status.CANCELLED

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        if self.is_closed:
            callback(self)
        else:
            self._done.append(callback)


class _Requests:
    """All requests of a call, as its method reads them."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        request = await self._call.read()
        if request is grpc.aio.EOF:
            raise StopAsyncIteration
        return request


def _retry_after(error: HeadwayError) -> Metadata:
    seconds = retry_after_s(error)
    return () if seconds is None else (("retry-after", str(seconds)),)


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
