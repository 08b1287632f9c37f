"""The state of one gRPC call: the bytes of its request, its status, and the bytes to be sent."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from headway.errors import HeadwayError, QueueFull
from headway.wire.compression import decompress
from headway.wire.http2 import heads
from headway.wire.http2.heads import CallHead, Metadata, Value
from headway.wire.http2.inbox import Broken, GrpcMessage, MessageInbox, TooLong
from headway.wire.http2.method import Method
from headway.wire.http2.outbox import Outbox
from headway.wire.http2.status import Status
from headway.wire.messages import Pending

if TYPE_CHECKING:
    from headway.wire.http2.connection import Connection

OPEN_BYTES = 16 * 2**10  # of a message of a method that needs no key: it is a name at most
WINDOW = 2**20  # bytes that a stream may send ahead of its reader
CALL_BYTES = 2**12  # counted for each call that waits for the rest of its request
_RETRY_AFTER: Metadata = (("retry-after", "1"),)
_UNPACK_IN_THREAD = 2**9  # bytes; what is smaller unpacks to half a megabyte at most


class CallState:
    """The state of a call, without the method: the base class of `GrpcCall`, which runs it."""

    __slots__ = (
        *("_base_bytes", "_code", "_deadline", "_details", "_done", "_held_bytes", "_inbox"),
        *("_owed", "_reader", "_timer", "_trailing", "_wire", "_work", "_writer", "caller"),
        *("due_at", "head", "head_block", "head_cost", "id", "is_closed", "is_over", "is_received"),
        *("is_refused", "method", "outbox", "send_window", "started_at", "trailers"),
    )

    def __init__(
        self,
        wire: "Connection",
        stream_id: int,
        head: CallHead,
        method: Method,
        window: int,
        now: float,
    ) -> None:
        self._wire = wire
        self.method = method
        self.id = stream_id
        self.head = head
        self.started_at = now
        self.is_received = False  # all that the client sends
        self.is_over = False  # its status is known
        self.is_closed = False  # and has left, or is not wanted
        self.is_refused = False  # nothing was done for it
        # The connection's:
        self.send_window = window
        self.head_cost = 0  # what reading its head has cost, of the connection's budget
        self.head_block: bytes | None = heads.HEAD_BLOCK  # None: it has been sent
        self.outbox: Outbox | None = None  # what the windows have no room for
        self.trailers: bytes | None = None  # to be sent after it
        self.caller: Any = None  # what the server's `admit` found
        self.due_at: float  # by when a slow peer should have taken the outbox

        self._inbox: MessageInbox | None = None
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

    # ---- its request

    def _limit_bytes(self) -> int:
        """The size limit of one message."""
        limit_bytes = self._wire.limit_bytes
        return min(limit_bytes, OPEN_BYTES) if self.method.is_open else limit_bytes

    def _open_inbox(self) -> MessageInbox:
        """Hold and count a request that comes in parts; a plain request never comes here."""
        self._base_bytes += CALL_BYTES
        self._hold(0)
        self._inbox = MessageInbox(self._limit_bytes())
        return self._inbox

    async def _unpacked(self, message: GrpcMessage) -> bytes:
        """The message, unpacked and counted: a small packed one may become large."""
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

    def _give_back(self, kept_bytes: int = 0) -> None:
        """Let the peer send more, in bulk: one window update for many frames."""
        size = self._owed - kept_bytes
        if size >= WINDOW // 2 and not self.is_received:
            self._owed = kept_bytes
            self._wire.give_back(self, size)

    def _refuse_request(self, error: Exception) -> None:
        """Refuse a request that cannot be read. That is the client's mistake, so it is not
        logged."""
        self.is_refused = True
        match error:
            case TooLong():
                self.end(Status.RESOURCE_EXHAUSTED, str(error))
            case Broken():
                self.end(Status.INTERNAL, str(error))
            case QueueFull():
                self.end(Status.UNAVAILABLE, str(error), _RETRY_AFTER)
            case HeadwayError():  # it does not unpack, or to too much
                self.end(Status.INVALID_ARGUMENT, str(error))
            case _:
                self.end(Status.INTERNAL, "the request cannot be parsed")
        self._stop_work()
        self._let_go()
        self._wire.charge_refused()

    # ---- what is counted for it

    def _hold(self, size_bytes: int) -> None:
        """Count `size_bytes` for this call until it is closed. Raises QueueFull."""
        held_bytes = 0 if self.is_closed else self._base_bytes + size_bytes
        self._wire.hold(held_bytes - self._held_bytes)
        self._held_bytes = held_bytes

    def _let_go(self) -> None:
        """Free the received messages now: waiting for the garbage collector would be too late."""
        if self._inbox is not None:
            self._inbox.clear()
        self._base_bytes = 0
        if self._held_bytes:
            self._hold(0)

    def hold_answer(self) -> None:
        """Count the part of the answer that the peer has not taken. Raises QueueFull."""
        if self.is_over and self._inbox is not None:
            self._inbox.clear()
        self._hold(0 if self.outbox is None else len(self.outbox))

    def wake_writer(self) -> None:
        wake(self._writer)

    # ---- its end

    def end(
        self, code: Status, message: str = "", metadata: Iterable[tuple[str, Value]] = ()
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
            block = heads.trailers_block(code, message, self._trailing)
        self._wire.finish(self, block)

    def _stop_work(self) -> "asyncio.Task[None] | None":
        """Cancel the method. Returns its task if that is still cleaning up."""
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
        """Close the call: its last byte was sent, or never will be."""
        if self.is_closed:
            return
        self.is_closed = self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        wake(self._reader)
        wake(self._writer)
        if self._held_bytes or self._inbox is not None:
            self._let_go()
        if self._done:
            done, self._done = self._done, []
            for callback in done:
                callback(self)


def wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
