"""Before the key, and beyond what a message may become."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from served_models import Gate

from headway.config import KeyConfig, ModelConfig, ServerConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.server.auth.guard import Guard
from headway.server.auth.keys import new_key
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.calls import OPEN_BYTES
from headway.server.grpc.server import GrpcServer
from headway.wire.body_room import BodyRoom

pytestmark = pytest.mark.real_time
MIB = 2**20
KEY, READER = new_key(), new_key()
UNLIMITED = ("grpc.max_receive_message_length", -1)
INFER = "/inference.GRPCInferenceService/ModelInfer"


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Gate, BodyRoom, Any]]:
    config = ServerConfig(
        port=0,
        grpc_port=0,
        drain_s=0.2,
        max_body_bytes=8 * MIB,
        max_held_bytes=12 * MIB,
    )
    keys = [
        KeyConfig(id="a", hash=KEY.hash, tenant="a"),
        KeyConfig(id="r", hash=READER.hash, tenant="r", rights=("metrics",)),
    ]
    gate, registry, room = Gate(), Registry(), BodyRoom(config)
    model = Served(
        ModelConfig(name="gate", target="tests:None", warm_up=False, max_batch_size=1), model=gate
    )
    registry.add(model)
    await model.start()
    try:
        async with (
            GrpcServer(registry, config, room=room, guard=Guard(config, keys)) as server,
            grpc.aio.insecure_channel(server.address, options=[UNLIMITED]) as channel,
        ):
            yield gate, room, channel
    finally:
        gate.is_open.set()
        await model.close(drain_s=1.0)
    assert room.held_bytes == 0


def raw(channel: Any, path: str = INFER) -> Any:
    """With bytes for messages."""
    return channel.stream_stream(path, request_serializer=bytes, response_deserializer=bytes)


def keyed(key: str | None) -> tuple[tuple[str, str], ...]:
    return () if key is None else (("x-api-key", key),)


def request(size_bytes: int = 0) -> bytes:
    made = pb.ModelInferRequest(model_name="gate", id="i" * size_bytes)
    tensor = made.inputs.add(name="input", datatype="FP64", shape=[1])
    tensor.contents.fp64_contents.append(1.0)
    return made.SerializeToString()


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (None, grpc.StatusCode.UNAUTHENTICATED),
        ("hw-guess", grpc.StatusCode.UNAUTHENTICATED),
        (READER.key, grpc.StatusCode.PERMISSION_DENIED),
    ],
    ids=["no key", "a wrong key", "no right"],
)
async def test_who_may_not_call_is_told_before_a_byte_is_sent(
    key: str | None, code: grpc.StatusCode
) -> None:
    """The call has a head and no message yet."""
    async with served() as (_, room, channel):
        call = raw(channel)(metadata=keyed(key))
        assert await call.code() is code
        assert room.held_bytes == 0


async def test_a_large_message_is_counted_until_it_is_answered() -> None:
    async with served() as (gate, room, channel):
        with gate.closed():
            first = raw(channel)(metadata=keyed(KEY.key))
            await first.write(request(7 * MIB))
            await first.done_writing()
            assert await asyncio.to_thread(gate.entered.wait, 30)
            assert room.held_bytes > 6 * MIB
            second = raw(channel)(metadata=keyed(KEY.key))
            await second.write(request(7 * MIB))
            assert await second.code() is grpc.StatusCode.UNAVAILABLE
        assert len(await first.read()) > 0


async def test_without_a_key_a_message_is_small() -> None:
    async with served() as (_, _, channel):
        path = "/inference.GRPCInferenceService/ModelReady"
        call = raw(channel, path)()
        await call.write(pb.ModelReadyRequest(name="x" * OPEN_BYTES).SerializeToString())
        assert await call.code() in (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.INVALID_ARGUMENT,
        )
        assert "larger than max" in await call.details() or "allowed" in await call.details()


async def test_watchers_of_one_client_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.server.grpc.streams.MOST_OF_A_CLIENT", 3)
    async with served() as (_, _, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        watching = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(3)]
        for each in watching:
            assert (await each.read()).status == health_pb2.HealthCheckResponse.SERVING
        refused = stub.Watch(health_pb2.HealthCheckRequest())
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        watching[0].cancel()
        assert await watching[0].code() is grpc.StatusCode.CANCELLED
        again = stub.Watch(health_pb2.HealthCheckRequest())
        answered = await again.read()
        while answered is grpc.aio.EOF:  # the server has not heard of the one that left
            again = stub.Watch(health_pb2.HealthCheckRequest())
            answered = await again.read()
        assert answered.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_watcher_is_asked_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.server.grpc.streams.MOST_S", 0.05)
    async with served() as (_, _, channel):
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
