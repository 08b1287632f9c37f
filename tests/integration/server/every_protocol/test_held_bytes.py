"""Many large bodies at once: what all requests hold together has a limit, over HTTP and gRPC."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from http_client import Client, on_both_loops
from served_models import Gate

from headway.config import ModelConfig, ServerConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.server.app import App
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.server import GrpcServer
from headway.server.service.routes import Route
from headway.wire.body_room import BodyRoom
from headway.wire.http1.server import HttpServer
from headway.wire.messages import Request, Response

MIB = 2**20
CONFIG = ServerConfig(
    port=0, grpc_port=0, drain_s=0.2, max_body_bytes=2 * MIB, max_held_bytes=3 * MIB
)
BODY = b"x" * (2 * MIB)


class Held:
    """An app that keeps its requests until it is told to go on, and the server around it."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[int] = asyncio.Queue()
        self.go_on = asyncio.Event()
        self.room = BodyRoom(CONFIG)
        self.app = App(max_body_bytes=CONFIG.max_body_bytes, room=self.room)
        self.app.add(Route("POST", "/x", self._answer))

    async def _answer(self, request: Request) -> Response:
        self.entered.put_nowait(len(request.body))
        await self.go_on.wait()
        return Response(b"%d" % len(request.body))

    @asynccontextmanager
    async def served(self, config: ServerConfig = CONFIG) -> AsyncIterator[HttpServer]:
        async with HttpServer(self.app, config, room=self.room) as server:
            yield server
        assert self.room.held_bytes == 0


def head(length: int) -> bytes:
    return b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length


@on_both_loops
async def test_a_body_for_which_there_is_no_room_is_refused_before_it_is_read() -> None:
    held = Held()
    async with (
        held.served() as server,
        Client.to(server) as first,
        Client.to(server) as second,
        Client.to(server) as small,
    ):
        await first.send(head(len(BODY)) + BODY)
        assert await held.entered.get() == len(BODY)
        await second.send(head(len(BODY)))
        refused = await second.reply()
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        assert b"3145728 are allowed" in refused.body
        await small.send(head(1) + b"1")  # a small request is still served
        held.go_on.set()
        assert [(await each.reply()).status for each in (first, small)] == [200, 200]
        async with Client.to(server) as again:
            assert (await again.post("/x", BODY)).status == 200


@on_both_loops
async def test_a_body_that_grows_beyond_the_room_is_refused_on_the_way() -> None:
    held = Held()
    async with held.served() as server, Client.to(server) as first, Client.to(server) as second:
        # Both are promised; nothing is taken for a promise.
        for each in (first, second):
            await each.send(head(len(BODY)) + BODY[:MIB])
        await first.send(BODY[MIB:])
        assert await held.entered.get() == len(BODY)
        await second.send(BODY[MIB:])
        assert (await second.reply()).status == 503
        held.go_on.set()
        assert (await first.reply()).body == b"%d" % len(BODY)


