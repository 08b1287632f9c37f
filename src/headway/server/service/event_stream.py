"""A stream of a model as server-sent events, for every route that streams.

What an event looks like is the route's. This file decides when one is written, and closes streams.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

from headway.errors import HeadwayError
from headway.hosting.streaming import ServedStream
from headway.runtime.calling.threads import awaitable
from headway.runtime.driving.streams import AT_ONCE_BYTES
from headway.wire.messages import Out, Sink

EventOf: TypeAlias = Callable[[Any], bytes]  # of a chunk; empty: nothing is written


class Events:
    """An async iterator of bytes. A class, because a generator that was never started cannot close
    what it was given."""

    def __init__(
        self,
        stream: AsyncIterator[Any],
        event_of: EventOf,
        error_of: Callable[[HeadwayError], bytes],
        tail_of: Callable[[], bytes] = bytes,
    ) -> None:
        """`tail_of`: what is written after the last event."""
        self._stream = stream
        self._event_of = event_of
        self.error_of = error_of
        self._tail_of = tail_of
        self._first = b""
        self._ended = False

    async def start(self) -> None:
        """Wait for the first event. An error before it is an ordinary error."""
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
            return self.error_of(error)
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
            # Room first: an event that waits for it would be held twice, as a chunk and encoded.
            await sink.wait_writable()
            while (event := await anext(self, None)) is not None:
                sink.write(event)
                await sink.wait_writable()
            return
        if self._ended:
            return
        try:
            await ToSink(stream, self._event_of, sink).wait_done()
            tail = self._tail_of()
            if tail:
                sink.write(tail)
        except HeadwayError as error:
            sink.write(self.error_of(error))


class Pumping:
    """Takes the chunks that have come, whenever some do, until the end. No task has a turn for
    it."""

    __slots__ = ("_chunks", "_is_held_up", "_out", "_source", "_stream", "done")

    def __init__(self, stream: ServedStream, chunks: list[Any], out: Out | None = None) -> None:
        """`chunks`: where they go. `out`: they are taken as long as it has room."""
        self._chunks = chunks
        self._stream = stream
        self._source = stream.source
        self._out = out
        self._is_held_up = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait_done(self) -> None:
        """Raises what went wrong."""
        self._stream.attach(self.advance)
        try:
            self.advance()  # write the chunks that have come meanwhile
            await self.done
        finally:
            self._stream.attach(None)

    def _take(self, chunks: list[Any]) -> None:
        self._chunks += chunks

    def advance(self) -> None:
        out, source = self._out, self._source
        if out is not None and out.writable is not None:
            self._hold_up(out.writable)
            return
        if self.done.done():
            return
        try:
            self._take(source.take(AT_ONCE_BYTES))
            if source.is_waiting():  # the hot path: a token of many
                return
            if self._stream.is_at_end():
                self.done.set_result(None)
            else:  # more than one turn may take: others go first
                self.done.get_loop().call_soon(self.advance)
        except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
            if not self.done.done():  # else it was cancelled: the client has left
                self.done.set_exception(awaitable(error))

    def _hold_up(self, writable: "asyncio.Future[None]") -> None:
        """The client reads too slowly: chunks wait, up to a limit."""
        if not self._is_held_up:
            self._is_held_up = True
            writable.add_done_callback(self._go_on)

    def _go_on(self, _: object) -> None:
        self._is_held_up = False
        self.advance()


class ToSink(Pumping):
    """Writes the chunks as events, as long as the sink has room."""

    __slots__ = ("_event_of", "_sink")

    def __init__(self, stream: ServedStream, event_of: EventOf, sink: Sink) -> None:
        super().__init__(stream, [], sink.out)
        self._event_of = event_of
        self._sink = sink

    def _take(self, chunks: list[Any]) -> None:
        event_of = self._event_of
        events: list[bytes] = []
        try:
            for chunk in chunks:
                events.append(event_of(chunk))
        finally:  # also those before one that cannot be made
            if written := b"".join(events):  # an empty part would end the answer
                self._sink.write(written)


async def close(stream: AsyncIterator[Any]) -> None:
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()
