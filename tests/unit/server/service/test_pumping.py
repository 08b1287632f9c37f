"""A stream's chunks on their way to a client: at once while it has room, else in their order."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headway.errors import HeadwayError, ModelFailed
from headway.hosting.registry import Ask
from headway.hosting.streaming import ServedStream
from headway.model import END
from headway.runtime.driving.streams import OpenStream, StreamCall, wake_all
from headway.server.service.event_stream import Events


class Connection:
    """A sink that is full when the test says so."""

    def __init__(self) -> None:
        self.writable: asyncio.Future[None] | None = None
        self.written: list[bytes] = []

    @property
    def out(self) -> Any:
        return self

    async def wait_writable(self) -> None:
        if self.writable is not None:
            await self.writable

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def fill(self) -> None:
        self.writable = asyncio.get_running_loop().create_future()

    def make_room(self) -> None:
        """Like a transport: its waiter is told one turn of the loop later."""
        assert self.writable is not None
        self.writable.set_result(None)
        self.writable = None


class Host:
    """A model of one stream."""

    clock = staticmethod(lambda: 0.0)

    def __init__(self) -> None:
        self.call = StreamCall(0, None, asyncio.get_running_loop())

    async def open_stream(self, value: Any, ask: Ask) -> OpenStream:
        return OpenStream(self.call, lambda call: None)

    @contextmanager
    def held(self) -> Iterator[None]:
        yield

    def record(self, rows: int, started: float, error: BaseException | None) -> None: ...

    def step(self, chunk: Any) -> None:
        """As a model in the reader's own loop hands over."""
        if self.call.put(chunk):
            wake_all([self.call])


def event_of(chunk: Any) -> bytes:
    if chunk == "bad":
        raise ModelFailed("no event can be made of it")
    return str(chunk).encode()


def error_of(error: HeadwayError) -> bytes:
    return b"error"


async def begun() -> tuple[Host, Connection, "asyncio.Task[None]"]:
    host, connection = Host(), Connection()
    host.step("first")
    events = Events(ServedStream(host, None, Ask()), event_of, error_of, lambda: b"tail")
    await events.start()
    assert await anext(events) == b"first"
    host.step("before")  # while nobody is attached
    task = asyncio.ensure_future(events.pump(connection))
    await asyncio.sleep(0)
    return host, connection, task


async def test_a_chunk_is_written_before_the_step_returns() -> None:
    host, connection, task = await begun()
    host.step("a")
    assert connection.written == [b"before", b"a"]
    host.step("")
    assert connection.written == [b"before", b"a"]  # nothing to write
    host.step(END)
    await task
    assert connection.written == [b"before", b"a", b"tail"]


async def test_no_chunk_passes_one_that_waits_in_the_queue() -> None:
    """Its reader is told in a later turn; the sink has room all the time."""
    host, connection, task = await begun()
    host.call.put("a")
    host.step("b")
    host.step(END)
    await task
    assert b"".join(connection.written) == b"beforeabtail"


async def test_chunks_for_a_slow_client_wait_and_keep_their_order() -> None:
    host, connection, task = await begun()
    connection.fill()
    host.step("a")
    host.step("b")
    assert connection.written == [b"before"]
    connection.make_room()
    host.step("c")  # there is room, but those that wait come first
    await asyncio.sleep(0)
    assert connection.written == [b"before", b"abc"]
    host.step("d")
    assert connection.written[-1] == b"d"
    connection.fill()
    host.step("e")
    host.step(END)
    await asyncio.sleep(0)
    assert not task.done()
    connection.make_room()
    await task
    assert connection.written[-2:] == [b"e", b"tail"]


async def test_a_client_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.runtime.driving.streams.MAX_BACKLOG", 3)
    host, connection, task = await begun()
    connection.fill()
    for number in range(5):
        host.step(number)
    assert host.call.has_ended
    connection.make_room()
    await task
    assert connection.written == [b"before", b"012", b"error"]


async def test_no_event_is_made_for_a_client_that_has_no_room() -> None:
    """It would wait beside the chunk that it was made of; eight of a megabyte each did."""
    asked: list[int] = []

    async def numbers() -> AsyncIterator[int]:
        for number in range(4):
            asked.append(number)
            yield number

    connection = Connection()
    events = Events(numbers(), event_of, error_of)
    await events.start()
    assert await anext(events) == b"0"
    connection.fill()
    task = asyncio.ensure_future(events.pump(connection))
    for _ in range(5):
        await asyncio.sleep(0)
    assert asked == [0]
    connection.make_room()
    await task
    assert connection.written == [b"1", b"2", b"3"]


async def test_a_step_for_a_client_that_has_just_left_harms_nobody() -> None:
    """Its connection raises, and its task does not know yet."""
    host, connection, task = await begun()

    def lost(data: bytes) -> None:
        raise ConnectionResetError

    connection.write = lost  # type: ignore[method-assign]
    task.cancel()
    host.step("a")
    host.step("b")
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_event_that_cannot_be_made_ends_the_stream_alone() -> None:
    host, connection, task = await begun()
    host.step("bad")
    host.step("later")
    await task
    assert connection.written == [b"before", b"error"]


async def test_events_before_one_that_cannot_be_made_are_written() -> None:
    """Chunks of a slow client are taken together."""
    host, connection, task = await begun()
    connection.fill()
    for chunk in ("a", "b", "bad", "later"):
        host.step(chunk)
    connection.make_room()
    await task
    assert b"".join(connection.written) == b"beforeaberror"
