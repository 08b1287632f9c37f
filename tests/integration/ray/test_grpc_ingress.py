"""v2 over gRPC through the proxy of a real Ray Serve."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")
serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
grpc = pytest.importorskip("grpc")

from local_ray import local_ray  # noqa: E402

import headway.ray  # noqa: E402
from headway.server.grpc import inference_pb2 as pb  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
SERVICE = "/inference.GRPCInferenceService/"

MODEL = """
from collections.abc import Iterator
from typing import Any
import headway


class Shout(headway.Model[str, str]):
    def predict(self, texts: list[str]) -> list[str]:
        return [text.upper() for text in texts]


class Spell(headway.Model[str, str]):
    def stream(self, texts: list[str]) -> Iterator[list[Any]]:
        for step in range(max(map(len, texts)) + 1):
            yield [text[step] if step < len(text) else headway.END for text in texts]
"""


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("ray")
    (folder / "ray_shouts.py").write_text(MODEL)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "port": port,
        "grpc_servicer_functions": ["headway.ray.ingress:add_inference"],
    }
    made = headway.ray.deployment(
        {"shout": "ray_shouts:Shout", "spell": "ray_shouts:Spell"},
        ray_actor_options={"num_cpus": 0.5},
        warm_up=False,
    )
    with local_ray(folder, num_cpus=2):
        serve.start(grpc_options=options)
        serve.run(made.bind(), name="shouts")
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel


def request_of(model: str, text: str, **more: Any) -> Any:
    request = pb.ModelInferRequest(model_name=model, **more)
    given = request.inputs.add(name="input", datatype="BYTES", shape=[1])
    given.contents.bytes_contents.append(text.encode())
    return request


def test_models_answer_and_errors_have_their_status(channel: Any) -> None:
    infer = channel.unary_unary(
        SERVICE + "ModelInfer",
        pb.ModelInferRequest.SerializeToString,
        pb.ModelInferResponse.FromString,
    )
    found, call = infer.with_call(request_of("shout", "a text", id="7"), timeout=60)
    assert (found.id, found.model_name) == ("7", "shout")
    assert found.raw_output_contents[0][4:] == b"A TEXT"
    assert call.code() is grpc.StatusCode.OK
    for model, code in (("nobody", "NOT_FOUND"), ("spell", "INVALID_ARGUMENT")):
        with pytest.raises(grpc.RpcError) as raised:
            infer(request_of(model, "a text"), timeout=60)
        assert raised.value.code().name == code, raised.value.details()
    ready = channel.unary_unary(
        SERVICE + "ModelReady",
        pb.ModelReadyRequest.SerializeToString,
        pb.ModelReadyResponse.FromString,
    )
    assert ready(pb.ModelReadyRequest(name="shout"), timeout=60).ready
    assert not ready(pb.ModelReadyRequest(name="nobody"), timeout=60).ready


def test_a_stream_has_the_pieces_in_order(channel: Any) -> None:
    infer = channel.stream_stream(
        SERVICE + "ModelStreamInfer",
        pb.ModelInferRequest.SerializeToString,
        pb.ModelStreamInferResponse.FromString,
    )
    found = list(infer(iter([request_of("spell", "abc")]), timeout=60))
    pieces = [each.infer_response.raw_output_contents[0][4:] for each in found]
    assert pieces == [b"a", b"b", b"c"]
