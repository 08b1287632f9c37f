"""Parts of many streams are written together: in their turn, or after a short pause."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headway.errors import Shed
from headway.model import END
from headway.runtime.driving.streams import OpenStream, StepQueue, StreamCall
from headway.server.service.event_stream import ToSink
from headway.wire.writes import StreamSink, Writes

MOST_PAUSE_S = 0.005


class Connection(StreamSink):
    """Its own way out."""

    writable = None

    def __init__(self, writes: Writes) -> None:
        super().__init__(writes, self)
        self.written: list[tuple[float, bytes]] = []

    def send(self, data: bytes) -> None:
        self.written.append((round(asyncio.get_running_loop().time() * 1e3, 3), data))


def streams(count: int, most_pause_s: float = MOST_PAUSE_S) -> list[Connection]:
    writes = Writes(most_pause_s, asyncio.get_running_loop().time)
    return [Connection(writes) for _ in range(count)]


async def run(connections: list[Connection], *at_ms: float) -> list[tuple[float, bytes]]:
    """One step at each of these times; when a stream's parts left. It is the same for all."""
    loop = asyncio.get_running_loop()
    began_ms = loop.time() * 1e3
    for number, each in enumerate(at_ms):
        await asyncio.sleep(began_ms / 1e3 + each / 1e3 - loop.time())
        for connection in connections:
            connection.write(b"%d" % number)
        await asyncio.sleep(0)
    await asyncio.sleep(1.0)
    [written] = {tuple(connection.written) for connection in connections}
    return [(round(left - began_ms, 3), held) for left, held in written]


async def test_steps_that_are_as_far_apart_as_the_pause_leave_as_they_come() -> None:
    assert await run(streams(64), 0, 5, 10, 15.5) == [
        *((0, b"0"), (5, b"1"), (10, b"2"), (15.5, b"3"))
    ]


async def test_faster_steps_share_writes() -> None:
    assert await run(streams(64), 0, 2, 4, 6, 8, 10, 12) == [(0, b"0"), (6, b"123"), (12, b"456")]


async def test_what_came_in_the_pause_does_not_wait_for_more_than_another_pause() -> None:
    assert await run(streams(64), 0, 1) == [(0, b"0"), (10, b"1")]


@pytest.mark.parametrize(("count", "left"), [(9, [0, 1, 2, 3]), (20, [0, 2, 6])])
async def test_the_pause_grows_with_the_streams(count: int, left: list[float]) -> None:
    """Fewer than ten are never held up."""
    written = await run(streams(count), 0, 1, 2, 3)
    assert [at for at, _ in written] == left
    assert b"".join(held for _, held in written) == b"0123"


async def test_without_an_interval_every_part_leaves_in_its_turn() -> None:
    assert await run(streams(500, 0.0), 0, 0.5, 1) == [(0, b"0"), (0.5, b"1"), (1, b"2")]


async def test_parts_of_one_turn_are_one_write() -> None:
    [connection] = streams(1)
    connection.write(b"a")
    connection.write(b"b")
    assert not connection.written  # nothing is written while events are made
    await asyncio.sleep(0)
    assert [held for _, held in connection.written] == [b"ab"]


class Model:
    """As in a thread: it puts a chunk of each stream."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.connections = streams(count)
        self.readers_loop: Any = _Loop(self._loop)
        self.calls = [StreamCall(number, None, self.readers_loop) for number in range(count)]
        self.queue = StepQueue(self.calls)
        self._readers: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        for call, connection in zip(self.calls, self.connections, strict=True):
            stream: Any = OpenStream(call, lambda call: None)
            reader = ToSink(stream, lambda chunk: str(chunk).encode(), connection)
            self._readers.append(asyncio.create_task(reader.wait_done()))
        await asyncio.sleep(0)

    async def run(self, *steps: tuple[float, Any]) -> None:
        """At each of these times, in milliseconds, this entry for all, or these for some."""
        began = self._loop.time()
        for at_ms, entry in steps:
            await asyncio.sleep(began + at_ms / 1e3 - self._loop.time())
            of = entry if isinstance(entry, dict) else dict.fromkeys(range(len(self.calls)), entry)
            self.queue.deliver([of.get(number) for number in range(len(self.calls))])
        await asyncio.sleep(1.0)

    def written(self, number: int) -> list[tuple[float, bytes]]:
        return self.connections[number].written

    async def end(self) -> None:
        self.queue.deliver([END] * len(self.calls))
        await asyncio.gather(*self._readers)


class _Loop:
    """The readers', as seen from another thread: nothing is done there before it is told."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self.call_soon = loop.call_soon
        self.create_future = loop.create_future

    def call_soon_threadsafe(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._loop.call_soon(callback, *arguments)


async def test_steps_of_a_model_that_come_in_the_pause_share_a_write() -> None:
    model = Model(64)
    await model.begin()
    await model.run(*((at_ms, str(at_ms)) for at_ms in (0, 2, 4, 6, 8, 10, 12)))
    assert [held for _, held in model.written(63)] == [b"0", b"246", b"81012"]
    await model.end()


async def test_what_came_in_the_pause_leaves_though_nothing_follows() -> None:
    model = Model(64)
    await model.begin()
    await model.run((0, "a"), (1, "b"))
    assert [held for _, held in model.written(7)] == [b"a", b"b"]
    [at, later] = [at for at, _ in model.written(7)]
    assert later == at + 10
    await model.end()


async def test_what_came_in_the_pause_leaves_with_another_streams_part() -> None:
    """That stream's write ends the pause, and its own is too short to be one."""
    model = Model(64)
    await model.begin()
    await model.run((0, "a"), (1, {0: "b"}), (6, {1: "c"}))
    [(_, first), (at, second)] = model.written(0)
    assert (first, second) == (b"a", b"b")
    assert at == model.written(1)[1][0]
    await model.end()


async def test_what_is_no_text_waits_in_its_order_too() -> None:
    model = Model(64)
    await model.begin()
    await model.run((0, "a"), (1, "b"), (2, 7), (3, "c"))
    assert [held for _, held in model.written(5)] == [b"a", b"b7c"]
    await model.end()


async def test_a_failure_in_the_pause_comes_after_what_came_before_it() -> None:
    model = Model(64)
    await model.begin()
    asyncio.get_running_loop().call_later(0.002, model.calls[3].fail, Shed("no more"))
    await model.run((0, "a"), (1, "b"))
    assert b"".join(held for _, held in model.written(3)) == b"ab"
    assert [held for _, held in model.written(4)] == [b"a", b"b"]
    with pytest.raises(Shed, match="no more"):
        await model.end()
