"""What every HTTP stack must do alike: our own server on both loops, and the app as plain ASGI."""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest
from http_client import Client, Reply, serving

from headway.errors import QueueFull, UnknownModel
from headway.server.app import App
from headway.server.event_loop import run
from headway.server.service.routes import ErrorFormat, Route
from headway.wire.asgi import AsgiApp, Message
from headway.wire.messages import Answer, Request, Response, StreamResponse

LIMIT = 10_000
LONG = json.dumps({"outputs": list(range(1000))}).encode()


class Stack(Protocol):
    probe: "Probe"

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Reply: ...

    async def leave_after(self, path: str, happened: asyncio.Event) -> None:
        """Ask, wait until the event, and vanish."""
        ...


class SocketStack:
    def __init__(self, client: Client, probe: "Probe") -> None:
        self._client = client
        self.probe = probe

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Reply:
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        await self._client.send(
            f"{method} {path} HTTP/1.1\r\nHost: x\r\n{length}{lines}\r\n".encode() + body
        )
        return await self._client.reply(has_body=method != "HEAD")

    async def leave_after(self, path: str, happened: asyncio.Event) -> None:
        await self._client.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await happened.wait()
        await self._client.leave()


class AsgiStack:
    """Plays the ASGI server."""

    def __init__(self, probe: "Probe", root_path: str = "") -> None:
        self._app = AsgiApp(probe.app, max_body_bytes=LIMIT)
        self.probe = probe
        self._root_path = root_path

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Reply:
        return await self._run(method, path, body, headers or {}, asyncio.Event())

    async def leave_after(self, path: str, happened: asyncio.Event) -> None:
        await self._run("GET", path, b"", {}, happened)

    async def _run(
        self, method: str, path: str, body: bytes, headers: dict[str, str], leaves: asyncio.Event
    ) -> Reply:
        pieces: Iterator[Message] = iter(
            [
                {"type": "http.request", "body": body[:5], "more_body": True},
                {"type": "http.request", "body": body[5:]},
            ]
        )
        sent: list[Message] = []

        async def receive() -> Message:
            piece = next(pieces, None)
            if piece is None:
                await leaves.wait()
                return {"type": "http.disconnect"}
            return piece

        async def send(message: Message) -> None:
            sent.append(message)

        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "headers": encoded, "query_string": b""}
        async with asyncio.timeout(5):
            await self._app(
                {**scope, "path": path, "raw_path": path.encode(), "root_path": self._root_path},
                receive,
                send,
            )
        head = sent[0] if sent else {"status": 0, "headers": []}
        received = b"".join(each.get("body", b"") for each in sent[1:])
        fields = {name.decode(): value.decode() for name, value in head["headers"]}
        return Reply(head["status"], fields, received)


class Probe:
    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.app = App(max_body_bytes=LIMIT)
        self.app.add(Route("POST", "/v2/models/{model}/infer", self.infer, may_compress=True))
        self.app.add(Route("POST", "/v2/echo", self.echo))
        self.app.add(Route("GET", "/v2/long", self.long))
        self.app.add(Route("GET", "/v2/full", self.full))
        self.app.add(Route("GET", "/v1/models/{model}", self.unknown, errors=ErrorFormat.OPENAI))
        self.app.add(Route("GET", "/wait", self.wait))
        self.app.add(Route("GET", "/stream", self.stream))

    async def infer(self, request: Request, model: str) -> Answer:
        return Response(request.body + b"|" + model.encode() + b"|" + LONG)

    async def echo(self, request: Request) -> Answer:
        return Response(request.body)

    async def long(self, _: Request) -> Answer:
        return Response(LONG)

    async def full(self, _: Request) -> Answer:
        raise QueueFull("4 rows wait", limit=4, retry_after_s=3)

    async def unknown(self, _: Request, model: str) -> Answer:
        raise UnknownModel(f"no model {model!r}")

    async def wait(self, _: Request) -> Answer:
        self.started.set()
        try:
            await asyncio.Event().wait()
            raise AssertionError
        finally:
            self.ended.set()

    async def stream(self, request: Request) -> Answer:
        async def chunks() -> AsyncIterator[bytes]:
            try:
                yield b"one"
                yield b""
                yield b"two"
                self.started.set()
                if "x-endless" not in request.headers:
                    return
                await asyncio.Event().wait()
            finally:
                self.ended.set()

        return StreamResponse(chunks())


@asynccontextmanager
async def stack_of(kind: str, probe: Probe) -> AsyncIterator[Stack]:
    if kind == "asgi":
        yield AsgiStack(probe)
        return
    async with serving(probe.app, max_body_bytes=LIMIT) as server, Client.to(server) as client:
        yield SocketStack(client, probe)


def on_every_stack(test: Callable[[Stack], Awaitable[None]]) -> Callable[[str], None]:
    async def on(kind: str) -> None:
        probe = Probe()
        async with stack_of(kind, probe) as stack:
            await test(stack)

    @pytest.mark.parametrize("kind", ["asyncio", "uvloop", "asgi"])
    def wrapped(kind: str) -> None:
        (run if kind == "uvloop" else asyncio.run)(on(kind))

    wrapped.__name__ = test.__name__
    return wrapped


