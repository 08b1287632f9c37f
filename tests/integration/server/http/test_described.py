"""What routes answer is what `/openapi.json` says they do, field by field. A language model's are
in `tests/llm`."""

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, TypedDict

import httpx
import pytest
from served_models import Pairs, Words

import headway
from described import check_described
from headway import Tensor, testing

CLIP = {"file": ("clip.wav", b"RIFF")}
RANKING = {"query": "ab", "documents": ["a", {"text": "b"}]}


class Part(NamedTuple):
    start_s: float
    end_s: float
    text: str


class Heard(str):
    duration_s = 1.5
    language = "en"
    segments = (Part(0.0, 1.5, "hello"),)


class Hears(headway.Model[bytes, str]):
    inputs: ClassVar = [Tensor("audio", "object", (-1,))]
    outputs: ClassVar = [Tensor("text", "object", (-1,))]

    def predict(self, items: list[bytes]) -> list[str]:
        return [Heard("hello")] * len(items)


class Draws(headway.Model[str, bytes]):
    inputs: ClassVar = [Tensor("prompt", "object", (-1,))]
    outputs: ClassVar = [Tensor("image", "object", (-1,))]

    def predict(self, items: list[str]) -> list[bytes]:
        return [b"an image"] * len(items)


class Classes(TypedDict):
    labels: list[str]
    scores: list[float]


class Mood(headway.Model[str, Classes]):
    inputs: ClassVar = [Tensor("text", "object", (-1,))]
    outputs: ClassVar = [
        Tensor("labels", "object", (-1, 2)),
        Tensor("scores", "float32", (-1, 2)),
    ]

    def predict(self, items: list[str]) -> list[Classes]:
        return [{"labels": ["good", "bad"], "scores": [0.75, 0.25]}] * len(items)


class Talk(TypedDict):
    messages: list[dict[str, Any]]


class Talks(headway.Model[Talk, str]):
    def predict(self, items: list[Talk]) -> list[str]:
        return ["hello"] * len(items)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    models = {
        **{"words": Words, "pairs": Pairs, "hears": Hears, "draws": Draws},
        **{"mood": Mood, "talks": Talks},
    }
    with testing.client(models, warm_up=False, admin_without_key=True) as client:
        yield client.http


@pytest.mark.parametrize(
    ("path", "template"),
    [
        *((path, path) for path in ("/v2", "/v2/health/live", "/v2/models", "/v2/models/stats")),
        *((path, path) for path in ("/v1/models", "/v2/logging", "/v2/trace/setting")),
        ("/v2/systemsharedmemory/status", "/v2/systemsharedmemory/status"),
        ("/v1/models/words", "/v1/models/{model}"),
        ("/models/words/info", "/models/{model}/info"),
        *(
            (f"/v2/models/{name}{what}", f"/v2/models/{{model}}{what}")
            for name in ("words", "mood")
            for what in ("", "/config", "/stats", "/ready", "/trace/setting")
        ),
    ],
)
def test_what_is_read_is_as_described(http: httpx.Client, path: str, template: str) -> None:
    http.post("/v1/predict/words", json="a")  # so that there are figures of a batch
    check_described(http, template, http.get(path).raise_for_status())


@pytest.mark.parametrize(
    ("template", "body"),
    [
        ("/v1/embeddings", {"model": "words", "input": ["a", "b"]}),
        ("/v1/embeddings", {"model": "words", "input": "a", "encoding_format": "base64"}),
        ("/v1/rerank", {"model": "pairs", **RANKING, "return_documents": True}),
        ("/v2/rerank", {"model": "pairs", **RANKING, "top_n": 1}),
        ("/v1/images/generations", {"model": "draws", "prompt": "a disc", "n": 2}),
        (
            "/v1/chat/completions",
            {"model": "talks", "messages": [{"role": "user", "content": "hi"}]},
        ),
        ("/v1/embed", {"model": "words", "texts": ["a"]}),
        ("/v2/embed", {"model": "words", "texts": ["a"], "embedding_types": ["float", "base64"]}),
        ("/v2/repository/index", {}),
        ("/v2/logging", {"log_verbose_level": 0}),
        ("/v2/trace/setting", {"trace_level": ["OFF"], "trace_rate": None}),
        ("/embed", {"inputs": ["a"]}),
        ("/rerank", {"query": "a", "texts": ["a", "b"], "return_text": True}),
        ("/predict", {"inputs": "hello"}),
        ("/predict", {"inputs": [["hello"], ["bye"]]}),
    ],
)
def test_what_is_asked_is_answered_as_described(
    http: httpx.Client, template: str, body: dict[str, Any]
) -> None:
    check_described(http, template, http.post(template, json=body).raise_for_status())


@pytest.mark.parametrize(
    ("template", "path", "body"),
    [
        ("/v1/models/{model}:predict", "/v1/models/words:predict", {"instances": ["a"]}),
        (
            "/v2/models/{model}/generate",
            "/v2/models/words/generate",
            {"text_input": "a", "id": "7", "parameters": None},
        ),
        (
            "/v2/models/{model}/infer",
            "/v2/models/words/infer",
            {"inputs": [{"name": "input", "shape": [1], "datatype": "BYTES", "data": ["a"]}]},
        ),
    ],
)
def test_so_it_is_of_one_model(
    http: httpx.Client, template: str, path: str, body: dict[str, Any]
) -> None:
    check_described(http, template, http.post(path, json=body).raise_for_status())


@pytest.mark.parametrize("form", ["json", "verbose_json"])
def test_a_transcription_is_as_described(http: httpx.Client, form: str) -> None:
    asked = {"model": "hears", "response_format": form}
    answer = http.post("/v1/audio/transcriptions", data=asked, files=CLIP).raise_for_status()
    check_described(http, "/v1/audio/transcriptions", answer)


def test_every_field_of_a_form_that_the_route_knows_is_described(http: httpx.Client) -> None:
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    answer = http.post("/v1/audio/transcriptions", data={"colour": "red"}, files=CLIP)
    known = answer.json()["error"]["message"].partition("there are ")[2].split(", ")
    assert list(schemas["TranscriptionForm"]["properties"]) == known
    assert schemas["TranscriptionForm"]["required"] == ["model", "file"]


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("/v1/embeddings", "/v1/embeddings"),
        ("/v2/rerank", "/v2/rerank"),
        ("/v2/models/{model}/infer", "/v2/models/words/infer"),
        ("/v1/models/{model}:predict", "/v1/models/words:predict"),
        ("/v2/logging", "/v2/logging"),
    ],
)
def test_a_refusal_is_as_described(http: httpx.Client, template: str, path: str) -> None:
    answer = http.post(path, json={"colour": 1})
    assert answer.status_code == 400
    check_described(http, template, answer)
