"""What clients send is read and parsed in turns, however much of it there is. Counted in turns of
the event loop, not in time."""

import asyncio
from typing import Any

import pytest
from test_protocol_fuzz import FakeOwner, FakeTransport, direct, echo

from headway.config import ServerConfig
from headway.server.app import App
from headway.server.service.routes import Route
from headway.testing.virtual_time import run
from headway.wire import read_turns
from headway.wire.http1.connection import Connection
from headway.wire.http1.parser import RequestParser

CONFIG = ServerConfig(max_header_bytes=8192)
HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
MANY = 20


@pytest.fixture(autouse=True)
def one_read_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_turns, "SLICE_S", -1.0)


class CountingParser(RequestParser):
    headers_read = chunks = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers_read += 1
        super().on_header(name, value)

    def on_body(self, data: bytes) -> None:
        self.chunks += 1
        super().on_body(data)


class Counting(Connection):
    """Counts what it does."""

    pieces = 0

    def __init__(self, app: Any, config: Any, loop: Any, owner: Any) -> None:
        super().__init__(app, config, loop, owner)
        self._parser = self.parser = CountingParser(self, config, owner.room)

    def _parse(self, data: bytes | memoryview) -> None:
        self.pieces += 1
        super()._parse(data)


class Peer:
    """A client's connection, and its next reads."""

    def __init__(self, owner: Any = None, client: str = "127.0.0.1") -> None:
        app = App()
        app.add(Route("POST", "/echo", echo))
        loop = asyncio.get_running_loop()
        self.connection = Counting(app, CONFIG, loop, owner or FakeOwner())
        self.transport = FakeTransport(client)
        self.connection.connection_made(self.transport)

    @property
    def is_read(self) -> bool:
        return self.transport.can_read.is_set()

    def send(self, data: bytes) -> int:
        """As much as one read takes."""
        buffer = self.connection.get_buffer(-1)
        size = min(len(data), len(buffer))
        buffer[:size] = data[:size]
        self.connection.buffer_updated(size)
        return size

    async def wait_read(self, data: bytes) -> None:
        while data:
            await self.transport.can_read.wait()
            data = data[self.send(data) :]

    def end(self) -> None:
        self.connection.connection_lost(None)


async def test_after_full_reads_one_connection_reads_on_in_a_turn() -> None:
    """Thirty-two had a quarter of a megabyte each in every turn, which took 20 ms."""
    owner = FakeOwner()
    peers = [Peer(owner) for _ in range(MANY)]
    for peer in peers:
        peer.send(HEAD + bytes(100_000))
    assert sum(peer.is_read for peer in peers) == 0
    for turn in range(1, MANY):
        await asyncio.sleep(0)
        assert sum(peer.is_read for peer in peers) <= 1 + turn
    await asyncio.sleep(0)
    assert all(peer.is_read for peer in peers)
    for peer in peers:
        peer.end()


def test_a_body_of_many_reads_is_whole() -> None:
    body = bytes(range(256)) * 4000
    head = HEAD.replace(b"1000000", b"%d" % len(body))

    async def written() -> bytes:
        peer = Peer()
        await peer.wait_read(head + body + head + body)
        await asyncio.sleep(1)
        peer.end()
        return peer.transport.written

    found = run(written())
    assert found.count(body) == found.count(b"HTTP/1.1 200") == 2


async def test_a_head_without_an_end_is_refused_after_as_much_as_a_head_may_have() -> None:
    """Of 64 KB six thousand headers were parsed before anybody looked at the limit."""
    peer = Peer()
    flood = b"".join(b"X-%d: x\r\n" % number for number in range(10_000))
    peer.send(b"POST /echo HTTP/1.1\r\nHost: x\r\n" + flood)
    for _ in range(20):
        await asyncio.sleep(0)
    assert peer.transport.written.startswith(b"HTTP/1.1 431")
    assert peer.connection.parser.headers_read <= 2 * CONFIG.max_header_bytes // len(b"X-1: x\r\n")
    peer.end()


async def test_small_chunks_are_parsed_in_turns() -> None:
    """Each is a call of ours, and a read has ten thousand."""
    peer = Peer()
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    peer.send(head + b"1\r\na\r\n" * 10_000)
    in_a_piece = 4096 // len(b"1\r\na\r\n") + 1
    assert peer.connection.parser.chunks <= 3 * in_a_piece
    before = peer.connection.parser.chunks
    await asyncio.sleep(0)
    assert before < peer.connection.parser.chunks <= before + in_a_piece
    assert not peer.is_read
    for _ in range(20):
        await asyncio.sleep(0)
    assert peer.connection.parser.chunks == 10_000
    assert peer.is_read
    peer.end()


CHUNKED = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
BLANK = 60_000


@pytest.mark.parametrize("blank", [b"\r\n", b"\n"])
@pytest.mark.parametrize(
    ("before", "after", "most"),
    [
        (b"", direct(1, b"abc").replace(b"/direct", b"/echo"), BLANK // 4096 + 3),
        (CHUNKED + b"%x\r\n" % BLANK, b"\r\n0\r\n\r\n", BLANK // 64 + 3),
    ],
)
def test_blank_lines_are_parsed_by_the_piece(
    blank: bytes, before: bytes, after: bytes, most: int
) -> None:
    """Two of them passed for the end of a head: each four bytes were a piece, and had a turn."""

    async def answered() -> tuple[int, int]:
        peer = Peer()
        peer.send(before + blank * (BLANK // len(blank)) + after)
        await asyncio.sleep(1)
        assert peer.is_read
        peer.end()
        return peer.connection.pieces, peer.transport.written.count(b"HTTP/1.1 200")

    pieces, served = run(answered())
    assert pieces <= most
    assert served == 1


def test_what_waits_for_a_client_that_does_not_read_is_not_parsed() -> None:
    async def answered() -> tuple[int, int]:
        peer = Peer()
        peer.send(direct(1, b"a" * 5000).replace(b"/direct", b"/echo") * 8)
        peer.connection.pause_writing()
        await asyncio.sleep(1)
        assert not peer.is_read
        unread = peer.transport.written.count(b"HTTP/1.1 200")
        peer.connection.resume_writing()
        await asyncio.sleep(1)
        assert peer.is_read
        peer.end()
        return unread, peer.transport.written.count(b"HTTP/1.1 200")

    assert run(answered()) == (1, 8)


async def test_one_that_left_before_its_turn_is_told_nothing() -> None:
    owner = FakeOwner()
    peers = [Peer(owner) for _ in range(3)]
    for peer in peers:
        peer.send(HEAD + bytes(100_000))
        peer.transport.close()
        peer.end()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(peer.transport.written for peer in peers)


async def test_blank_lines_before_a_request_are_dropped_at_once() -> None:
    """A read of nothing else was parsed in 16 pieces, one in a turn."""
    peer = Peer()
    peer.connection.data_received(b"\r\n" * 20_000)
    assert peer.connection.pieces == 0
    assert peer.is_read
    peer.connection.data_received(b"\r\n" * 20_000 + HEAD[:20])
    assert peer.connection.pieces == 1
    peer.end()


async def test_a_client_that_does_not_read_its_answer_is_not_read() -> None:
    """It was heard as long as the answer was a stream that is not at its end."""
    peer = Peer()
    peer.send(HEAD.replace(b"1000000", b"3") + b"abc")
    peer.connection.pause_writing()
    assert not peer.connection.is_idle
    peer.send(b"\r\n" * 2**16)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not peer.is_read
    peer.connection.resume_writing()
    for _ in range(5):
        await asyncio.sleep(0)
    assert peer.is_read
    peer.end()
