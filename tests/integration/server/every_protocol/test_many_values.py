"""A request of more values than the queue holds is served, on every stack and route."""

import itertools
import json
from collections.abc import Iterator

import httpx
import numpy
import pytest
import tritonclient.grpc
import tritonclient.http
from served_models import vector_of
from stacks import MAX_ROWS, Stacks

HTTP = ("http", "asgi")
GRPC = ("grpc",)


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    with Stacks() as served:
        yield served


def some_texts(count: int) -> list[str]:
    letters = itertools.cycle("abc")
    return [next(letters) for _ in range(count)]


def test_all_items_of_a_plain_request_are_answered(http: httpx.Client) -> None:
    texts = some_texts(10_000)
    answer = http.post("/v1/predict/words", json={"items": texts})
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert not [each for each in results if isinstance(each, dict)]
    assert results == [vector_of(text).tolist() for text in texts]


def test_every_item_keeps_its_own_error(http: httpx.Client) -> None:
    texts: list[object] = [*some_texts(100), 7, "fail", *some_texts(100)]
    results = http.post("/v1/predict/little", json={"items": texts}).json()["results"]
    errors = {index: each["error"] for index, each in enumerate(results) if isinstance(each, dict)}
    assert errors.keys() == {100, 101}
    assert "str" in errors[100]
    assert "ValueError" in errors[101]


def test_items_for_a_full_queue_are_refused_as_one(http: httpx.Client, stacks: Stacks) -> None:
    with stacks.occupied("narrow") as model, stacks.queued(model):
        answer = http.post("/v1/predict/narrow", json={"items": some_texts(50)})
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        assert "the queue is full" in answer.json()["error"]


def test_one_deadline_holds_for_all_items(http: httpx.Client, stacks: Stacks) -> None:
    with stacks.occupied("gate") as model:
        headers = {"Headway-Timeout-Ms": "50"}
        answer = http.post("/v1/predict/gate", json={"items": some_texts(300)}, headers=headers)
        results = answer.json()["results"]
        assert len(results) == 300
        assert all("deadline" in each["error"] for each in results)
        assert model.batcher.statistics().queued_items == 0


def test_who_leaves_takes_all_items_along(stacks: Stacks) -> None:
    for stack in HTTP:
        with stacks.occupied("gate") as model:
            url = f"http://{stacks.addresses.of(stack)}/v1/predict/gate"
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(
                    url, json={"items": some_texts(1000)}, timeout=httpx.Timeout(5, read=0.1)
                )
            model.wait_left()
        assert model.batcher.statistics().queued_items == 0


def test_all_texts_of_an_embeddings_request_are_answered(http: httpx.Client) -> None:
    texts = some_texts(2000)
    body = {"model": "little", "input": texts}
    data = http.post("/v1/embeddings", json=body).json()["data"]
    assert [each["embedding"] for each in data] == [vector_of(text).tolist() for text in texts]


def test_all_documents_are_ranked(http: httpx.Client) -> None:
    documents = [*some_texts(1000), "abc"]
    body = {"model": "pairs", "query": "abc", "documents": documents}
    results = http.post("/v1/rerank", json=body).json()["results"]
    assert len(results) == 1001
    assert results[0] == {"index": 1000, "relevance_score": 3.0}


def test_all_rows_of_a_tensor_are_answered_over_http(http: httpx.Client) -> None:
    rows = numpy.arange(MAX_ROWS, dtype=numpy.int64).astype(numpy.int8)
    size = {"binary_data_size": rows.nbytes}
    head = json.dumps(
        {
            "inputs": [
                {"name": "x", "shape": [MAX_ROWS, 1], "datatype": "INT8", "parameters": size}
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    answer = http.post(
        "/v2/models/flip/infer",
        content=head + rows.tobytes(),
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    assert answer.status_code == 200
    length = int(answer.headers["Inference-Header-Content-Length"])
    assert answer.content[length:] == (~rows).tobytes()


def test_all_rows_of_a_tensor_are_answered_over_grpc(stacks: Stacks) -> None:
    rows = numpy.arange(MAX_ROWS, dtype=numpy.int64).astype(numpy.int8)[:, None]
    tensor = tritonclient.grpc.InferInput("x", list(rows.shape), "INT8")
    tensor.set_data_from_numpy(rows)
    with tritonclient.grpc.InferenceServerClient(stacks.addresses.of("grpc")) as client:
        answer = client.infer("flip", [tensor])
        assert (answer.as_numpy("y") == ~rows).all()


def test_all_rows_of_texts_are_answered_over_grpc(stacks: Stacks) -> None:
    texts = some_texts(5000)
    tensor = tritonclient.grpc.InferInput("input", [len(texts)], "BYTES")
    tensor.set_data_from_numpy(numpy.array([text.encode() for text in texts], object))
    with tritonclient.grpc.InferenceServerClient(stacks.addresses.of("grpc")) as client:
        answer = client.infer("little", [tensor]).as_numpy("embedding")
        assert (answer == numpy.stack([vector_of(text) for text in texts])).all()
