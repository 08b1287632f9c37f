"""However the bytes are cut and whatever they are, a connection answers in order or hangs up."""

import asyncio
import re
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headway.config import ServerConfig
from headway.server.app import App, Asker
from headway.server.service.routes import Route
from headway.testing.virtual_time import run
from headway.wire.body_room import BodyRoom
from headway.wire.http1.connection import Connection
from headway.wire.http1.known_heads import KnownHeads
from headway.wire.messages import Request, Response
from headway.wire.read_turns import ReadTurns
from headway.wire.writes import Writes

REQUESTS = (
    b"POST /echo HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\r\nContent-Length: 5\r\n\r\nhello"
    b"GET /nothing HTTP/1.1\r\nHost: x\r\nX-Request-Id: b\r\n\r\n"
    b"POST /echo HTTP/1.1\r\nHost: x\r\nX-Request-Id: c\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    b"\r\nHEAD /echo HTTP/1.1\r\nHost: x\r\nX-Request-Id: d\r\nConnection: close\r\n\r\n"
)


class FakeTransport(asyncio.Transport):
    """Keeps what is written; a reader that is always fast enough."""

    def __init__(self, client: str = "127.0.0.1") -> None:
        super().__init__({"peername": (client, 5)})
        self.written = b""
        self.can_read = asyncio.Event()
        self.can_read.set()
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self._is_closing = True
        self.can_read.set()

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.can_read.clear()

    def resume_reading(self) -> None:
        self.can_read.set()

    def get_write_buffer_size(self) -> int:
        return 0


class FakeOwner:
    room = BodyRoom(ServerConfig())

    def __init__(self) -> None:
        self.turns = ReadTurns()
        self.writes = Writes(0.0)
        self.buffer = memoryview(bytearray(2**16))
        self.known_heads = KnownHeads()

    def opened(self, _: Connection, address: str) -> str | None:
        return None

    def closed(self, _: Connection, task: asyncio.Task[None] | None) -> None:
        assert task is None or task.cancelling()


async def echo(request: Request) -> Response:
    await asyncio.sleep(0.001)
    return Response(request.body)


class Pending:
    """A request that takes the direct way, and is answered with its body."""

    def __init__(self, body: bytes, asker: Asker, *_: object) -> None:
        self._timer = asyncio.get_running_loop().call_later(0.001, asker.answer, body)

    def cancel(self) -> None:
        self._timer.cancel()


class Other(Pending):
    """Another model."""

    def __init__(self, body: bytes, *others: Any) -> None:
        super().__init__(b"other: " + body, *others)


async def exchange(pieces: list[bytes]) -> bytes:
    app = App()
    app.add(Route("POST", "/echo", echo))
    app.add(Route("POST", "/direct", echo, direct=Pending))
    app.add(Route("POST", "/other", echo, direct=Other))
    loop = asyncio.get_running_loop()
    config = ServerConfig(max_header_bytes=256, max_body_bytes=100)
    connection, transport = Connection(app, config, loop, FakeOwner()), FakeTransport()
    connection.connection_made(transport)
    for piece in pieces:
        await transport.can_read.wait()
        if transport.is_closing():
            break
        connection.data_received(piece)
    await asyncio.sleep(1)
    connection.connection_lost(None)
    return re.sub(rb"Date: [^\r]*|[0-9a-f]{12}-[0-9a-f]+", b"", transport.written)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % len(data) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_answers_do_not_depend_on_how_the_requests_were_cut(places: list[int]) -> None:
    answers = run(exchange(cut(REQUESTS, places)))
    assert answers == run(exchange([REQUESTS]))
    assert re.findall(rb"X-Request-Id: (.)", answers) == [b"a", b"b", b"c", b"d"]
    assert answers.count(b"HTTP/1.1 ") == 4


async def exchanged_at_once(data: bytes) -> tuple[bytes, list[int]]:
    """What is answered to one read, and how many requests waited at each moment."""
    app = App()
    app.add(Route("POST", "/echo", echo))
    app.add(Route("POST", "/direct", echo, direct=Pending))
    loop = asyncio.get_running_loop()
    connection, transport = Connection(app, ServerConfig(), loop, FakeOwner()), FakeTransport()
    connection.connection_made(transport)
    connection.data_received(data)
    waited = [len(connection._waiting)]
    while connection._waiting or connection._unparsed:
        await asyncio.sleep(0.001)
        waited.append(len(connection._waiting))
    connection.data_received(b"")
    await asyncio.sleep(1)
    assert transport.can_read.is_set()
    connection.connection_lost(None)
    return transport.written, waited