@on_every_stack
async def test_a_request_finds_its_handler_and_its_id(stack: Stack) -> None:
    sent = {"X-Request-Id": "mine"}
    reply = await stack.ask("POST", "/v2/models/org%2Fm/infer", b"hello there", sent)
    assert reply.status == 200
    assert reply.body == b"hello there|org/m|" + LONG
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"] == "mine"
    assert int(reply.headers["content-length"]) == len(reply.body)


@on_every_stack
async def test_unknown_paths_and_wrong_methods(stack: Stack) -> None:
    reply = await stack.ask("GET", "/v2/nothing")
    assert (reply.status, reply.body) == (404, b'{"error":"Not Found; /docs lists the routes"}')
    assert reply.headers["x-request-id"]
    reply = await stack.ask("GET", "/v2/models/m/infer")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")


@on_every_stack
async def test_errors_say_what_and_when_to_come_back(stack: Stack) -> None:
    reply = await stack.ask("GET", "/v2/full")
    assert (reply.status, reply.headers["retry-after"]) == (503, "3")
    assert json.loads(reply.body) == {"error": "4 rows wait"}
    assert reply.headers["content-type"] == "application/json"
    reply = await stack.ask("GET", "/v1/models/m")
    assert reply.status == 404
    assert json.loads(reply.body)["error"]["code"] == "model_not_found"


@on_every_stack
async def test_head_has_the_length_and_no_body(stack: Stack) -> None:
    reply = await stack.ask("HEAD", "/v2/long")
    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.headers["content-length"]) == len(LONG)


@on_every_stack
async def test_a_body_over_the_limit_is_413(stack: Stack) -> None:
    reply = await stack.ask("POST", "/v2/echo", bytes(LIMIT + 1))
    assert reply.status == 413
    assert b"10000 bytes" in reply.body


@on_every_stack
async def test_packed_requests_are_unpacked_and_bombs_refused(stack: Stack) -> None:
    for name, packed in (("gzip", gzip.compress(b"abc")), ("deflate", zlib.compress(b"abc"))):
        reply = await stack.ask("POST", "/v2/echo", packed, {"Content-Encoding": name})
        assert (reply.status, reply.body) == (200, b"abc")
    bomb = gzip.compress(bytes(5_000_000))
    assert len(bomb) < LIMIT
    reply = await stack.ask("POST", "/v2/echo", bomb, {"Content-Encoding": "gzip"})
    assert reply.status == 413
    reply = await stack.ask("POST", "/v2/echo", b"not gzip", {"Content-Encoding": "gzip"})
    assert reply.status == 400
    reply = await stack.ask("POST", "/v2/echo", b"abc", {"Content-Encoding": "br"})
    assert reply.status == 400
    assert b"gzip, deflate" in reply.body


@on_every_stack
async def test_only_inferences_are_packed_and_only_when_asked(stack: Stack) -> None:
    path, asks = "/v2/models/m/infer", {"Accept-Encoding": "gzip, deflate"}
    plain = await stack.ask("POST", path, b"x")
    assert "content-encoding" not in plain.headers
    packed = await stack.ask("POST", path, b"x", asks)
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    packed = await stack.ask("POST", path, b"x", {"Accept-Encoding": "deflate"})
    assert zlib.decompress(packed.body) == plain.body
    other = await stack.ask("GET", "/v2/long", headers=asks)
    assert (other.body, "content-encoding" in other.headers) == (LONG, False)
    error = await stack.ask("POST", path, b"x", {**asks, "Content-Encoding": "br"})
    assert "content-encoding" not in error.headers


@on_every_stack
async def test_streams_come_whole_and_are_closed(stack: Stack) -> None:
    reply = await stack.ask("GET", "/stream")
    assert (reply.status, reply.body) == (200, b"onetwo")
    assert stack.probe.ended.is_set()


@on_every_stack
async def test_leaving_cancels_the_handler(stack: Stack) -> None:
    async with asyncio.timeout(2):
        await stack.leave_after("/wait", stack.probe.started)
        await stack.probe.ended.wait()


@pytest.mark.real_time
async def test_leaving_closes_an_asgi_stream() -> None:
    probe = Probe()
    probe.app.add(Route("GET", "/endless", _with_header(probe.stream)))
    async with asyncio.timeout(2):
        await AsgiStack(probe).leave_after("/endless", probe.started)
    assert probe.ended.is_set()


@pytest.mark.real_time
async def test_who_serves_an_asgi_app_cancels_it_and_a_client_that_left_cancels_nothing_else() -> (
    None
):
    probe = Probe()
    asking = asyncio.ensure_future(AsgiStack(probe).ask("GET", "/wait"))
    async with asyncio.timeout(2):
        await probe.started.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await AsgiStack(again := Probe()).leave_after("/wait", again.started)
    assert probe.ended.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.real_time
async def test_an_asgi_app_mounted_under_a_prefix_sees_its_own_paths() -> None:
    stack = AsgiStack(Probe(), root_path="/ml")
    assert (await stack.ask("GET", "/ml/v2/long")).status == 200


def _with_header(handler: Callable[[Request], Awaitable[Answer]]) -> Any:
    async def endless(request: Request) -> Answer:
        request.headers = {**request.headers, "x-endless": "1"}
        return await handler(request)

    return endless
