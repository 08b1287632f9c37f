"""One connection of the default server, on real sockets, with clients that misbehave."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from http_client import Client, on_both_loops, serving

from headway.server.app import App
from headway.server.service.routes import Route
from headway.wire.messages import Request, Response, StreamResponse


class Probe:
    """Handlers that say what happened to them."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.release = asyncio.Event()
        self.calls = 0
        self.app = App()
        self.app.add(Route("POST", "/echo", self.echo))
        self.app.add(Route("GET", "/path/{name}", self.name))
        self.app.add(Route("GET", "/wait", self.wait))
        self.app.add(Route("GET", "/stream", self.stream))
        self.app.add(Route("GET", "/flood", self.flood))
        self.app.add(Route("GET", "/broken", self.broken))

    async def echo(self, request: Request) -> Response:
        self.calls += 1
        return Response(request.body)

    async def name(self, _: Request, name: str) -> Response:
        self.calls += 1
        return Response(name.encode())

    async def wait(self, _: Request) -> Response:
        self.started.set()
        try:
            await self.release.wait()
            return Response(b"done")
        finally:
            self.ended.set()

    async def stream(self, _: Request) -> StreamResponse:
        async def chunks() -> AsyncIterator[bytes]:
            try:
                yield b"one"
                yield b""
                self.started.set()
                await self.release.wait()
                yield b"two"
            finally:
                self.ended.set()

        return StreamResponse(chunks())

    async def flood(self, _: Request) -> StreamResponse:
        async def chunks() -> AsyncIterator[bytes]:
            try:
                while True:
                    self.calls += 1
                    yield bytes(100_000)
                    await asyncio.sleep(0)
            finally:
                self.ended.set()

        return StreamResponse(chunks())

    async def broken(self, request: Request) -> StreamResponse:
        async def chunks() -> AsyncIterator[bytes]:
            if request.query == "late":
                yield b"one"
            raise RuntimeError("the model broke")

        return StreamResponse(chunks())


async def happens(event: asyncio.Event) -> None:
    async with asyncio.timeout(2):
        await event.wait()


@on_both_loops
async def test_a_connection_is_kept_and_answers_one_after_the_other() -> None:
    probe = Probe()
    async with serving(probe.app) as server, Client.to(server) as client:
        for number in range(3):
            reply = await client.post("/echo", b"%d" % number)
            assert (reply.status, reply.body) == (200, b"%d" % number)
            assert reply.headers["x-request-id"]
            assert "connection" not in reply.headers
        assert server.connections == 1


