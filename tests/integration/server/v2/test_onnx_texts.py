"""An ONNX model that takes texts gets them as they were sent, on every protocol and stack."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy
import pytest
import tritonclient.grpc
from served_models import MOST_S
from stacks import Stacks, Watched
from tritonclient.utils import InferenceServerException

import headway
from headway.backends.onnx import OnnxModel

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

GRPC = ("grpc",)
TEXTS = ["12", "naïve 文字", "b'12'", ""]
NOT_UTF8 = b"\xff\xfe"


def twice(path: Path) -> Path:
    """A file whose model says every text twice."""
    string = onnx.TensorProto.STRING
    made = onnx.helper
    graph = made.make_graph(
        [made.make_node("StringConcat", ["text", "text"], ["twice"])],
        "twice",
        [made.make_tensor_value_info("text", string, ["rows", 1])],
        [made.make_tensor_value_info("twice", string, ["rows", 1])],
    )
    opset = [made.make_opsetid("", 20)]
    path.write_bytes(made.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString())
    return path


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    file = twice(tmp_path_factory.mktemp("onnx") / "twice.onnx")
    with Stacks() as served:
        model = Watched("twice", OnnxModel(file))
        served.run(model.start).result(MOST_S)
        served.registry.add(model)
        yield served
        served.run(model.close).result(MOST_S)


def ask(texts: list[str]) -> dict[str, Any]:
    shape = [len(texts), 1]
    return {"inputs": [{"name": "text", "shape": shape, "datatype": "BYTES", "data": texts}]}


def raw(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


@pytest.mark.parametrize("texts", [TEXTS, *([text] for text in TEXTS)])
def test_as_json(http: httpx.Client, texts: list[str]) -> None:
    answer = http.post("/v2/models/twice/infer", json=ask(texts)).json()
    assert answer["outputs"][0]["data"] == [text * 2 for text in texts]


def post_raw(http: httpx.Client, *texts: bytes) -> httpx.Response:
    data = raw(*texts)
    tensor = {"name": "text", "shape": [len(texts), 1], "datatype": "BYTES"}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}]})
    return http.post(
        "/v2/models/twice/infer",
        content=head.encode() + data,
        headers={"Inference-Header-Content-Length": str(len(head))},
    )


def test_as_binary(http: httpx.Client) -> None:
    answer = post_raw(http, *(text.encode() for text in TEXTS))
    assert answer.json()["outputs"][0]["data"] == [text * 2 for text in TEXTS]


def test_on_the_plain_route_and_generate(http: httpx.Client) -> None:
    answer = http.post("/v1/predict/twice", json={"items": [[text] for text in TEXTS]})
    assert answer.json()["results"] == [[text * 2] for text in TEXTS]
    answer = http.post("/v2/models/twice/generate", json={"text_input": ["12"]})
    assert answer.json()["twice"] == ["1212"]


@pytest.mark.parametrize("value", [12, [12], [None], [["12"]]])
def test_what_is_no_text_is_refused(http: httpx.Client, value: Any) -> None:
    answer = http.post("/v1/predict/twice", json=value)
    assert (answer.status_code, "'text'" in answer.text) == (400, True)


def test_what_is_not_utf8_is_refused_by_the_inputs_name(http: httpx.Client) -> None:
    answer = post_raw(http, b"fine", NOT_UTF8)
    assert (answer.status_code, "input 'text'" in answer.text) == (400, True)
    assert post_raw(http, b"fine").json()["outputs"][0]["data"] == ["finefine"]


def test_over_grpc(stacks: Stacks) -> None:
    with tritonclient.grpc.InferenceServerClient(stacks.addresses.of("grpc")) as client:
        tensor = tritonclient.grpc.InferInput("text", [len(TEXTS), 1], "BYTES")
        tensor.set_data_from_numpy(numpy.array([[text.encode()] for text in TEXTS], dtype=object))
        found = client.infer("twice", [tensor]).as_numpy("twice")
        assert found[:, 0].tolist() == [(text * 2).encode() for text in TEXTS]
        bad = tritonclient.grpc.InferInput("text", [1, 1], "BYTES")
        bad.set_data_from_numpy(numpy.array([[NOT_UTF8]], dtype=object))
        with pytest.raises(InferenceServerException, match="input 'text': a text is not UTF-8"):
            client.infer("twice", [bad])


async def test_in_process(tmp_path: Path) -> None:
    async with headway.Batcher(OnnxModel(twice(tmp_path / "twice.onnx"))) as batcher:
        sent = numpy.array([[b"12"], ["12"]], dtype=object)
        answer = await batcher.submit({"text": sent})
        assert answer["twice"].tolist() == [["1212"], ["1212"]]
        assert sent.tolist() == [[b"12"], ["12"]]  # the caller's own
