"""A stream of a model as server-sent events, for every route that streams.

What an event looks like is the route's; when one is written, and what closes, is said here. An
event that is large is made off the event loop, and only once its client has room for it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from headway.errors import HeadwayError
from headway.hosting.streaming import ServedStream
from headway.runtime.calling.threads import awaitable
from headway.runtime.driving.streams import AT_ONCE_BYTES, Direct
from headway.server.bodies.background import Steps, Work, made
from headway.server.bodies.encoding import MOST_CHARACTERS, encode_in_steps
from headway.signature.foreign import plain_of
from headway.wire.messages import Sink

EventOf: TypeAlias = Callable[[Any], bytes | Work]  # of a chunk; of a large one the work
# Of several chunks that are short texts, the commonest ones; nothing, where others are among them.
TextsOf: TypeAlias = Callable[[Sequence[Any]], bytes]
_encode = msgspec.json.Encoder().encode


class TextEvents:
    """Events that differ in one text."""

    __slots__ = ("_after", "_before")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._after = after

    def of(self, chunks: Sequence[Any]) -> bytes:
        before, after, events = self._before, self._after, []
        try:
            for chunk in chunks:
                if type(chunk) is not str or len(chunk) > MOST_CHARACTERS:
                    return b""
                events.append(before + _encode(chunk) + after)
        except UnicodeError:  # half of a surrogate pair
            return b""
        return b"".join(events)


def _no_texts(chunks: Sequence[Any]) -> bytes:
    return b""


class Events:
    """An async iterator of bytes. A class, because a generator that was never started cannot close
    what it was given."""

    def __init__(
        self,
        stream: AsyncIterator[Any],
        event_of: EventOf,
        error_of: Callable[[HeadwayError], bytes],
        tail_of: Callable[[], bytes] = bytes,
        texts_of: TextsOf = _no_texts,
    ) -> None:
        """`event_of` may answer nothing, which is not written; `tail_of`: after the last.
        `texts_of`: what `event_of` gives, in one call."""
        self._stream = stream
        self._event_of = event_of
        self.error_of = error_of
        self._tail_of = tail_of
        self._texts_of = texts_of
        self._first = b""
        self._ended = False

    async def start(self) -> None:
        """What fails before the first event is an ordinary error."""
        try:
            self._first = await made(self._event_of(await anext(self._stream)))
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
                event = await made(self._event_of(await anext(self._stream)))
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
            await ToSink(stream, self._event_of, sink, self._texts_of).wait_done()
            tail = self._tail_of()
            if tail:
                sink.write(tail)
        except HeadwayError as error:
            sink.write(self.error_of(error))


class Slow(NamedTuple):
    """Chunks of which the first takes long to spell."""

    event: Work
    rest: Sequence[Any]


class Pumping:
    """Takes what has come, whenever something does, until the end: no task has a turn for it, but
    for what is slow."""

    __slots__ = ("_direct", "_stream", "_take", "done")

    def __init__(
        self,
        stream: ServedStream,
        take: Callable[[list[Any]], Slow | None],
        direct: Direct | None = None,
    ) -> None:
        self._stream = stream
        self._take = take
        self._direct = direct
        # Done at the end, and whenever there is something slow: until that is written, the rest
        # waits in the stream.
        self.done: asyncio.Future[Slow | None] = asyncio.get_running_loop().create_future()

    async def wait_done(self) -> None:
        """Raises what went wrong."""
        self._stream.attach(self.advance, self._direct)
        try:
            self.advance()  # what has come meanwhile
            while (slow := await self.done) is not None:
                await self._wait_written(slow)
                self.done = asyncio.get_running_loop().create_future()
                self.advance()
        finally:
            self._stream.attach(None)

    async def _wait_written(self, slow: Slow) -> None:
        raise NotImplementedError

    def advance(self) -> None:
        if self.done.done():
            return
        try:
            slow = self._take(self._stream.take(AT_ONCE_BYTES))
            if slow is not None:
                self.done.set_result(slow)
            elif self._stream.is_at_end():
                self.done.set_result(None)
            elif self._stream.has_chunks():
                self._come_back()
        except BaseException as error:  # noqa: BLE001 - the waiting caller is told
            self._fail(error)

    def _come_back(self) -> None:
        """There is more than one turn may take: others have theirs first."""
        self.done.get_loop().call_soon(self.advance)

    def _fail(self, error: BaseException) -> None:
        if not self.done.done():  # else it was cancelled: the client has left
            self.done.set_exception(awaitable(error))


class ToSink(Pumping):
    """Writes what comes as events, as long as the sink has room."""

    __slots__ = ("_event_of", "_is_clear", "_is_held_up", "_out", "_sink", "_texts_of")

    def __init__(
        self,
        stream: ServedStream,
        event_of: EventOf,
        sink: Sink,
        texts_of: TextsOf = _no_texts,
    ) -> None:
        super().__init__(stream, self._write, self._write_direct)
        self._event_of = event_of
        self._texts_of = texts_of
        self._sink = sink
        self._out = sink.out
        self._is_held_up = False
        self._is_clear = False  # no chunk waits in the stream, and there may be more

    def advance(self) -> None:
        writable = self._out.writable
        if writable is None:
            super().advance()
            self._is_clear = not self.done.done() and not self._stream.has_chunks()
        elif not self._is_held_up:  # the client reads too slowly: chunks wait, up to a limit
            self._is_held_up, self._is_clear = True, False
            writable.add_done_callback(self._go_on)

    def _come_back(self) -> None:
        self._sink.call_in_turn(self.advance)

    def _go_on(self, _: object) -> None:
        self._is_held_up = False
        self.advance()

    def _write_direct(self, chunks: Sequence[Any]) -> bool:
        """The hot path: chunks go to the sink without a stay in the stream."""
        if not self._is_clear or self._out.writable is not None:
            self._is_clear = False  # they wait now, and the next ones behind them
            return False
        try:
            if written := self._texts_of(chunks):
                self._sink.write(written)
                return True
            slow = self._write(chunks)
        except BaseException as error:  # noqa: BLE001 - the waiting caller is told
            self._is_clear = False
            self._fail(error)
            return True
        if slow is not None:
            self._is_clear = False
            if not self.done.done():  # else it was cancelled: the client has left
                self.done.set_result(slow)
        return True

    def _write(self, chunks: Sequence[Any]) -> Slow | None:
        event_of = self._event_of
        events: list[bytes] = []
        try:
            for count, chunk in enumerate(chunks, 1):
                event = event_of(chunk)
                if not isinstance(event, bytes):
                    return Slow(event, chunks[count:])
                events.append(event)
        finally:  # also those before one that cannot be made, or is slow
            if written := b"".join(events):  # an empty part would end the answer
                self._sink.write(written)
        return None

    async def _wait_written(self, slow: Slow) -> None:
        sink, event = self._sink, await made(slow.event)
        sink.write(event)
        for chunk in slow.rest:
            await sink.wait_writable()
            if event := await made(self._event_of(chunk)):
                sink.write(event)


def event_in_steps(value: Any, steps: Steps) -> bytes:
    """Of a large value: its JSON as an event's data."""
    return encode_in_steps(value, plain_of, steps, start=b"data: ", end=b"\n\n")


async def close(stream: AsyncIterator[Any]) -> None:
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()
