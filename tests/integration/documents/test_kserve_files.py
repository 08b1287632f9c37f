"""The runtimes for KServe, started with exactly their arguments, and the picker's file for llm-d,
held against a real server's figures."""

from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
import yaml
from onnx import TensorProto, helper
from real_server import served

DEPLOY = Path(__file__).parents[3] / "deploy"


def runtimes() -> dict[str, Any]:
    found = yaml.safe_load_all((DEPLOY / "kserve" / "runtimes.yaml").read_text())
    return {each["metadata"]["name"]: each["spec"] for each in found}


def arguments(runtime: str, models: Path, name: str) -> list[str]:
    """As KServe fills them in; the addresses are free ones of this machine."""
    [container] = runtimes()[runtime]["containers"]
    serve, *given = container["args"]
    assert serve == "serve"
    ours = {
        "/mnt/models": str(models),
        "--name={{.Name}}": f"--name={name}",
        "--host=0.0.0.0": "--host=127.0.0.1",
        "--port=8080": "--port=0",
        "--grpc-port=9000": "--grpc-port=0",
        "--stop-delay-s=5": "--stop-delay-s=0",
    }
    assert set(ours) - set(given) <= {"--name={{.Name}}"}
    return [ours.get(each, each) for each in given]


def write_model(path: Path) -> None:
    """One that doubles."""
    path.parent.mkdir(parents=True)
    x, y = (helper.make_tensor_value_info(each, TensorProto.FLOAT, ["N", 2]) for each in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("runtime", "file", "name"),
    [
        ("headway", "model.onnx", "embedder"),
        ("headway-repository", "double/1/model.onnx", "double"),
    ],
)
def test_a_runtime_answers_what_it_says_it_speaks(
    runtime: str, file: str, name: str, tmp_path: Path
) -> None:
    write_model(tmp_path / "models" / file)
    spec = runtimes()[runtime]
    assert spec["protocolVersions"] == ["v1", "v2", "grpc-v2"]
    [container] = spec["containers"]
    with served(tmp_path, *arguments(runtime, tmp_path / "models", name)) as server:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert server.http.get(container[probe]["httpGet"]["path"]).status_code == 200
        told = server.http.get(f"/v1/models/{name}").json()
        assert (told["name"], told["ready"]) == (name, True)
        v1 = server.http.post(f"/v1/models/{name}:predict", json={"instances": [[1, 2]]})
        assert v1.json() == {"predictions": [[2, 4]]}
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
        v2 = server.http.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]})
        assert v2.json()["outputs"][0]["data"] == [2, 4]
        metrics = server.http.get(spec["annotations"]["prometheus.kserve.io/path"])
        assert "headway_load_queue_seconds" in metrics.text
        triton = pytest.importorskip("tritonclient.grpc")
        asked = triton.InferInput("x", [1, 2], "FP32")
        asked.set_data_from_numpy(numpy.array([[1, 2]], "float32"))
        with triton.InferenceServerClient(server.grpc) as client:
            assert client.infer(name, [asked]).as_numpy("y").tolist() == [[2, 4]]


def test_a_pod_of_kserve_has_time_to_drain() -> None:
    """KServe sets no grace period: Kubernetes' 30 seconds."""
    for spec in runtimes().values():
        given = dict(each.split("=") for each in spec["containers"][0]["args"] if "-s=" in each)
        assert float(given["--stop-delay-s"]) + 2 * float(given["--drain-s"]) < 30


def test_the_samples_name_runtimes_formats_and_protocols_that_there_are() -> None:
    for sample in yaml.safe_load_all((DEPLOY / "kserve" / "inferenceservices.yaml").read_text()):
        model = sample["spec"]["predictor"]["model"]
        spec = runtimes()[model["runtime"]]
        assert model["modelFormat"]["name"] in [
            each["name"] for each in spec["supportedModelFormats"]
        ]
        assert model["protocolVersion"] in spec["protocolVersions"]


def test_the_picker_asks_for_figures_that_a_server_has(tmp_path: Path) -> None:
    picker = yaml.safe_load((DEPLOY / "llm-d" / "epp.yaml").read_text())
    plugins = {each.get("name", each["type"]): each for each in picker["plugins"]}
    [profile] = picker["schedulingProfiles"]
    assert {each["pluginRef"] for each in profile["plugins"]} <= set(plugins)
    parameters = plugins["core-metrics-extractor"]["parameters"]
    [engine] = parameters["engineConfigs"]
    assert parameters["defaultEngine"] == engine["name"]
    attributes = {each["attributeKey"]: each["metricSpec"] for each in engine["customMetrics"]}
    scorers = [each for each in plugins.values() if each["type"] == "endpoint-attribute-scorer"]
    assert {each["parameters"]["attributeKey"] for each in scorers} == set(attributes)
    page_path = plugins["metrics-data-source"]["parameters"]["path"]
    asked = [engine["queuedRequestsSpec"], engine["runningRequestsSpec"], *attributes.values()]
    with served(tmp_path, "served_models:Double", "--port=0", "--grpc-port=-1") as server:
        page = server.http.get(page_path).text.splitlines()
    for name in asked:  # one series each, without labels: the picker takes the first
        assert len([line for line in page if line.startswith(f"{name} ")]) == 1
