"""A stream of a model as server-sent events, for every route that streams.

What an event looks like is the route's; when one is written, and what closes, is said here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from headway.errors import HeadwayError
from headway.hosting.streaming import ServedStream
from headway.runtime.driving.streams import AT_ONCE_BYTES
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
                if len(event) > AT_ONCE_BYTES:  # the next may be there, and is encoded first
                    await turn_of(sink)
            return
        if self._ended:
            return
        pumping = Pumping(stream, self._event_of, sink)
        stream.attach(pumping.advance)
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

    def __init__(self, stream: ServedStream, event_of: Callable[[Any], bytes], sink: Sink) -> None:
        self._stream = stream
        self._event_of = event_of
        self._sink = sink
        self._is_held_up = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def advance(self) -> None:
        if self.done.done():
            return
        writable = self._sink.writable
        if writable is not None:  # the client reads too slowly: chunks wait, up to a limit
            if not self._is_held_up:
                self._is_held_up = True
                writable.add_done_callback(self._go_on)
            return
        try:
            chunks = self._stream.take(AT_ONCE_BYTES)
            events = b"".join([self._event_of(chunk) for chunk in chunks])
            if events:  # an empty chunk would end the answer
                self._sink.write(events)
            if self._stream.is_at_end():
                self.done.set_result(None)
            elif self._stream.has_chunks():
                self._sink.call_in_turn(self.advance)
        except BaseException as error:  # noqa: BLE001 - the waiting caller is told
            self.done.set_exception(error)

    def _go_on(self, _: object) -> None:
        self._is_held_up = False
        self.advance()


async def turn_of(sink: Sink) -> None:
    turn = asyncio.Event()
    sink.call_in_turn(turn.set)
    await turn.wait()


async def close(stream: AsyncIterator[Any]) -> None:
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()
