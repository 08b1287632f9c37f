"""Models whose arrays have no axis of rows: any shapes, one request a run, on every stack."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy
import pytest
import tritonclient.grpc
import tritonclient.http
from served_models import MOST_S, Gate
from stacks import Stacks, Watched
from tritonclient.utils import InferenceServerException

import headway
from headway import ConfigError, Tensor
from headway.config import ModelConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Ask


class Norm(headway.TensorModel):
    """A matrix of any shape and a scalar, to a scalar and a vector."""

    inputs: ClassVar = [Tensor("x", "float32", (-1, -1)), Tensor("scale", "float32", ())]
    outputs: ClassVar = [Tensor("norm", "float32", ()), Tensor("sums", "float32", (-1,))]
    batch_axis = False

    def __init__(self) -> None:
        self.gate = Gate()

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.gate.pass_through([batch["x"].shape])
        x = batch["x"] * batch["scale"]
        return {"norm": numpy.float32(numpy.linalg.norm(x)), "sums": x.sum(axis=1)}


class Trace(headway.TensorModel):
    inputs: ClassVar = [Tensor("x", "float64", (-1, 3))]
    outputs: ClassVar = [Tensor("y", "float64", (-1,))]

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": batch["x"].sum(axis=0)}  # over the first axis, which is no row here


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    with Stacks() as served:
        model = Watched("norm", Norm())
        served.run(model.start).result(MOST_S)
        served.registry.add(model)
        yield served
        served.run(model.close).result(MOST_S)


X = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)


@pytest.fixture(params=("http", "asgi"))
def http(stacks: Stacks, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    url = f"http://{stacks.addresses.of(request.param)}"
    with httpx.Client(base_url=url, timeout=MOST_S) as client:
        yield client


def test_any_shape_goes_in_and_out_over_http(http: httpx.Client) -> None:
    asked = [
        {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X.ravel().tolist()},
        {"name": "scale", "datatype": "FP32", "shape": [], "data": [2]},
    ]
    answer = http.post("/v2/models/norm/infer", json={"inputs": asked}).json()
    outputs = {each["name"]: each for each in answer["outputs"]}
    assert (outputs["norm"]["shape"], outputs["sums"]["shape"]) == ([], [2])
    assert outputs["sums"]["data"] == [6.0, 24.0]
    plain = http.post("/v1/predict/norm", json={"x": X.tolist(), "scale": 2})
    assert plain.json()["sums"] == [6.0, 24.0]
    metadata = http.get("/v2/models/norm").json()
    assert [each["shape"] for each in metadata["inputs"]] == [[-1, -1], []]
    assert http.get("/v2/models/norm/config").json()["max_batch_size"] == 0
    asked[0]["shape"] = [6]
    answer = http.post("/v2/models/norm/infer", json={"inputs": asked})
    assert answer.status_code == 400
    assert "the model takes [any, any]: it has no axis of rows" in answer.json()["error"]
    plain = http.post("/v1/predict/norm", json={"x": [1, 2], "scale": 2})
    assert (plain.status_code, "shape" in plain.json()["error"]) == (400, True)


def test_any_shape_goes_in_and_out_over_grpc(stacks: Stacks) -> None:
    client = tritonclient.grpc.InferenceServerClient(stacks.addresses.of("grpc"))
    inputs = [
        tritonclient.grpc.InferInput("x", [2, 3], "FP32"),
        tritonclient.grpc.InferInput("scale", [], "FP32"),
    ]
    inputs[0].set_data_from_numpy(X)
    inputs[1].set_data_from_numpy(numpy.array(2, numpy.float32))
    answer = client.infer("norm", inputs)
    assert answer.as_numpy("sums").tolist() == [6.0, 24.0]
    inputs[0] = tritonclient.grpc.InferInput("x", [6], "FP32")
    inputs[0].set_data_from_numpy(X.ravel())
    with pytest.raises(InferenceServerException, match="no axis of rows"):
        client.infer("norm", inputs)
    client.close()


def test_one_request_a_run_and_a_deadline_takes_it_out_of_the_queue(stacks: Stacks) -> None:
    model = stacks.model("norm")
    assert model.gate is not None
    row = {"x": X.tolist(), "scale": 1}
    with model.gate.closed():
        first = stacks.run(lambda: model.predict(row, Ask()))
        assert model.gate.entered.wait(MOST_S)
        model.gate.seen.clear()
        late = stacks.run(lambda: model.predict(row, Ask(deadline_ms=20)))
        with pytest.raises(headway.DeadlineExceeded):
            late.result(MOST_S)
        others = [stacks.run(lambda: model.predict(row, Ask())) for _ in range(2)]
    for each in (first, *others):
        assert each.result(MOST_S)["sums"].tolist() == [3.0, 12.0]
    assert model.gate.seen == [(2, 3), (2, 3)]


@pytest.mark.real_time
async def test_a_setting_says_that_there_is_no_batch_axis() -> None:
    config = ModelConfig(name="trace", target="x:Y", max_batch_size=0, warm_up_s=0.05)
    served = Served(config, model=Trace())
    await served.start()
    try:
        answer = await served.predict([[1, 2, 3], [4, 5, 6]], Ask())
        assert answer.tolist() == [5, 7, 9]
    finally:
        await served.close()


def test_a_model_over_values_cannot_be_without_one() -> None:
    class Words(headway.Model[str, str]):
        def predict(self, items: list[str]) -> list[str]:
            return items

    with pytest.raises(ConfigError, match="For one at a time, write 1"):
        Served(ModelConfig(name="words", target="x:Y", max_batch_size=0), model=Words())


def onnx_file(path: Path, x: list[Any], y: list[Any], kind: str = "Transpose") -> Path:
    onnx = pytest.importorskip("onnx")
    made, float32 = onnx.helper, onnx.TensorProto.FLOAT
    graph = made.make_graph(
        [made.make_node(kind, ["x"], ["y"])],
        "graph",
        [made.make_tensor_value_info("x", float32, x)],
        [made.make_tensor_value_info("y", float32, y)],
    )
    opset = [made.make_opsetid("", 18)]
    path.write_bytes(made.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString())
    return path


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("x", "y", "kind", "has_rows"),
    [
        ([2, 3], [3, 2], "Transpose", False),
        ([], [], "Relu", False),
        ([2, 3], [2, 3], "Relu", True),
        (["rows", 3], ["rows", 3], "Relu", True),
    ],
)
async def test_a_file_whose_first_axis_is_no_row_serves_as_such(
    tmp_path: Path, x: list[Any], y: list[Any], kind: str, has_rows: bool
) -> None:
    pytest.importorskip("onnxruntime")
    path = onnx_file(tmp_path / "net.onnx", x, y, kind)
    served = Served(ModelConfig(name="net", target=str(path), warm_up_s=0.05))
    assert (served.max_batch_size > 0) is has_rows
    await served.start()
    try:
        if not has_rows:
            array = numpy.ones(x, numpy.float32)
            answer = await served.infer({"x": array}, Ask())
            assert list(answer["y"].shape) == y
            assert json.dumps(served.json_schemas())
    finally:
        await served.close()