def test_one_read_of_many_requests_is_parsed_as_they_are_answered() -> None:
    """A read of 256 KB had four thousand of them, which held the event loop up for 40 ms."""
    one = b"POST /echo HTTP/1.1\r\nHost: x\r\nX-Request-Id: %d\r\nContent-Length: 2\r\n\r\nab"
    requests = [one % number for number in range(3000)]
    answers, waited = run(exchanged_at_once(b"".join(requests)))
    assert re.findall(rb"X-Request-Id: (\d+)", answers) == [b"%d" % n for n in range(3000)]
    assert max(waited) <= 4096 // len(requests[0]) + 1


def test_a_broken_request_among_many_ends_them() -> None:
    whole = direct(7, b"a")
    answers, _ = run(exchanged_at_once(whole * 200 + b"nonsense\r\n\r\n" + whole * 200))
    assert answers.count(b"HTTP/1.1 200") == 200
    assert answers.count(b"HTTP/1.1 400") == 1


def test_a_large_body_among_many_requests_is_whole() -> None:
    large = direct(1, b"\r\n\r\n" * 5_000)
    answers, _ = run(exchanged_at_once(direct(2, b"a") * 20 + large + direct(3, b"c") * 100))
    assert b"\r\n\r\n" * 5_001 in answers
    assert answers.count(b"HTTP/1.1 200") == 121


async def test_a_body_that_comes_while_the_server_stops_is_whole() -> None:
    """Of a read in pieces all but the first was thrown away, and the request never ran."""
    app = App()
    app.add(Route("POST", "/echo", echo))
    loop = asyncio.get_running_loop()
    connection, transport = Connection(app, ServerConfig(), loop, FakeOwner()), FakeTransport()
    connection.connection_made(transport)
    body = b"a\r\n\r\n" * 5_000
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    connection.data_received(head + body[:100])
    connection.finish()
    connection.data_received(body[100:] + head + body)  # and a request too late
    await asyncio.sleep(0.1)
    assert transport.written.count(b"HTTP/1.1 200") == 1
    assert transport.written.endswith(body)
    connection.connection_lost(None)


def direct(number: int, body: bytes, more: bytes = b"") -> bytes:
    """Requests of one number have the same head, up to the length of the body."""
    head = b"POST /direct HTTP/1.1\r\nHost: x\r\nX-Request-Id: %d\r\n%b" % (number, more)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


pieces_of_bodies = st.sampled_from(
    [b"", b"a", b"\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b"0\r\n\r\n"]
)
direct_requests = st.builds(
    direct,
    st.integers(1, 2),
    st.lists(pieces_of_bodies, max_size=2).map(b"".join),
    st.sampled_from(
        [
            *(b"", b"", b"", b"Headway-Tenant: t\r\n", b"Connection: close\r\n"),
            *(b"\r\n", b"X: POST /other HTTP/1.1\r\n"),
        ]
    ),
)


@given(
    st.lists(st.lists(direct_requests, min_size=1, max_size=2).map(b"".join), max_size=8),
    st.lists(st.integers(0, 10_000), max_size=3),
)
def test_answers_of_direct_requests_do_not_depend_on_how_they_were_cut(
    pieces: list[bytes], places: list[int]
) -> None:
    data = b"".join(pieces)
    if data:
        assert run(exchange(cut(data, places))) == run(exchange([data]))


wire_words = st.sampled_from(
    [
        *(
            b"GET ",
            b"POST ",
            b"/echo",
            b" HTTP/1.1",
            b" HTTP/1.0",
            b"\r\n",
            b"\r\n\r\n",
            b"\n",
            b":",
        ),
        *(b"Content-Length: 3", b"Transfer-Encoding: chunked", b"Connection: close", b"3\r\nabc"),
        *(b"0\r\n\r\n", b"abc", b"Expect: 100-continue", b"Upgrade: x\r\nConnection: upgrade"),
        *(b"CONNECT x:1", b"x" * 300, b"Content-Length: 99999999999999999999999", b"?", b"%"),
    ]
)


@given(st.lists(st.one_of(wire_words, st.binary(max_size=8)), max_size=30))
def test_any_bytes_are_answered_or_hung_up_on(pieces: list[bytes]) -> None:
    answers = run(exchange([piece for piece in pieces if piece]))
    assert not answers or answers.startswith(b"HTTP/1.1 ")


@given(st.lists(wire_words, max_size=6), st.integers(0, 10_000))
def test_a_damaged_follower_takes_nothing_from_those_before_it(
    words: list[bytes], place: int
) -> None:
    first = REQUESTS[: REQUESTS.index(b"GET")]
    answers = run(exchange(cut(first + b"".join(words) + b"\x00", [place])))
    assert answers.startswith(b"HTTP/1.1 200 OK")
    assert b"\r\n\r\nhello" in answers
