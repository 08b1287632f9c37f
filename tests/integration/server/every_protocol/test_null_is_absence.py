"""`null` for an optional field says nothing, on every route that takes JSON: clients send it for
whatever their callers left out."""

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from served_models import MOST_S
from stacks import Stacks

from headway.server.families.openai.embeddings import EmbeddingsRequest
from headway.server.families.openai.rerank import RerankRequest

INPUT: dict[str, Any] = {"name": "input", "shape": [1], "datatype": "BYTES", "data": ["a"]}
WORDS: dict[str, Any] = {"model": "words", "input": "a"}
PAIR: dict[str, Any] = {"model": "pairs", "query": "a", "documents": ["a"]}


def with_nulls(kind: type[msgspec.Struct], given: dict[str, Any]) -> dict[str, Any]:
    """Every field there is, null where none is given."""
    return dict.fromkeys(kind.__struct_fields__) | given


CASES = {
    "embeddings": ("/v1/embeddings", with_nulls(EmbeddingsRequest, WORDS), WORDS),
    "rerank": ("/v1/rerank", with_nulls(RerankRequest, PAIR), PAIR),
    "rerank-v2": ("/v2/rerank", with_nulls(RerankRequest, PAIR), PAIR),
    "rerank-document": (
        "/v1/rerank",
        {**PAIR, "documents": [{"text": "a", "title": None}], "return_documents": None},
        PAIR,
    ),
    "infer": (
        "/v2/models/words/infer",
        {
            "inputs": [{**INPUT, "parameters": None}],
            "outputs": None,
            "id": None,
            "parameters": None,
            "model_name": None,
        },
        {"inputs": [INPUT]},
    ),
    "infer-within": (
        "/v2/models/words/infer",
        {
            "inputs": [{**INPUT, "parameters": {"binary_data_size": None}}],
            "outputs": [{"name": "embedding", "parameters": None}],
            "parameters": {"priority": None, "timeout": None, "tenant": None},
        },
        {"inputs": [INPUT]},
    ),
    "generate": (
        "/v2/models/words/generate",
        {"text_input": "a", "id": None, "parameters": None, "stream": None},
        {"text_input": "a"},
    ),
    "index": ("/v2/repository/index", {"ready": None}, {}),
    "drain": ("/admin/drain", {"draining": None}, {}),
}


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    with Stacks() as served:
        yield served


@pytest.fixture(params=["http", "asgi"])
def http(stacks: Stacks, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    address = stacks.addresses.of(request.param)
    with httpx.Client(base_url=f"http://{address}", timeout=MOST_S) as client:
        yield client


@pytest.mark.parametrize("name", CASES)
def test_null_is_absence(http: httpx.Client, name: str) -> None:
    route, nulls, without = CASES[name]
    said, unsaid = http.post(route, json=nulls), http.post(route, json=without)
    assert said.status_code == unsaid.status_code == 200, said.text

    def compared(answer: Any) -> Any:
        return answer | {"id": ""} if isinstance(answer, dict) else answer

    assert compared(said.json()) == compared(unsaid.json())


def test_null_for_a_field_that_must_be_there_is_refused_by_name(http: httpx.Client) -> None:
    for route, body, field in (
        ("/v1/embeddings", {**WORDS, "input": None}, "input"),
        ("/v1/rerank", {**PAIR, "query": None}, "query"),
        ("/v2/models/words/infer", {"inputs": [{**INPUT, "name": None}]}, "name"),
    ):
        answer = http.post(route, json=body)
        assert answer.status_code == 400
        assert field in answer.text


def test_a_whole_number_may_be_written_with_a_point(http: httpx.Client) -> None:
    answer = http.post("/v1/embeddings", json={**WORDS, "dimensions": 2.0})
    assert len(answer.json()["data"][0]["embedding"]) == 2
    assert http.post("/v1/embeddings", json={**WORDS, "dimensions": 2.5}).status_code == 400
