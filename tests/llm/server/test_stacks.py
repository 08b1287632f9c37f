"""The same answers on every stack: own HTTP, ASGI, own gRPC."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import grpc
import httpx
import pytest
import uvicorn
from serving import MOST_S, Serving

from headway.config import ServerConfig
from headway.hosting.registry import Registry
from headway.server.grpc import inference_pb2 as pb
from headway.server.run import make_app
from headway.wire.asgi import AsgiApp

pytestmark = pytest.mark.real_time
PARAMETERS: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], **PARAMETERS}


class Others(NamedTuple):
    """Addresses beside the own stacks."""

    asgi: str


@pytest.fixture(scope="module")
def others(served: Serving) -> Iterator[Others]:
    stack = AsyncExitStack()
    yield served.run(lambda: stack.enter_async_context(_others(served)))
    served.run(stack.aclose)


@asynccontextmanager
async def _others(served: Serving) -> AsyncIterator[Others]:
    registry, config = Registry(), ServerConfig(port=0, grpc_port=0, drain_s=1)
    registry.add(served.model)
    app = AsgiApp(make_app(registry, config), max_body_bytes=config.max_body_bytes)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
        )
        running = asyncio.create_task(server.serve(sockets=[listening]))
        yield Others(f"http://127.0.0.1:{listening.getsockname()[1]}")
        server.should_exit = True
        await running


def url_of(stack: str, served: Serving, others: Others) -> str:
    return served.url if stack == "own" else others.asgi


def text_of(events: list[Any]) -> str:
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def known(served: Serving) -> str:
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=CHAT, timeout=MOST_S)
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("stack", ["own", "asgi"])
def test_a_chat_over_http(served: Serving, others: Others, stack: str) -> None:
    url = f"{url_of(stack, served, others)}/v1/chat/completions"
    whole = httpx.post(url, json=CHAT, timeout=MOST_S).json()
    assert whole["choices"][0]["message"]["content"] == known(served)
    assert whole["usage"]["completion_tokens"] == 12
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", url, json=body, timeout=MOST_S) as answer:
        lines = [each[6:] for each in answer.iter_lines() if each.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    events = [json.loads(each) for each in lines[:-1]]
    assert text_of(events) == known(served)
    assert events[-1]["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("stack", ["own", "asgi"])
def test_mistakes_over_http(served: Serving, others: Others, stack: str) -> None:
    url = f"{url_of(stack, served, others)}/v1/chat/completions"
    for field, value in (("messages", []), ("n", 0), ("max_tokens", -1), ("tools", [{}])):
        answer = httpx.post(url, json={**CHAT, field: value}, timeout=MOST_S)
        assert answer.status_code == 400, field
        assert field in answer.json()["error"]["message"]
    long = [{"role": "user", "content": "a" * 100_000}]
    answer = httpx.post(url, json={**CHAT, "messages": long}, timeout=MOST_S)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stack", ["own", "asgi"])
def test_a_client_that_leaves_frees_its_blocks(served: Serving, others: Others, stack: str) -> None:
    url = f"{url_of(stack, served, others)}/v1/chat/completions"
    body = {**CHAT, "stream": True, "max_tokens": 60}
    with httpx.stream("POST", url, json=body, timeout=MOST_S) as answer:
        next(answer.iter_lines())
    served.wait_idle()


def test_a_text_over_grpc(served: Serving) -> None:
    """`ModelStreamInfer`: a response for every part, which together are the whole."""
    whole = httpx.post(
        f"{served.url}/v2/models/tiny/generate",
        json={"text_input": "Hello", **PARAMETERS},
        timeout=MOST_S,
    ).json()["text_output"]
    tensor = pb.ModelInferRequest.InferInputTensor(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"Hello")
    request = pb.ModelInferRequest(model_name="tiny", inputs=[tensor])
    request.parameters["temperature"].double_param = 0.0
    request.parameters["ignore_eos"].bool_param = True
    request.parameters["max_tokens"].int64_param = 12
    with grpc.insecure_channel(served.grpc) as channel:
        method = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        answers = list(method(iter([request]), timeout=MOST_S))
    assert [each.error_message for each in answers] == [""] * len(answers)
    assert len(answers) > 1
    parts = [each.infer_response.raw_output_contents[0][4:] for each in answers]
    assert b"".join(parts).decode() == whole
