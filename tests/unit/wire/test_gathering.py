"""What streams of one connection send in a turn is one write, and nothing passes it."""

import asyncio
from typing import Any

from headway.wire.http2.joined_writes import GatheringTransport


class Wire(asyncio.Transport):
    """Keeps each write by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.writes.append(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        self.writes.append(b"eof")

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


def connected() -> tuple[Wire, GatheringTransport]:
    wire = Wire()
    return wire, GatheringTransport(wire, asyncio.get_running_loop())


async def test_what_comes_in_one_turn_is_one_write() -> None:
    wire, transport = connected()
    for data in (b"a", b"b", b"c"):
        transport.gather(data)
    assert wire.writes == []
    await asyncio.sleep(0)
    transport.gather(b"d")
    await asyncio.sleep(0)
    assert wire.writes == [b"abc", b"d"]


async def test_nothing_passes_what_was_gathered() -> None:
    wire, transport = connected()
    transport.gather(b"a")
    transport.write(b"trailers")
    transport.gather(b"b")
    transport.writelines([b"c", b"d"])
    transport.gather(b"e")
    transport.write_eof()
    transport.gather(b"f")
    transport.close()
    await asyncio.sleep(0)
    assert wire.writes == [b"a", b"trailers", b"b", b"cd", b"e", b"eof", b"f"]


async def test_much_is_written_at_once() -> None:
    """So that the connection soon knows whether its peer reads."""
    wire, transport = connected()
    for _ in range(5):
        transport.gather(bytes(2**14))
    assert [len(each) for each in wire.writes] == [5 * 2**14]


async def test_a_connection_that_is_lost_writes_nothing_more() -> None:
    wire, transport = connected()
    transport.gather(b"a")
    wire.close()
    await asyncio.sleep(0)
    transport.gather(b"b")
    transport.abort()
    await asyncio.sleep(0)
    assert wire.writes == []
