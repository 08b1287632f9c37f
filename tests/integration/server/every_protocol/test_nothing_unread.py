"""What a request says and nobody understands is refused by name, on every route and stack."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from served_models import MOST_S
from stacks import Stacks

from headway.server.grpc import inference_pb2 as pb

GRPC = ("grpc",)
TEXT: dict[str, Any] = {"name": "input", "shape": [1], "datatype": "BYTES", "data": ["a"]}
INFER = "/v2/models/words/infer"
GENERATE = "/v2/models/words/generate"
PLAIN = "/v1/predict/words"
EMBED = "/v1/embeddings"
WORDS: dict[str, Any] = {"model": "words", "input": "a"}
RERANK = "/v1/rerank"
PAIR: dict[str, Any] = {"model": "pairs", "query": "a", "documents": ["a"]}


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    with Stacks() as served:
        yield served


def infer(**more: Any) -> dict[str, Any]:
    return {"inputs": [TEXT], **more}


@pytest.mark.parametrize(
    ("route", "body", "name"),
    [
        (INFER, infer(parameters={"colour": 1}), "colour"),
        (INFER, infer(parameters={"sequence_id": 7}), "sequence_id"),
        (INFER, infer(parameters={"sequence_start": True}), "sequence_start"),
        (INFER, infer(parameters={"sequence_id": 0, "sequence_end": True}), "sequence_end"),
        (INFER, infer(colour=1), "colour"),
        (INFER, infer(model_name="another"), "another"),
        (INFER, {"inputs": [{**TEXT, "colour": 1}]}, "colour"),
        (INFER, {"inputs": [{**TEXT, "parameters": {"content_type": "str"}}]}, "content_type"),
        (
            INFER,
            {"inputs": [{**TEXT, "parameters": {"shared_memory_offset": 1}}]},
            "shared_memory_offset",
        ),
        (INFER, infer(outputs=[{"name": "output", "colour": 1}]), "colour"),
        (INFER, infer(outputs=[{"name": "output", "parameters": {"colour": 1}}]), "colour"),
        (f"{INFER}?colour=1", infer(), "colour"),
        (GENERATE, {"text_input": "a", "max_tokens": 2}, "max_tokens"),
        (GENERATE, {"text_input": "a", "parameters": {"max_tokens": 2}}, "max_tokens"),
        (f"{GENERATE}_stream", {"text_input": "a", "max_tokens": 2}, "max_tokens"),
        (f"{GENERATE}?colour=1", {"text_input": "a"}, "colour"),
        (f"{PLAIN}?colour=1", "a", "colour"),
        (f"{PLAIN}?colour=", "a", "colour"),
        (f"{PLAIN}?priority=1&priority=2", "a", "priority"),
        (f"{PLAIN}?sequence_id=7", {"items": ["a"]}, "sequence_id"),
        (EMBED, {**WORDS, "colour": 1}, "colour"),
        (EMBED, {**WORDS, "truncate": True}, "truncate"),
        (f"{EMBED}?colour=1", WORDS, "colour"),
        (RERANK, {**PAIR, "colour": 1}, "colour"),
        (RERANK, {**PAIR, "max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        (f"{RERANK}?colour=1", PAIR, "colour"),
        ("/v1/images/generations", {"model": "m", "prompt": "a", "style": "vivid"}, "style"),
        ("/v1/images/generations", {"model": "m", "prompt": "a", "quality": "hd"}, "quality"),
        ("/v2/repository/index", {"colour": 1}, "colour"),
        ("/v2/repository/models/words/load", {"colour": 1}, "colour"),
        ("/v2/repository/models/words/unload", {"parameters": {"colour": 1}}, "colour"),
        ("/v2/trace/setting", {"colour": None}, "colour"),
        ("/v2/logging", {"colour": None}, "colour"),
    ],
)
def test_a_field_or_parameter(http: httpx.Client, route: str, body: Any, name: str) -> None:
    answer = http.post(route, json=body)
    assert answer.status_code == 400, answer.text
    assert name in answer.text


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (INFER, infer()),
        (GENERATE, {"text_input": "a"}),
        (PLAIN, "a"),
        (EMBED, WORDS),
        (RERANK, PAIR),
    ],
)
@pytest.mark.parametrize(
    ("header", "value", "said"),
    [
        ("Headway-Colour", "red", "headway-colour"),
        ("Headway-Adapter", "mine", "Headway-Adapter"),
        ("Headway-Explain", "perhaps", "Headway-Explain"),
    ],
)
def test_a_header_of_ours(
    http: httpx.Client, route: str, body: Any, header: str, value: str, said: str
) -> None:
    answer = http.post(route, json=body, headers={header: value})
    assert answer.status_code == 400, answer.text
    assert said in answer.text


def test_a_header_keeps_a_request_from_the_direct_way(http: httpx.Client) -> None:
    row = {"name": "x", "shape": [1, 1], "datatype": "INT8", "data": [1]}
    body = {"inputs": [row]}
    assert http.post("/v2/models/flip/infer", json=body).json()["outputs"][0]["data"] == [-2]
    answer = http.post("/v2/models/flip/infer", json=body, headers={"Headway-Colour": "red"})
    assert (answer.status_code, "headway-colour" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("fields", "files", "name"),
    [
        ({"model": "words", "colour": "red"}, {"file": ("a.wav", b"")}, "colour"),
        ({"model": "words"}, {"file": ("a.wav", b""), "other": ("b.wav", b"")}, "other"),
        ({"model": "words", "stream": "yes"}, {"file": ("a.wav", b"")}, "stream"),
    ],
)
def test_a_field_of_a_form(http: httpx.Client, fields: Any, files: Any, name: str) -> None:
    answer = http.post("/v1/audio/transcriptions", data=fields, files=files)
    assert answer.status_code == 400, answer.text
    assert json.loads(answer.text)["error"]["message"].startswith(f"{name}:")


def test_what_says_nothing_is_taken(http: httpx.Client) -> None:
    nothing = {"sequence_id": 0, "sequence_start": False, "sequence_end": False, "colour": None}
    assert http.post(INFER, json=infer(parameters=nothing)).status_code == 200
    assert http.post(INFER, json=infer(parameters={"sequence_id": ""})).status_code == 200
    assert http.post(INFER, json=infer(model_name="words")).status_code == 200
    assert http.post(GENERATE, json={"text_input": "a", "stream": False}).status_code == 200
    assert http.post(EMBED, json={**WORDS, "user": "me"}).status_code == 200
    assert http.post(RERANK, json={**PAIR, "user": "me"}).status_code == 200


# ---- gRPC


def ask_of_grpc(**more: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="words", **more)
    tensor = request.inputs.add(name="input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"a")
    return request


def of_request() -> pb.ModelInferRequest:
    request = ask_of_grpc()
    request.parameters["colour"].string_param = "red"
    return request


def of_sequence() -> pb.ModelInferRequest:
    request = ask_of_grpc()
    request.parameters["sequence_id"].int64_param = 7
    return request


def of_input() -> pb.ModelInferRequest:
    request = ask_of_grpc()
    request.inputs[0].parameters["colour"].bool_param = True
    return request


def of_output() -> pb.ModelInferRequest:
    request = ask_of_grpc()
    request.outputs.add(name="output").parameters["colour"].int64_param = 1
    return request


def infer_over(address: str, request: pb.ModelInferRequest, metadata: Any = ()) -> Any:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        return call(request, timeout=MOST_S, metadata=metadata)


@pytest.mark.parametrize(
    ("request_of", "name"),
    [
        (of_request, "colour"),
        (of_sequence, "sequence_id"),
        (of_input, "colour"),
        (of_output, "colour"),
    ],
)
def test_a_parameter_over_grpc(stacks: Stacks, request_of: Any, name: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        infer_over(stacks.addresses.of("grpc"), request_of())
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"{name!r} is unknown" in refused.value.details()


def test_metadata_of_ours(stacks: Stacks) -> None:
    address = stacks.addresses.of("grpc")
    assert infer_over(address, ask_of_grpc(), [("headway-priority", "high")]).outputs
    for key in ("headway-colour", "headway-adapter"):
        with pytest.raises(grpc.RpcError) as refused:
            infer_over(address, ask_of_grpc(), [(key, "red")])
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert key in refused.value.details().lower()


def test_an_unload_over_grpc(stacks: Stacks) -> None:
    request = pb.RepositoryModelUnloadRequest(model_name="words")
    request.parameters["colour"].bool_param = True
    with grpc.insecure_channel(stacks.addresses.of("grpc")) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/RepositoryModelUnload",
            request_serializer=pb.RepositoryModelUnloadRequest.SerializeToString,
            response_deserializer=pb.RepositoryModelUnloadResponse.FromString,
        )
        with pytest.raises(grpc.RpcError) as refused:
            call(request, timeout=MOST_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "colour" in refused.value.details()
