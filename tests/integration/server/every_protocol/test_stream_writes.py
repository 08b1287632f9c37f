"""Streams that are written together, over HTTP and over gRPC."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from headway.config import KeyConfig, ModelConfig, ServerConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.model import Model
from headway.server.auth.guard import Guard
from headway.server.auth.keys import new_key
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.server import GrpcServer
from headway.server.observing import Observing
from headway.server.run import make_app
from headway.wire.http1.server import HttpServer

pytestmark = pytest.mark.real_time
CHUNKS = 50


class Pages(Model[str, str]):
    """Chunks that are too large to be held, and too small for parts of their own."""

    def stream(self, items: list[str]) -> Iterator[list[str]]:
        for _ in range(CHUNKS):
            time.sleep(0.002)  # so that each comes in a turn of its own
            yield [item * 5000 for item in items]


async def test_a_part_that_is_written_at_once_waits_nowhere() -> None:
    served = Served(ModelConfig(name="pages", target="t:t", warm_up=False), model=Pages())
    await served.start()
    registry = Registry()
    registry.add(served)
    config = ServerConfig(port=0, grpc_port=-1)
    async with HttpServer(make_app(registry, config), config) as http:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(
            b"POST /v2/models/pages/generate_stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b'Content-Length: 18\r\n\r\n{"text_input":"x"}'
        )
        answer = await reader.read()
        writer.close()
        assert answer.count(b"data: ") == CHUNKS
        assert http.writes.waiting == []
    await served.close()


STREAMS = 32
STEPS = 60


class Steps(Model[str, str]):
    def stream(self, items: list[str]) -> Iterator[list[str]]:
        for step in range(STEPS):
            time.sleep(0.0005)  # faster than the pause of so many streams
            yield [f"{item}{step} " for item in items]


@pytest.mark.parametrize("stack", ["http", "grpc"])
async def test_many_streams_of_a_model_that_is_faster_than_they_are_written_are_whole(
    stack: str,
) -> None:
    settings: Any = {"warm_up": False, "max_batch_size": STREAMS, "policy": "static"}
    served = Served(ModelConfig(name="steps", target="t:t", **settings), model=Steps())
    await served.start()
    registry = Registry()
    registry.add(served)
    config = ServerConfig(port=0, grpc_port=0)
    if stack == "http":
        async with HttpServer(make_app(registry, config), config) as http:
            texts = await asyncio.gather(*(_over_http(http.port, str(n)) for n in range(STREAMS)))
    else:
        async with (
            GrpcServer(registry, config) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            texts = await asyncio.gather(*(_over_grpc(channel, str(n)) for n in range(STREAMS)))
    await served.close()
    for number, text in enumerate(texts):
        assert text == "".join(f"{number}{step} " for step in range(STEPS))


async def _over_http(port: int, text: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"text_input": text}).encode()
    writer.write(
        b"POST /v2/models/steps/generate_stream HTTP/1.0\r\nHost: x\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    answer = (await reader.read()).partition(b"\r\n\r\n")[2].decode()
    writer.close()
    events = [json.loads(each.removeprefix("data: ")) for each in answer.split("\n\n") if each]
    return "".join(each["text_output"] for each in events)


async def _over_grpc(channel: grpc.aio.Channel, text: str) -> str:
    request = pb.ModelInferRequest(model_name="steps")
    request.inputs.add(name="input", datatype="BYTES", shape=[1])
    request.inputs[0].contents.bytes_contents.append(text.encode())

    async def requests() -> AsyncIterator[pb.ModelInferRequest]:
        yield request

    method: Any = channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )
    raws = [each.infer_response.raw_output_contents[0] async for each in method(requests())]
    return "".join(raw[4:].decode() for raw in raws)


class Endless(Model[str, str]):
    async def stream(self, items: list[str]) -> AsyncIterator[list[str]]:
        yield ["begun" for _ in items]
        await asyncio.get_running_loop().create_future()


def _observing(config: ServerConfig, how: str) -> Observing:
    if how != "tracing":
        return Observing(config)
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider

    from headway.observe.tracing import Tracing

    return Observing(config, tracing=Tracing(TracerProvider()))


@pytest.mark.parametrize("how", ["plain", "keys", "access_log", "tracing"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/predict/endless", b'"x"'),
        ("/v2/models/endless/generate_stream", b'{"text_input":"x"}'),
    ],
)
async def test_a_stream_that_is_cut_at_the_end_of_the_drain_says_so(
    path: str, body: bytes, version: str, how: str
) -> None:
    served = Served(ModelConfig(name="endless", target="t:t", warm_up=False), model=Endless())
    await served.start()
    registry = Registry()
    registry.add(served)
    config = ServerConfig(port=0, grpc_port=-1, access_log=how == "access_log")
    key = new_key()
    keys = [KeyConfig(id="a", hash=key.hash, tenant="a")] if how == "keys" else []
    observing = _observing(config, how)
    app = make_app(registry, config, guard=Guard(config, keys), observing=observing)
    async with HttpServer(observing.around(app), config) as http:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        headers = f"Host: x\r\nX-Api-Key: {key.key}\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"POST {path} HTTP/{version}\r\n{headers}\r\n".encode() + body)
        begun = await reader.readuntil(b"begun")
        await http.stop(drain_s=0.0)
        rest = await reader.read()  # the connection ends in order: a reset would raise
        writer.close()
    assert b" 200 " in begun
    assert b"the server is stopping" in rest
    assert rest.endswith(b"0\r\n\r\n" if version == "1.1" else b"\n\n")
    await served.close(drain_s=0.0)
