"""The models that Triton's own example programs expect (benchmarks/triton_examples), through its
clients: all load, and sequences reach the model that takes their parameters."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from real_server import Server, served

grpcclient = pytest.importorskip("tritonclient.grpc")
httpclient = pytest.importorskip("tritonclient.http")

ROOT = Path(__file__).parents[4]
MODELS = ROOT / "benchmarks" / "triton_examples" / "models"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(ROOT, str(MODELS), "--port", "0", "--grpc-port", "0") as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Server) -> Any:
    module = httpclient if request.param == "http" else grpcclient
    address = server.address if request.param == "http" else server.grpc
    return module, module.InferenceServerClient(address)


def test_every_model_is_ready(client: Any) -> None:
    names = sorted(each.name for each in MODELS.iterdir())
    assert len(names) == 9
    assert [name for name in names if not client[1].is_model_ready(name)] == []


def test_sequences_that_take_turns_have_sums_of_their_own(client: Any) -> None:
    steps = [(1, 5, "start"), (2, 100, "start"), (1, 7, ""), (2, -1, ""), (1, 1, "end")]
    sums = [add(client, *step) for step in steps]
    assert sums == [5, 100, 12, 99, 13 + 1]  # the end adds the sequence's number
    assert add(client, 1, 3, "start") == 3


def add(client: Any, sequence: int, number: int, place: str) -> int:
    module, triton = client
    value = module.InferInput("INPUT", [1, 1], "INT32")
    value.set_data_from_numpy(numpy.array([[number]], numpy.int32))
    answer = triton.infer(
        "simple_dyna_sequence",
        [value],
        sequence_id=sequence,
        sequence_start=place == "start",
        sequence_end=place == "end",
    )
    return int(answer.as_numpy("OUTPUT")[0, 0])
