"""Parts of many streams are written together: in their turn, or after a short pause."""

import asyncio

import pytest

from headway.server.net.writes import Writes

MOST_PAUSE_S = 0.005


class Connection:
    """Holds parts as a connection does."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._held = b""
        self.written: list[tuple[float, bytes]] = []

    def write(self, part: bytes) -> None:
        if not self._held:
            self._writes.add(self)
        self._held += part
        if not self._writes.is_due:
            self._writes.look()

    def flush(self) -> None:
        held, self._held = self._held, b""
        if held:
            self.written.append((round(asyncio.get_running_loop().time() * 1e3, 3), held))


def streams(count: int, most_pause_s: float = MOST_PAUSE_S) -> list[Connection]:
    writes = Writes(most_pause_s)
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
