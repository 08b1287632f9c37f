"""A model of one's own that gives vectors answers OpenAI's route, as the guide says."""

from typing import Any

import numpy
import pytest
from small_server import serving

import headway

pytestmark = pytest.mark.real_time


class Letters(headway.Model[str, Any]):
    """The guide's."""

    outputs = (headway.Tensor("embedding", "float32", (-1, 2)),)
    inputs = (headway.Tensor("text", "object", (-1,)),)

    def predict(self, items: list[str]) -> list[Any]:
        return [numpy.array([len(text), text.count("a")], numpy.float32) for text in items]


class Hinted(headway.Model[str, list[float]]):
    def predict(self, items: list[str]) -> list[list[float]]:
        return [[len(text), text.count("a")] for text in items]


class Records(headway.Model[Any, list[float]]):
    def predict(self, items: list[dict[str, int]]) -> list[list[float]]:
        return [[each["a"]] for each in items]


@pytest.mark.parametrize("model", [Letters(), Hinted()], ids=["tensors", "hints"])
async def test_a_model_that_gives_vectors_answers_openais_route(model: Any) -> None:
    async with serving(model=model) as http:
        body = {"model": "model", "input": ["aab", "c"]}
        answer = await http.post("/v1/embeddings", json=body)
        assert answer.status_code == 200, answer.text
        assert [each["embedding"] for each in answer.json()["data"]] == [[3, 2], [1, 0]]
        (listed,) = (await http.get("/v1/models")).json()["data"]
        assert listed["task"] == "feature-extraction"


async def test_a_model_of_records_is_no_model_of_texts() -> None:
    async with serving(model=Records()) as http:
        answer = await http.post("/v1/embeddings", json={"model": "model", "input": "a"})
        assert answer.status_code == 400
        assert "does not make embeddings" in answer.text