@on_both_loops
async def test_chunks_are_counted_too_and_who_leaves_gives_back() -> None:
    held = Held()
    async with held.served() as server:
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        async with Client.to(server) as leaver:
            await leaver.send(b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            await leaver.send(chunk * 31 + b"0\r\n\r\n")
            await held.entered.get()
            assert held.room.held_bytes > MIB
        held.go_on.set()
        async with Client.to(server) as next_one:
            assert (await next_one.post("/x", BODY)).status == 200


@on_both_loops
async def test_what_is_pipelined_is_held_until_its_own_answer() -> None:
    held = Held()
    small_config = ServerConfig(port=0, drain_s=0.2, max_body_bytes=MIB, max_held_bytes=3 * MIB)
    async with held.served(small_config) as server, Client.to(server) as client:
        half = BODY[: MIB // 2]
        await client.send((head(len(half)) + half) * 2)
        await held.entered.get()
        held.go_on.set()
        assert [(await client.reply()).status for _ in range(2)] == [200, 200]
        assert held.room.held_bytes == 0


@on_both_loops
async def test_a_packed_body_takes_what_it_unpacks_to() -> None:
    held = Held()
    packed = gzip.compress(bytes(2 * MIB))
    async with held.served() as server, Client.to(server) as first, Client.to(server) as second:
        await first.send(
            b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
            b"Content-Length: %d\r\n\r\n" % len(packed) + packed
        )
        assert await held.entered.get() == 2 * MIB
        refused = await second.post("/x", packed, "Content-Encoding: gzip\r\n")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        held.go_on.set()
        assert (await first.reply()).status == 200


# ---- gRPC


@asynccontextmanager
async def gated() -> AsyncIterator[tuple[Gate, BodyRoom, Any]]:
    gate, registry, room = Gate(), Registry(), BodyRoom(CONFIG)
    config = ModelConfig(name="gate", target="tests:None", warm_up=False, max_batch_size=1)
    served = Served(config, model=gate)
    registry.add(served)
    await served.start()
    try:
        async with (
            GrpcServer(registry, CONFIG, room=room) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            yield gate, room, channel
    finally:
        gate.is_open.set()
        await served.close(drain_s=1.0)
    assert room.held_bytes == 0


def large(size_bytes: int = 2 * MIB - 1000) -> pb.ModelInferRequest:
    """One number, and much that nobody reads."""
    request = pb.ModelInferRequest(model_name="gate", id="i" * size_bytes)
    tensor = request.inputs.add(name="input", datatype="FP64", shape=[1])
    tensor.contents.fp64_contents.append(1.0)
    return request


def method(channel: Any, name: str, kind: str) -> Any:
    response = pb.ModelStreamInferResponse if "Stream" in name else pb.ModelInferResponse
    return getattr(channel, kind)(
        f"/inference.GRPCInferenceService/{name}",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=response.FromString,
    )


@on_both_loops
async def test_a_call_for_which_there_is_no_room_is_unavailable() -> None:
    async with gated() as (gate, room, channel):
        infer = method(channel, "ModelInfer", "unary_unary")
        with gate.closed():
            first = asyncio.ensure_future(infer(large()))
            assert await asyncio.to_thread(gate.entered.wait, 30)
            assert room.held_bytes > MIB
            with pytest.raises(grpc.aio.AioRpcError, match="3145728 are allowed") as refused:
                await infer(large())
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert ("retry-after", "1") in tuple(refused.value.trailing_metadata())
        assert (await first).model_name == "gate"
        assert (await infer(large())).model_name == "gate"


@on_both_loops
async def test_a_packed_call_takes_what_it_unpacks_to() -> None:
    async with gated() as (gate, room, channel):
        infer = method(channel, "ModelInfer", "unary_unary")
        packed = {"compression": grpc.Compression.Gzip}
        with gate.closed():
            first = asyncio.ensure_future(infer(large(), **packed))
            assert await asyncio.to_thread(gate.entered.wait, 30)
            assert room.held_bytes > MIB
            with pytest.raises(grpc.aio.AioRpcError, match="are allowed") as refused:
                await infer(large(), **packed)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await first).model_name == "gate"


@on_both_loops
async def test_the_requests_of_a_stream_are_counted_until_they_are_answered() -> None:
    async with gated() as (gate, room, channel):
        infer = method(channel, "ModelInfer", "unary_unary")
        stream = method(channel, "ModelStreamInfer", "stream_stream")()
        with gate.closed():
            await stream.write(large())
            assert await asyncio.to_thread(gate.entered.wait, 30)
            assert room.held_bytes > MIB
            with pytest.raises(grpc.aio.AioRpcError, match="are allowed"):
                await infer(large())
        assert (await stream.read()).error_message == ""
        assert (await infer(large())).model_name == "gate"
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


@on_both_loops
async def test_a_stream_that_sends_beyond_the_room_ends() -> None:
    async with gated() as (gate, _, channel):
        stream = method(channel, "ModelStreamInfer", "stream_stream")()
        with gate.closed():
            await stream.write(large())
            assert await asyncio.to_thread(gate.entered.wait, 30)
            await stream.write(large())
            with pytest.raises(grpc.aio.AioRpcError, match="are allowed") as refused:
                await stream.read()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
