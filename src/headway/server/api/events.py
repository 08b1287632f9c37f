"""A stream of a model as server-sent events, for every route that streams.

What an event looks like is the route's; when one is written, and what closes, is said here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from headway.errors import HeadwayError
from headway.hosting.streaming import ServedStream
from headway.server.net.messages import Sink


class Events:
    """An async iterator of bytes. A class, because a generator that was never started cannot close
    what it was given."""

    def __init__(
        self,
        stream: AsyncIterator[Any],
        event_of: Callable[[Any], bytes],
        error_of: Callable[[HeadwayError], bytes],
        tail_of: Callable[[], bytes] = bytes,
    ) -> None:
        """`event_of` may answer nothing, which is not written; `tail_of`: after the last."""
        self._stream = stream
        self._event_of = event_of
        self._error_of = error_of
        self._tail_of = tail_of
        self._first = b""
        self._ended = False

    async def start(self) -> None:
        """What fails before the first event is an ordinary error."""
        try:
            self._first = self._event_of(await anext(self._stream))
        except StopAsyncIteration:
            self._first = self._end()
        except BaseException:
            await self.aclose()
            raise

    def __aiter__(self) -> "Events":
        return self

    async def __anext__(self) -> bytes:
        event, self._first = self._first, b""
        try:
            while not event and not self._ended:
                event = self._event_of(await anext(self._stream))
        except StopAsyncIteration:
            event = self._end()
        except HeadwayError as error:
            await self.aclose()
            return self._error_of(error)
        if not event:
            raise StopAsyncIteration
        return event

    def _end(self) -> bytes:
        self._ended = True
        return self._tail_of()

    async def aclose(self) -> None:
        self._first, self._ended = b"", True
        await close(self._stream)

    async def pump(self, sink: Sink) -> None:
        """The rest of the events, each as it comes, without a task's turn for it."""
        stream = self._stream
        if not isinstance(stream, ServedStream):
            async for event in self:
                await sink.wait_writable()
                sink.write(event)
            return
        if self._ended:
            return
        pumping = Pumping(stream, self._event_of, sink)
        stream.attach(pumping.advance, pumping.write)
        try:
            pumping.advance()  # what has come meanwhile
            await pumping.done
            tail = self._tail_of()
            if tail:
                sink.write(tail)
        except HeadwayError as error:
            sink.write(self._error_of(error))
        finally:
            stream.attach(None)


class Pumping:
    """Moves what has come to the sink, as long as that has room."""

    __slots__ = ("_event_of", "_is_clear", "_sink", "_stream", "done")

    def __init__(self, stream: ServedStream, event_of: Callable[[Any], bytes], sink: Sink) -> None:
        self._stream = stream
        self._event_of = event_of
        self._sink = sink
        self._is_clear = True  # no chunk waits in the stream for the sink, and it is not done
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write(self, chunk: Any) -> bool:
        """The hot path: a chunk goes to the sink without a stay in the stream."""
        sink = self._sink
        if not self._is_clear or sink.writable is not None:
            return False
        try:
            event = self._event_of(chunk)
            if event:  # an empty chunk would end the answer
                sink.write(event)
        except BaseException as error:  # noqa: BLE001 - the waiting caller is told
            self._fail(error)
        return True

    def advance(self) -> None:
        if self.done.done():
            return
        writable = self._sink.writable
        if writable is not None:  # the client reads too slowly: chunks wait, up to a limit
            if self._is_clear:
                self._is_clear = False
                writable.add_done_callback(self._go_on)
            return
        try:
            events = b"".join([self._event_of(chunk) for chunk in self._stream.take()])
            if events:
                self._sink.write(events)
            if self._stream.is_at_end():
                self._is_clear = False
                self.done.set_result(None)
        except BaseException as error:  # noqa: BLE001 - the waiting caller is told
            self._fail(error)

    def _go_on(self, _: object) -> None:
        if not self.done.done():
            self._is_clear = True
            self.advance()

    def _fail(self, error: BaseException) -> None:
        self._is_clear = False
        if not self.done.done():  # it was cancelled: the client has left
            self.done.set_exception(error)


async def close(stream: AsyncIterator[Any]) -> None:
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()
