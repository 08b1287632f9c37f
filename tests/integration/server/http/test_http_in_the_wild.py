"""HTTP/1.1 as clients in the wild write it: offers of h2c, half-closed sockets, odd heads."""

import asyncio
import socket
from typing import Self

import pytest
from http_client import Client, on_both_loops, serving
from test_http_connection import Probe, happens

from headway.server.service.routes import Route
from headway.wire.messages import Request, Sink, StreamResponse

H2C = (
    "Connection: Upgrade, HTTP2-Settings\r\n"
    "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n"
)


@on_both_loops
async def test_an_offer_of_h2c_is_declined_and_its_body_read() -> None:
    """As Java's HttpClient and `curl --http2` post."""
    probe = Probe()
    async with serving(probe.app) as server, Client.to(server) as client:
        for number in range(3):  # the connection stays
            reply = await client.post("/echo", b"%d" % number * 10, H2C)
            assert (reply.status, reply.body) == (200, b"%d" % number * 10)
            assert "upgrade" not in reply.headers
        assert (await client.get("/path/a")).body == b"a"


@on_both_loops
async def test_the_body_of_such_a_request_may_come_in_any_pieces() -> None:
    probe = Probe()
    head = f"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{H2C}\r\n"
    asked = (
        head.encode() + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nGET /path/z HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    async with serving(probe.app) as server:
        for cut in range(1, len(asked), 7):
            async with Client.to(server) as client:
                await client.send(asked[:cut])
                await client.send(asked[cut:])
                assert (await client.reply()).body == b"abcde"
                assert (await client.reply()).body == b"z"


@on_both_loops
async def test_many_such_requests_in_one_piece_are_answered_in_order() -> None:
    probe = Probe()
    asked = "".join(f"GET /path/{number} HTTP/1.1\r\nHost: x\r\n{H2C}\r\n" for number in range(100))
    async with serving(probe.app) as server, Client.to(server) as client:
        await client.send(asked.encode())
        for number in range(100):
            assert (await client.reply()).body == b"%d" % number


@on_both_loops
async def test_an_expectation_beside_an_offer_is_met_once() -> None:
    probe = Probe()
    async with serving(probe.app) as server, Client.to(server) as client:
        head = (
            f"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n{H2C}"
        )
        await client.send(f"{head}\r\n".encode())
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hi")
        assert (await client.reply()).body == b"hi"


@on_both_loops
async def test_a_close_header_beside_an_upgrade_offer_is_kept() -> None:
    probe = Probe()
    async with serving(probe.app) as server, Client.to(server) as client:
        reply = await client.post(
            "/echo", b"hi", "Connection: close, Upgrade\r\nUpgrade: websocket\r\n"
        )
        assert (reply.body, reply.headers["connection"]) == (b"hi", "close")
        assert await client.rest() == b""


def ask_and_shut(port: int, *requests: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=5)
    client.sendall(b"".join(requests))
    client.shutdown(socket.SHUT_WR)
    return client


def read_all(client: socket.socket) -> bytes:
    with client:
        parts = []
        while part := client.recv(65536):
            parts.append(part)
        return b"".join(parts)


@on_both_loops
async def test_a_half_closed_client_gets_its_answer() -> None:
    probe = Probe()
    asked = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
    async with serving(probe.app) as server:
        client = await asyncio.to_thread(ask_and_shut, server.port, asked)
        answered = await asyncio.to_thread(read_all, client)
        assert b"HTTP/1.1 200 OK" in answered
        assert answered.endswith(b"\r\n\r\nhi")


@on_both_loops
async def test_a_half_closed_client_gets_an_answer_that_takes_its_time() -> None:
    probe = Probe()
    async with serving(probe.app) as server:
        client = await asyncio.to_thread(
            ask_and_shut, server.port, b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        await happens(probe.started)
        await asyncio.to_thread(client.recv, 1, socket.MSG_PEEK)  # the end of its sending was seen
        probe.release.set()
        answered = await asyncio.to_thread(read_all, client)
        assert answered.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
        assert answered.endswith(b"\r\n\r\ndone")


@on_both_loops
async def test_a_half_closed_client_gets_all_its_answers() -> None:
    probe = Probe()
    asked = [b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /path/a HTTP/1.1\r\nHost: x\r\n\r\n"]
    async with serving(probe.app) as server:
        client = await asyncio.to_thread(ask_and_shut, server.port, *asked)
        await happens(probe.started)
        probe.release.set()
        answered = await asyncio.to_thread(read_all, client)
        assert answered.count(b"HTTP/1.1 200 OK") == 2
        assert b"\r\n\r\ndone" in answered
        assert answered.endswith(b"\r\n\r\na")


@on_both_loops
async def test_a_half_closed_client_gets_its_whole_stream() -> None:
    probe = Probe()
    async with serving(probe.app) as server:
        client = await asyncio.to_thread(
            ask_and_shut, server.port, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        await happens(probe.started)
        probe.release.set()
        answered = await asyncio.to_thread(read_all, client)
        assert b"\r\n\r\n3\r\none\r\n" in answered
        assert answered.endswith(b"3\r\ntwo\r\n0\r\n\r\n")


class Pumped:
    """Chunks that are written without a task, as a model's are."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._first = [b"one"]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return self._first.pop()

    async def aclose(self) -> None: ...

    async def pump(self, sink: Sink) -> None:
        self._probe.started.set()
        await self._probe.release.wait()
        sink.write(b"two")


@on_both_loops
async def test_a_client_that_half_closes_in_the_middle_gets_the_rest_of_its_stream() -> None:
    probe = Probe()

    async def pumped(_: Request) -> StreamResponse:
        return StreamResponse(Pumped(probe))

    probe.app.add(Route("GET", "/pumped", pumped))
    async with serving(probe.app) as server:
        client = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", server.port), 5)
        await asyncio.to_thread(client.sendall, b"GET /pumped HTTP/1.1\r\nHost: x\r\n\r\n")
        await happens(probe.started)
        client.shutdown(socket.SHUT_WR)
        # The server has seen it when its comment comes.
        seen = b""
        while b":" not in seen.partition(b"one")[2]:
            part = await asyncio.to_thread(client.recv, 65536)
            assert part, seen
            seen += part
        probe.release.set()
        answered = seen + await asyncio.to_thread(read_all, client)
        assert answered.endswith(b"3\r\ntwo\r\n0\r\n\r\n")


@on_both_loops
async def test_a_half_closed_http_10_client_gets_no_interim_answer() -> None:
    probe = Probe()
    async with serving(probe.app) as server:
        client = await asyncio.to_thread(ask_and_shut, server.port, b"GET /wait HTTP/1.0\r\n\r\n")
        await happens(probe.started)
        probe.release.set()
        answered = await asyncio.to_thread(read_all, client)
        assert answered.startswith(b"HTTP/1.1 200 OK")
        assert answered.endswith(b"\r\n\r\ndone")


@on_both_loops
async def test_half_a_request_at_the_end_is_dropped() -> None:
    probe = Probe()
    async with serving(probe.app) as server:
        client = await asyncio.to_thread(
            ask_and_shut,
            server.port,
            b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhi",
        )
        assert await asyncio.to_thread(read_all, client) == b""
        assert probe.calls == 0


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip,chunked", "chunked, chunked"])
def test_an_unknown_transfer_coding_is_refused_by_name(coding: str) -> None:
    async def check() -> None:
        probe = Probe()
        async with serving(probe.app) as server, Client.to(server) as client:
            head = f"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: {coding}\r\n\r\n"
            await client.send(head.encode() + b"2\r\nhi\r\n0\r\n\r\n")
            reply = await client.reply()
            assert reply.status in (400, 501)
            assert probe.calls == 0
            if coding.startswith("gzip"):
                assert (reply.status, coding in reply.body.decode()) == (501, True)

    asyncio.run(check())


@on_both_loops
async def test_a_request_has_one_host() -> None:
    probe = Probe()
    async with serving(probe.app) as server:
        for hosts, status in (("", 400), ("Host: a\r\nHost: b\r\n", 400), ("Host:\r\n", 200)):
            async with Client.to(server) as client:
                await client.send(f"GET /path/a HTTP/1.1\r\n{hosts}\r\n".encode())
                reply = await client.reply()
                assert reply.status == status
                assert status == 200 or b"Host" in reply.body
        async with Client.to(server) as client:  # which older clients leave out
            await client.send(b"GET /path/a HTTP/1.0\r\n\r\n")
            assert (await client.reply()).status == 200
