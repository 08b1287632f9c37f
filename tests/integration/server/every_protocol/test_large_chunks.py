"""A stream's large chunks arrive whole, on every route and stack, and none is encoded for a client
that does not read."""

import asyncio
import dataclasses
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple

import grpc
import httpx
import pytest
from served_models import MOST_S
from small_server import hosted
from stacks import on_uvicorn

import headway
from headway.config import ServerConfig
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.server import GrpcServer
from headway.server.run import make_app
from headway.wire.asgi import AsgiApp
from headway.wire.http1.server import HttpServer

pytestmark = pytest.mark.real_time
CHUNKS = ["a" * 300_000, "b", "c", "é" * 200_000, "d" * 2**20, "e"]


@dataclasses.dataclass
class Said:
    messages: list[dict[str, Any]]


class Pages(headway.Model[str, str]):
    def stream(self, items: list[str]) -> Iterator[list[str]]:
        for chunk in CHUNKS:
            yield [chunk for _ in items]


class Talk(headway.Model[Said, str]):
    def stream(self, items: list[Said]) -> Iterator[list[str]]:
        for chunk in CHUNKS:
            yield [chunk for _ in items]


class Broken(headway.Model[str, str]):
    """Its second chunk is large, and no JSON and no text."""

    def stream(self, items: list[str]) -> Iterator[list[str]]:
        yield ["a" for _ in items]
        yield ["b" * 300_000 + "\ud800" for _ in items]
        yield ["c" for _ in items]


class Flood(headway.Model[str, str]):
    """Goes on until nobody reads it."""

    ended: ClassVar = threading.Event()

    def stream(self, items: list[str]) -> Iterator[list[str]]:
        try:
            while True:
                yield ["a" * 2**20 for _ in items]
        finally:
            self.ended.set()


class Addresses(NamedTuple):
    http: str
    asgi: str
    grpc: str


@asynccontextmanager
async def serving() -> AsyncIterator[Addresses]:
    models = {"pages": Pages(), "talk": Talk(), "broken": Broken(), "flood": Flood()}
    config = ServerConfig(port=0, grpc_port=0)
    async with hosted(models) as registry:
        app = make_app(registry, config)
        async with (
            HttpServer(app, config) as http,
            GrpcServer(registry, ServerConfig(grpc_port=0)) as own,
            on_uvicorn(AsgiApp(app)) as asgi,
        ):
            yield Addresses(http.url.removeprefix("http://"), asgi, own.address)


def text_of(event: dict[str, Any]) -> str:
    """Of any of the routes."""
    if "choices" in event:
        return event["choices"][0]["delta"].get("content", "")
    return event["text_output"]


ROUTES = {
    "plain": ("/v1/predict/pages", "a"),
    "v2": ("/v2/models/pages/generate_stream", {"text_input": "a"}),
    "chat": (
        "/v1/chat/completions",
        {"model": "talk", "messages": [{"role": "user", "content": "a"}], "stream": True},
    ),
}


@pytest.mark.parametrize("stack", ["http", "asgi"])
@pytest.mark.parametrize("route", ROUTES)
async def test_large_chunks_arrive_whole(stack: str, route: str) -> None:
    async with serving() as addresses, httpx.AsyncClient(timeout=MOST_S) as client:
        path, body = ROUTES[route]
        url, headers = f"http://{getattr(addresses, stack)}{path}", {"Accept": "text/event-stream"}
        answer = await client.post(url, json=body, headers=headers)
        assert answer.status_code == 200, answer.text[:200]
        assert answer.headers["x-accel-buffering"] == "no", "nginx would collect its events"
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        found = [json.loads(line) for line in lines if line != "[DONE]"]
        texts = [each if isinstance(each, str) else text_of(each) for each in found]
        assert [text for text in texts if text] == CHUNKS


async def test_so_it_is_over_grpc() -> None:
    async with serving() as addresses, channel_to(addresses.grpc) as channel:
        answers = [each async for each in ask(channel, "pages")]
        assert [each.error_message for each in answers] == [""] * len(CHUNKS)
        raws = [each.infer_response.raw_output_contents[0] for each in answers]
        assert [raw[4:].decode() for raw in raws] == CHUNKS
        assert {bool(each.infer_response.outputs) for each in answers} == {True}


@pytest.mark.parametrize("stack", ["http", "asgi", "grpc"])
async def test_one_that_cannot_be_encoded_is_said_after_those_before_it(stack: str) -> None:
    async with serving() as addresses:
        address = getattr(addresses, stack)
        if stack.startswith("grpc"):
            async with channel_to(address) as channel:
                answers = [each async for each in ask(channel, "broken")]
            assert answers[0].infer_response.raw_output_contents[0][4:] == b"a"
            assert "surrogates not allowed" in answers[1].error_message
            assert len(answers) == 2
            return
        async with httpx.AsyncClient(timeout=MOST_S) as client:
            url = f"http://{address}/v2/models/broken/generate_stream"
            answer = await client.post(url, json={"text_input": "a"})
        first, second = [line for line in answer.text.split("\n\n") if line]
        assert json.loads(first.removeprefix("data: "))["text_output"] == "a"
        assert "error" in json.loads(second.removeprefix("data: "))


@pytest.mark.parametrize("stack", ["http", "asgi", "grpc"])
async def test_nothing_is_encoded_for_a_client_that_does_not_read(stack: str) -> None:
    """Its connection takes a few megabytes, and its stream four more: then it is cut off."""
    Flood.ended.clear()
    async with serving() as addresses:
        if stack.startswith("grpc"):
            async with channel_to(getattr(addresses, stack)) as channel:
                stream = ask(channel, "flood")
                assert (await stream.read()).infer_response.outputs
                assert await asyncio.to_thread(Flood.ended.wait, MOST_S)
                stream.cancel()
        else:
            host, port = getattr(addresses, stack).split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=2**16)
            body = b'{"text_input":"x"}'
            head = b"POST /v2/models/flood/generate_stream HTTP/1.1\r\nHost: x\r\n"
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await reader.readline()
            assert await asyncio.to_thread(Flood.ended.wait, MOST_S)
            writer.close()


@asynccontextmanager
async def channel_to(address: str) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_receive_message_length", 2**30)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield channel


def ask(channel: grpc.aio.Channel, model: str) -> Any:
    request = pb.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"x")
    method: Any = channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )

    async def requests() -> AsyncIterator[pb.ModelInferRequest]:
        yield request

    return method(requests(), timeout=MOST_S)
