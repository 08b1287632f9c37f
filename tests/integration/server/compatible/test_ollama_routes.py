"""Ollama's routes that need no language model: embeddings, and which models there are."""

from typing import Annotated, Any

import httpx
import numpy
import pytest
from small_server import STACKS, serving

import headway


class Counts(headway.Model[str, Any]):
    """A text as two numbers."""

    def predict(
        self, items: list[str]
    ) -> Annotated[Any, headway.Tensor("embedding", "float32", (-1, 2))]:
        return numpy.array([[len(each), each.count("a")] for each in items], numpy.float32)


class Shout(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return [each.upper() for each in items]


async def embedded(http: httpx.AsyncClient, **asked: Any) -> Any:
    answer = await http.post("/api/embed", json={"model": "counts", **asked})
    assert answer.status_code == 200, answer.text
    return answer.json()["embeddings"]


@pytest.mark.parametrize("stack", STACKS)
async def test_texts_are_vectors_of_length_one(stack: str) -> None:
    async with serving(stack, counts=Counts()) as http:
        assert await embedded(http, input="aaab") == [pytest.approx([0.8, 0.6])]
        many = await embedded(http, input=["b", "a"], truncate=True, keep_alive="5m")
        assert many == [pytest.approx([1, 0]), pytest.approx([0.5**0.5, 0.5**0.5])]
        one = await embedded(http, model="counts:latest", input="a", dimensions=1, options={})
        assert one == [[1]]


async def test_models_are_listed_and_shown() -> None:
    async with serving(counts=Counts(), shout=Shout()) as http:
        tags = (await http.get("/api/tags")).json()["models"]
        assert sorted(each["model"] for each in tags) == ["counts", "shout"]
        shown = (await http.post("/api/show", json={"model": "counts"})).json()
        assert shown["capabilities"] == ["embedding"]
        assert (await http.post("/api/show", json={"model": "shout"})).json()["capabilities"] == []
        version = (await http.get("/api/version")).json()["version"]
        assert [part.isdigit() for part in version.split(".")] == [True] * 3


@pytest.mark.parametrize(
    ("path", "asked", "status", "words"),
    [
        ("/api/embed", {"model": "nobody", "input": "a"}, 404, "nobody"),
        ("/api/embed", {"model": "shout", "input": "a"}, 400, "'shout' does not make embeddings"),
        ("/api/embed", {"model": "counts", "input": [1, 2]}, 400, "input: texts are expected"),
        ("/api/embed", {"model": "counts", "input": []}, 400, "input: at least one"),
        ("/api/embed", {"model": "counts", "input": "a", "dimensions": 3}, 400, "dimensions: 3"),
        ("/api/embed", {"model": "counts"}, 400, "input: this field is missing"),
        ("/api/show", {"model": "nobody"}, 404, "nobody"),
        ("/api/chat", {"model": "counts", "messages": [{"role": "user"}]}, 400, "generate text"),
        ("/api/chat", {"model": "counts"}, 400, "'counts' does not generate text"),
        ("/api/pull", {"model": "counts"}, 404, "/docs"),
    ],
)
async def test_what_is_refused_is_named(
    path: str, asked: dict[str, Any], status: int, words: str
) -> None:
    async with serving(counts=Counts(), shout=Shout()) as http:
        answer = await http.post(path, json=asked)
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
