"""A request that was refused leaves nothing that only a collection of garbage would free: its
frames hold its body and values, and a client that is refused again and again fills the memory."""

import gc
import http.client
import json
import types
from collections.abc import Iterator
from contextlib import closing, contextmanager

import grpc
import pytest
from stacks import MAX_BODY_BYTES, Stacks

from headway.config import KeyConfig
from headway.server.app import App
from headway.server.auth.keys import KeyRing, new_key
from headway.server.grpc import inference_pb2 as pb

TIMES = 2
NUMBERS = [1.5] * ((MAX_BODY_BYTES - 100) // 4)  # for a model of texts; decoded off the loop


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    with Stacks() as running:
        yield running


def _is_ours(each: object) -> bool:
    """grpc.aio keeps the frame that aborts; there, nothing of the request may be left."""
    return (
        isinstance(each, types.FrameType)
        and "/headway/" in each.f_code.co_filename
        and each.f_locals.get("request", ...) is not None
    )


@contextmanager
def frames_left() -> Iterator[list[str]]:
    """The functions of ours whose frames were garbage, and nobody's, when the block ended."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [each.f_code.co_qualname for each in gc.garbage if _is_ours(each)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("stack", ["http", "asgi"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/predict/words", NUMBERS),
        ("/v1/predict/words", [1.5]),
        ("/v1/predict/words", {"items": NUMBERS[:-10]}),
        ("/v2/models/words/generate", {"text_input": NUMBERS[:-10]}),
        ("/v1/embeddings", {"model": "words", "input": NUMBERS[:-20]}),
        (
            "/v2/models/words/infer",
            {"inputs": [{"name": "input", "datatype": "BYTES", "shape": [1], "data": [1]}]},
        ),
        ("/v1/predict/words", "refuse"),
    ],
)
def test_over_http(stacks: Stacks, stack: str, path: str, body: object) -> None:
    def ask() -> None:
        with closing(http.client.HTTPConnection(stacks.addresses.of(stack), timeout=20)) as client:
            client.request("POST", path, json.dumps(body, separators=(",", ":")))
            answer = client.getresponse()
            said = answer.read()
            is_batch = isinstance(body, dict) and "items" in body
            assert answer.status == (200 if is_batch else 400), said

    ask()
    with frames_left() as found:
        for _ in range(TIMES):
            ask()
    assert found == []


@pytest.mark.parametrize("is_large", [False, True])
def test_over_grpc(stacks: Stacks, is_large: bool) -> None:
    request = pb.ModelInferRequest(model_name="words")
    tensor = request.inputs.add(name="input", datatype="FP32", shape=[len(NUMBERS)])
    tensor.contents.fp32_contents.extend(NUMBERS[:20_000] if is_large else [1.5])
    with grpc.insecure_channel(stacks.addresses.of("grpc")) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )

        def ask() -> None:
            with pytest.raises(grpc.RpcError):
                call(request, timeout=20)

        ask()
        with frames_left() as found:
            for _ in range(TIMES):
                ask()
    assert found == []


def test_why_a_client_is_not_let_in_keeps_no_frames() -> None:
    """It is asked for inside of the parser, with a read of 256 KB in a frame above."""
    key = KeyConfig(id="a", hash=new_key().hash, tenant="a")
    app = App(keys=KeyRing([key], 0.0))
    rejection = app.reject_head({})
    assert rejection is not None
    assert rejection.status == 401
    assert all(isinstance(each, int | str | tuple) for each in rejection)
