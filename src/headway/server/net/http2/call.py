"""One call of gRPC on one stream: it collects the request, runs the method, and is the context
that the method sees, with the face of grpc.aio's. It knows no frames and no windows but its own."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any, NoReturn, Self

import grpc

from headway.errors import HeadwayError, QueueFull
from headway.server.app import Pending
from headway.server.auth.keys import Caller
from headway.server.errors import is_asked_to_stop, retry_after_s, status_of
from headway.server.grpc.calls import OPEN_BYTES, Unparsed
from headway.server.net.compression import decompress
from headway.server.net.http2 import heads
from headway.server.net.http2.frames import Code, StreamFailed
from headway.server.net.http2.heads import Head, Metadata, Value
from headway.server.net.http2.inbox import Broken, Inbox, Message, TooLong, framed, whole
from headway.server.net.http2.method import Method, Wire

_log = logging.getLogger(__name__)
Status = grpc.StatusCode
WINDOW = 2**20  # bytes that a stream may send ahead of its reader
ENCODINGS = frozenset(["identity", "gzip", "deflate"])
CALL_BYTES = 2**12  # counted for a call that waits for its request, whatever it has sent
_UNPACK_IN_THREAD = 2**9  # bytes; what is smaller unpacks to half a megabyte at most
_SMALL = 2**10  # bytes of a whole message that are not counted


class Call:
    __slots__ = (
        "_base_bytes",
        "_code",
        "_deadline",
        "_details",
        "_done",
        "_held_bytes",
        "_inbox",
        "_owed",
        "_reader",
        "_timer",
        "_trailing",
        "_wire",
        "_work",
        "_writer",
        "caller",
        "due_at",
        "head",
        "head_block",
        "head_cost",
        "id",
        "is_closed",
        "is_over",
        "is_received",
        "is_refused",
        "method",
        "outbox",
        "send_window",
        "started_at",
        "trailers",
    )

    def __init__(
        self, wire: Wire, stream_id: int, head: Head, method: Method, window: int, now: float
    ) -> None:
        self._wire = wire
        self.method = method
        self.id = stream_id
        self.head = head
        self.started_at = now
        self.is_received = False  # all that the client sends
        self.is_over = False  # its status is known
        self.is_closed = False  # and has left, or nobody wants it
        self.is_refused = False  # nothing was done for it
        # The connection's:
        self.send_window = window
        self.head_cost = 0  # what reading its head has cost, of the connection's budget
        self.head_block: bytes | None = heads.HEAD_BLOCK  # None: it has been sent
        self.outbox: bytearray | None = None  # what the windows have no room for
        self.trailers: bytes | None = None  # to be sent after it
        self.caller: Caller | None  # where there are keys
        self.due_at: float  # by when a slow peer should have taken the outbox

        self._inbox: Inbox | None = None
        self._owed = 0  # bytes received and not yet given back to its window
        self._base_bytes = 0  # counted as long as it lives
        self._held_bytes = 0  # that its connection counts
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

    def start(self, head_bytes: int) -> None:
        """Its head is here; so much of it is worth counting."""
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
            self._work = loop.create_task(self._run(_Requests(self)))

    def receive(self, data: bytes, size_bytes: int, *, is_last: bool) -> None:
        """`size_bytes` counts against its window. Raises StreamFailed."""
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
        if self._held_bytes or self._inbox is not None:
            self._let_go()
        if self._done:
            done, self._done = self._done, []
            for callback in done:
                callback(self)

    def wake_writer(self) -> None:
        _wake(self._writer)

    def is_late(self, now: float, limit_s: float) -> bool:
        """Whether its one request takes longer than that to arrive."""
        is_arriving = not self.method.takes_stream and not self.is_received
        return is_arriving and now - self.started_at > limit_s

    # ---- the direct way: a whole answer without a task

    def answer(self, body: bytes) -> None:
        if not self.is_over:
            self.is_over = True
            self._work = None
            self._wire.send_answer(self, body)

    def fail(self, error: BaseException) -> None:
        self._work = None
        assert self.method.direct is not None
        code, message, metadata = self.method.direct.refusal_of(error)
        self.end(code, message, metadata)

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
        method = self.method
        try:
            request = self._parsed(data)
        except Exception as error:  # noqa: BLE001 - protobuf's own, and there are three of them
            self._refuse_request(error)
            return
        if method.direct is not None and self.head.is_plain:
            self._work = method.direct.start(request, self)
            if self._work is not None:
                return
        self._work = self._wire.loop.create_task(self._run(request))

    def _limit_bytes(self) -> int:
        """Of a message."""
        limit_bytes = self._wire.limit_bytes
        return min(limit_bytes, OPEN_BYTES) if self.method.is_open else limit_bytes

    def _parsed(self, data: bytes) -> Any:
        request = self.method.parse(data)
        if type(request) is Unparsed:
            self._hold(0)  # whoever parses it counts it, with what it grows to
        return request

    def _collect(self, data: bytes) -> None:
        inbox = self._open_inbox() if self._inbox is None else self._inbox
        inbox.feed(data)
        self._hold(len(inbox))
        if self.method.takes_stream:
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
        """So much is counted for it, until it is closed. Raises QueueFull."""
        held_bytes = 0 if self.is_closed else self._base_bytes + size_bytes
        self._wire.hold(held_bytes - self._held_bytes)
        self._held_bytes = held_bytes

    def _let_go(self) -> None:
        """Of what came. A collection of garbage would be too late."""
        if self._inbox is not None:
            self._inbox.clear()
        self._base_bytes = 0
        if self._held_bytes:
            self._hold(0)

    def hold_answer(self) -> None:
        """What the peer does not take. Raises QueueFull."""
        if self.is_over and self._inbox is not None:
            self._inbox.clear()
        self._hold(len(self.outbox or b""))

    def _open_inbox(self) -> Inbox:
        """What comes in parts is held, and counted: a plain request never comes here."""
        self._base_bytes += CALL_BYTES
        self._hold(0)
        self._inbox = Inbox(self._limit_bytes())
        return self._inbox

    def _refuse_request(self, error: Exception) -> None:
        """What came cannot be read. That is the client's mistake: it is not logged."""
        self.is_refused = True
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
        self._let_go()
        self._wire.charge_refused()

    def _give_back(self, kept_bytes: int = 0) -> None:
        """In bulk: not for every frame a frame."""
        size = self._owed - kept_bytes
        if size >= WINDOW // 2 and not self.is_received:
            self._owed = kept_bytes
            self._wire.give_back(self, size)

    async def _unpacked(self, message: Message) -> bytes:
        """And counted: a small message may be a large one, packed."""
        data, limit = message.data, self._limit_bytes()
        if not message.is_compressed:
            return data
        if self.head.encoding == "identity":
            raise Broken("a compressed message on a call without a compression")
        if len(data) < _UNPACK_IN_THREAD:
            found = decompress(data, limit=limit)
        else:
            async with self._wire.unpacking:  # each may take the limit before it is counted
                found = await asyncio.to_thread(decompress, data, limit=limit)
        self._hold(len(self._inbox or b"") + len(found))
        return found

    # ---- running

    async def _run_packed(self, message: Message) -> None:
        try:
            request = self._parsed(await self._unpacked(message))
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
            return self.method.parse(await self._unpacked(message))
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
        if self.is_over:
            return  # nobody listens any more
        self._wire.send(self, framed(self.method.serialise(message)))
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