@on_both_loops
async def test_pipelined_requests_are_answered_in_order() -> None:
    probe = Probe()
    async with serving(probe.app) as server, Client.to(server) as client:
        await client.send(
            b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"
            + b"".join(b"GET /path/%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(50))
            + b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab"
        )
        await happens(probe.started)
        await client.send(b"cd")
        assert probe.calls == 0
        probe.release.set()
        assert (await client.reply()).body == b"done"
        for number in range(50):
            assert (await client.reply()).body == b"%d" % number
        assert (await client.reply()).body == b"abcd"


@on_both_loops
async def test_bodies_come_whole_chunked_and_byte_by_byte() -> None:
    probe = Probe()
    async with serving(probe.app) as server, Client.to(server) as client:
        await client.send(
            b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nContent-Type: trailer\r\n\r\n"
        )
        assert (await client.reply()).body == b"abcde"
        for (
            byte
        ) in b"POST /echo HTTP/1.1\r\nHost: x\r\nX-Request-Id: me\r\nContent-Length: 2\r\n\r\nhi":
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        reply = await client.reply()
        assert (reply.body, reply.headers["x-request-id"]) == (b"hi", "me")
        large = bytes(range(256)) * 20_000
        assert (await client.post("/echo", large)).body == large


@on_both_loops
async def test_a_client_that_asks_is_told_to_continue() -> None:
    probe = Probe()
    async with serving(probe.app, max_body_bytes=100) as server:
        async with Client.to(server) as client:
            head = b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            head += b"Content-Length: %d\r\n\r\n"
            await client.send(head % 2)
            assert (await client.reply()).status == 100
            await client.send(b"ok")
            assert (await client.reply()).body == b"ok"
            await client.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n" + head % 2)
            await happens(probe.started)
            probe.release.set()
            assert (await client.reply()).body == b"done"
            assert (await client.reply()).status == 100
            await client.send(b"ok")
            assert (await client.reply()).body == b"ok"
            await client.send(head % 101)
            assert (await client.reply()).status == 413
        async with Client.to(server) as client:
            await client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: a-pony\r\n\r\n")
            assert (await client.reply()).status == 417


@on_both_loops
async def test_too_large_is_refused_before_it_is_read() -> None:
    probe = Probe()
    async with serving(probe.app, max_body_bytes=1000) as server:
        for body in (
            b"Content-Length: 50000000\r\n\r\n" + bytes(200_000),
            b"Transfer-Encoding: chunked\r\n\r\n" + b"200\r\n%b\r\n" % bytes(512) * 100,
        ):
            async with Client.to(server) as client:
                await client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\n" + body)
                reply = await client.reply()
                assert reply.status == 413
                assert b"1000 bytes" in reply.body
                assert reply.headers["connection"] == "close"
                assert await client.rest() == b""
    assert probe.calls == 0


@on_both_loops
async def test_large_heads_are_refused_in_one_read_and_in_many() -> None:
    probe = Probe()
    async with serving(probe.app, max_header_bytes=1000) as server:
        async with Client.to(server) as client:
            await client.send(b"GET /path/a HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 2000 + b"\r\n\r\n")
            assert (await client.reply()).status == 431
        for start in (
            b"GET /path/a HTTP/1.1\r\nHost: x\r\nX: ",
            b"GET /",
            b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        ):
            async with Client.to(server) as client:
                await client.send(start)
                for _ in range(12):
                    await client.send(b"x" * 100)
                    await asyncio.sleep(0.002)
                assert (await client.reply()).status == 431
    assert probe.calls == 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /path/a HTTP/9.9\r\n\r\n",
        b"GET /path/a HTTP/1.1\r\nHost: x\r\nno colon here\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
@pytest.mark.real_time
async def test_malformed_input_is_a_400_and_the_end_of_the_connection(request_bytes: bytes) -> None:
    probe = Probe()
    async with serving(probe.app) as server:
        async with Client.to(server) as client:
            await client.send(request_bytes)
            reply = await client.reply()
            assert reply.status == 400
            assert reply.headers["connection"] == "close"
            assert reply.body.startswith(b'{"error":"malformed HTTP')
            assert await client.rest() == b""
        async with Client.to(server) as client:
            assert (await client.get("/path/fine")).body == b"fine"
    assert probe.calls == 1


@on_both_loops
async def test_a_malformed_follower_waits_for_the_answer_before_it() -> None:
    probe = Probe()
    async with serving(probe.app) as server, Client.to(server) as client:
        await client.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\nnonsense\r\n\r\n")
        await happens(probe.started)
        probe.release.set()
        assert (await client.reply()).body == b"done"
        assert (await client.reply()).status == 400
        assert await client.rest() == b""


@on_both_loops
async def test_a_malformed_follower_is_answered_after_an_answer_that_filled_the_socket() -> None:
    """Pinned: the client read all of it, and got nothing more until its time was up."""
    probe = Probe()
    async with serving(probe.app) as server, Client.to(server) as client:
        large = b"a" * 16_000_000
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(large)
        sending = asyncio.create_task(client.send(head + large + b"nonsense\r\n\r\n"))
        assert (await client.reply()).body == large
        assert (await client.reply()).status == 400
        assert await client.rest() == b""
        await sending


@on_both_loops
async def test_each_phase_has_its_own_time() -> None:
    probe = Probe()
    times = {"header_timeout_s": 0.05, "body_timeout_s": 0.05, "keep_alive_s": 0.05}
    async with serving(probe.app, **times) as server:
        async with Client.to(server) as client:  # says nothing
            assert await client.rest() == b""
        async with Client.to(server) as client:  # a slow head
            await client.send(b"GET /pa")
            assert b"head of the request took too long" in (await client.reply()).body
            assert await client.rest() == b""
        async with Client.to(server) as client:  # a slow body
            await client.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na")
            reply = await client.reply()
            assert reply.status == 408
            assert b"body" in reply.body
        async with Client.to(server) as client:  # an idle connection
            assert (await client.get("/path/a")).status == 200
            assert await client.rest() == b""
        async with Client.to(server) as client:  # a slow answer is nobody's fault
            await client.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\nGET /pa")
            await happens(probe.started)
            await asyncio.sleep(0.15)
            probe.release.set()
            assert (await client.reply()).body == b"done"


@on_both_loops
async def test_a_head_that_trickles_does_not_win_time_by_it() -> None:
    probe = Probe()
    async with serving(probe.app, header_timeout_s=0.1) as server, Client.to(server) as client:
        await client.send(b"GET /path/a HTTP/1.1\r\nHost: x\r\n")
        for _ in range(10):
            await client.send(b"X: y\r\n")
            await asyncio.sleep(0.02)
        assert (await client.reply()).status == 408


@on_both_loops
async def test_a_client_that_leaves_cancels_its_handler() -> None:
    probe = Probe()
    async with serving(probe.app) as server:
        async with Client.to(server) as client:
            await client.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
            await happens(probe.started)
            assert not probe.ended.is_set()
        await happens(probe.ended)
        async with Client.to(server) as client:
            assert (await client.get("/path/a")).status == 200


@on_both_loops
async def test_a_stream_is_chunked_and_the_connection_kept() -> None:
    probe = Probe()
    probe.release.set()
    async with serving(probe.app) as server, Client.to(server) as client:
        reply = await client.get("/stream")
        assert reply.body == b"onetwo"
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert probe.ended.is_set()
        assert (await client.get("/path/a")).status == 200
        reply = await client.get("/stream", "HEAD")
        assert (reply.status, reply.body) == (200, b"")
        assert (await client.get("/path/a")).body == b"a"


@on_both_loops
async def test_chunks_leave_as_they_come_and_leaving_closes_the_stream() -> None:
    probe = Probe()
    async with serving(probe.app) as server:
        async with Client.to(server) as client:
            await client.send(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.head())[0] == 200
            assert await client.chunk() == b"one"
            await happens(probe.started)
        await happens(probe.ended)


@on_both_loops
async def test_a_stream_goes_no_faster_than_it_is_read() -> None:
    probe = Probe()
    async with serving(probe.app, write_timeout_s=0.1) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
            await happens(probe.ended)  # who reads nothing for write_timeout_s is dropped
    assert probe.calls < 200


@on_both_loops
async def test_who_reads_no_answer_gets_no_more_of_them_and_is_dropped() -> None:
    probe = Probe()
    async with serving(probe.app, write_timeout_s=0.1) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.setblocking(False)
            body = bytes(2_000_000)
            ask = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            with pytest.raises(OSError, match=r"reset|Broken pipe"):
                await asyncio.get_running_loop().sock_sendall(client, ask * 50)
    assert probe.calls < 20


@on_both_loops
async def test_who_reads_late_gets_every_answer() -> None:
    probe = Probe()
    async with serving(probe.app) as server, Client.to(server) as client:
        asks = (
            b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
            + b"%d" % number * 1_000_000
            for number in range(10)
        )
        sending = asyncio.create_task(client.send(b"".join(asks)))
        for number in range(10):
            assert (await client.reply()).body == b"%d" % number * 1_000_000
        await sending


@on_both_loops
async def test_a_stream_that_fails_first_is_an_error_and_later_is_cut_off() -> None:
    probe = Probe()
    async with serving(probe.app) as server, Client.to(server) as client:
        reply = await client.get("/broken")
        assert (reply.status, reply.body) == (500, b'{"error":"internal error"}')
        assert (await client.get("/path/a")).status == 200
        await client.send(b"GET /broken?late HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.head())[0] == 200
        assert await client.chunk() == b"one"
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.chunk()


@on_both_loops
async def test_http_1_0_closes_unless_asked_and_its_streams_end_with_the_connection() -> None:
    probe = Probe()
    probe.release.set()
    async with serving(probe.app) as server:
        async with Client.to(server) as client:
            await client.send(b"GET /path/a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert (await client.reply()).headers["connection"] == "keep-alive"
            await client.send(b"GET /path/b HTTP/1.0\r\n\r\n")
            reply = await client.reply()
            assert (reply.body, reply.headers["connection"]) == (b"b", "close")
            assert await client.rest() == b""
        async with Client.to(server) as client:
            await client.send(b"GET /stream HTTP/1.0\r\n\r\n")
            assert (await client.head())[1]["connection"] == "close"
            assert await client.rest() == b"onetwo"


@on_both_loops
async def test_close_and_upgrade_are_honoured_and_ignored() -> None:
    probe = Probe()
    async with serving(probe.app) as server:
        async with Client.to(server) as client:
            await client.send(b"GET /path/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await client.reply()).headers["connection"] == "close"
            assert await client.rest() == b""
        async with Client.to(server) as client:
            await client.send(
                b"GET /path/a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
                b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
            )
            assert (await client.reply()).body == b"a"
        async with Client.to(server) as client:
            assert (await client.get("http://x/path/a?b=c")).body == b"a"


@on_both_loops
async def test_stopping_finishes_what_has_begun_and_takes_nothing_new() -> None:
    probe = Probe()
    async with serving(probe.app) as server, Client.to(server) as busy, Client.to(server) as idle:
        assert (await idle.get("/path/a")).status == 200
        await busy.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await happens(probe.started)
        stopping = asyncio.ensure_future(server.stop(drain_s=2))
        assert await idle.rest() == b""
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset, as the loop has it
            await asyncio.open_connection("127.0.0.1", server.port)
        probe.release.set()
        reply = await busy.reply()
        assert (reply.body, reply.headers["connection"]) == (b"done", "close")
        await stopping
        assert server.connections == 0


@on_both_loops
async def test_stopping_at_its_deadline_refuses_what_is_left() -> None:
    probe = Probe()
    async with serving(probe.app) as server, Client.to(server) as asks, Client.to(server) as reads:
        await asks.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await reads.send(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reads.head())[0] == 200
        assert await reads.chunk() == b"one"
        await happens(probe.started)
        await server.stop(drain_s=0.05)
        reply = await asks.reply()
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert probe.ended.is_set()
        assert server.connections == 0


@on_both_loops
async def test_one_connection_too_many_is_told_so() -> None:
    probe = Probe()
    async with serving(probe.app, max_connections=1) as server, Client.to(server) as first:
        assert (await first.get("/path/a")).status == 200
        async with Client.to(server) as second:
            reply = await second.get("/path/a")
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert (await first.get("/path/a")).status == 200
