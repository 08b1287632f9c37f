"""Clients of other servers, unmodified, on models of ours: Hugging Face's hub client and TEI's
shapes, Cohere's, KServe's first protocol. On the ready-made models: `test_tasks.py`."""

import base64
import struct
import zlib
from collections.abc import Iterator
from typing import Any, ClassVar, TypedDict

import httpx
import numpy
import pytest
from served_models import MOST_S
from stacks import Stacks, Watched

import headway
from headway.model import Tensor

hub = pytest.importorskip("huggingface_hub")
cohere = pytest.importorskip("cohere")
PNG = b"\x89PNG\r\n\x1a\n" + b"".join(
    struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    for kind, data in (
        (b"IHDR", bytes([0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, 0])),
        (b"IDAT", zlib.compress(b"\0\xff")),
        (b"IEND", b""),
    )
)


class Classes(TypedDict):
    labels: list[str]
    scores: list[float]


CLASSES = (Tensor("labels", "object", (-1, 2)), Tensor("scores", "float32", (-1, 2)))


class Mood(headway.Model[str, Classes]):
    inputs: ClassVar = [Tensor("text", "object", (-1,))]
    outputs: ClassVar = CLASSES

    def predict(self, items: list[str]) -> list[Classes]:
        return [
            {"labels": ["good", "bad"], "scores": [0.75, 0.25]}
            if "!" in each
            else {"labels": ["bad", "good"], "scores": [0.5, 0.5]}
            for each in items
        ]


class Bytes(headway.Model[bytes, Classes]):
    inputs: ClassVar = [Tensor("image", "object", (-1,))]
    outputs: ClassVar = CLASSES

    def predict(self, items: list[bytes]) -> list[Classes]:
        return [
            {"labels": [each[1:4].decode(), "other"], "scores": [1.0, float(len(each))]}
            for each in items
        ]


class Draws(headway.Model[str, bytes]):
    inputs: ClassVar = [Tensor("prompt", "object", (-1,))]
    outputs: ClassVar = [Tensor("image", "object", (-1,))]

    def prepare(self, raw: str, *, size: str = "", seed: int = 0, steps: int = 0) -> str:
        return f"{raw} {size} {seed} {steps}"

    def predict(self, items: list[str]) -> list[bytes]:
        self.last = items[-1]
        return [PNG] * len(items)


class Directions(headway.Model[str, Any]):
    """Scales its vectors itself, and says so."""

    normalizes: ClassVar = True
    inputs: ClassVar = [Tensor("text", "object", (-1,))]
    outputs: ClassVar = [Tensor("embedding", "float32", (-1, 2))]

    def predict(self, items: list[str]) -> list[Any]:
        return [numpy.array([0.6, 0.8], numpy.float32)] * len(items)


class Prompted(headway.Model[str, Any]):
    """Has prompts as sentence-transformers' folders do, and answers how long a text then is."""

    inputs: ClassVar = [Tensor("text", "object", (-1,))]
    outputs: ClassVar = [Tensor("embedding", "float32", (-1, 1))]
    prompts: ClassVar = {"query": "q: ", "passage": "text: ", "clustering": "cluster: "}

    def prepare(self, raw: str, *, prompt_name: str = "") -> str:
        return self.prompts[prompt_name] + raw if prompt_name else raw

    def predict(self, items: list[str]) -> list[Any]:
        return [numpy.array([len(item)], numpy.float32) for item in items]


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    with Stacks() as served:
        for name, model in (
            ("mood", Mood()),
            ("photos", Bytes()),
            ("draws", Draws()),
            ("directions", Directions()),
            ("prompted", Prompted()),
        ):
            watched = Watched(name, model)
            served.run(watched.start).result(MOST_S)
            served.registry.add(watched)
        yield served


@pytest.fixture(params=["http", "asgi"])
def url(stacks: Stacks, request: pytest.FixtureRequest) -> str:
    return f"http://{stacks.addresses.of(request.param)}"


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=MOST_S) as client:
        yield client


# ---- huggingface_hub


def hub_client(url: str, model: str, **options: Any) -> Any:
    return hub.InferenceClient(f"{url}/models/{model}", token="none", timeout=MOST_S, **options)


def test_the_hubs_client_extracts_features(url: str) -> None:
    client = hub_client(url, "words")
    one = client.feature_extraction("aab", normalize=False)
    assert one.tolist() == [[3, 2, 1, 1]]
    several = client.feature_extraction(["aab", "b"], normalize=False, truncation_direction="right")
    assert several.tolist() == [[3, 2, 1, 1], [1, 0, 1, 1]]
    assert client.feature_extraction("b", dimensions=1).tolist() == [[1]]


@pytest.mark.parametrize("normalize", [{}, {"normalize": True}, {"normalize": None}])
def test_embed_scales_vectors_to_length_1_unless_told_not_to(
    http: httpx.Client, normalize: dict[str, Any]
) -> None:
    for path in ("/models/words/embed", "/models/words"):
        own = http.post(path, json={"inputs": "aab", "normalize": False}).json()
        assert own == [[3, 2, 1, 1]]
        [scaled] = http.post(path, json={"inputs": "aab", **normalize}).json()
        assert scaled == pytest.approx([each / 15**0.5 for each in own[0]])


def test_a_model_that_scales_its_vectors_itself_has_no_others(http: httpx.Client) -> None:
    asked = {"inputs": ["aab"], "normalize": False}
    answer = http.post("/models/directions/embed", json=asked)
    assert (answer.status_code, "normalize: false" in answer.text) == (400, True)
    found = http.post("/models/directions/embed", json={**asked, "normalize": True}).json()
    assert found == [pytest.approx([0.6, 0.8])]


def test_with_fewer_dimensions_a_vector_is_scaled_only_where_it_is_asked_for(
    http: httpx.Client,
) -> None:
    asked = {"inputs": "aab", "dimensions": 2}
    own = http.post("/models/words/embed", json={**asked, "normalize": False}).json()
    assert own == [[3, 2]]
    [scaled] = http.post("/models/words/embed", json=asked).json()
    assert scaled == pytest.approx([3 / 13**0.5, 2 / 13**0.5])


def test_the_hubs_client_compares_sentences(url: str) -> None:
    of_vectors = hub_client(url, "words").sentence_similarity("ab", ["ab", "zzzzzzzz"])
    assert of_vectors[0] == pytest.approx(1)
    assert of_vectors[1] < 0.95
    assert hub_client(url, "pairs").sentence_similarity("ab", ["b", "abc", "z"]) == [1, 2, 0]


def test_the_hubs_client_classifies_texts(url: str) -> None:
    client = hub_client(url, "mood")
    good, bad = client.text_classification("yes!")
    assert (good.label, good.score, bad.label) == ("good", 0.75, "bad")
    [only] = client.text_classification("yes!", top_k=1)
    assert only.label == "good"
    with pytest.raises(hub.errors.HfHubHTTPError, match="function_to_apply"):
        client.text_classification("yes!", function_to_apply="sigmoid")


def test_the_hubs_client_classifies_images(url: str) -> None:
    client = hub_client(url, "photos")
    found = client.image_classification(PNG)
    assert [(each.label, each.score) for each in found] == [("PNG", 1), ("other", len(PNG))]
    [best] = client.image_classification(PNG, top_k=1)  # then it comes in base64
    assert best.label == "PNG"


def test_the_hubs_client_draws(url: str, stacks: Stacks) -> None:
    image = hub_client(url, "draws").text_to_image("a cat", width=8, height=16, seed=7)
    assert image.size == (1, 1)
    model: Any = stacks.model("draws").model
    assert model.last == "a cat 8x16 7 0"


def test_the_hubs_client_asks_for_health_and_what_there_is(url: str) -> None:
    def client(model: str) -> Any:
        return hub_client(url, model, provider="hf-inference")  # else it does not ask at all

    assert client("words").health_check()
    assert client("words").get_endpoint_info()["model_pipeline_tag"] == "feature-extraction"
    assert not client("cold").health_check()  # it was never started
    assert not client("nothing").health_check()


def test_a_task_may_stand_in_the_path(http: httpx.Client) -> None:
    def ask(path: str, inputs: Any) -> httpx.Response:
        return http.post(f"/models/{path}", json={"inputs": inputs, "parameters": {}})

    found = ask("words/pipeline/feature-extraction", "b").json()
    assert found == [pytest.approx([each / 3**0.5 for each in (1, 0, 1, 1)])]
    pair = {"source_sentence": "ab", "sentences": ["b"]}
    assert ask("pairs/pipeline/sentence-similarity", pair).json() == [1]
    wrong = ask("words/pipeline/text-classification", "b")
    assert (wrong.status_code, "does not do" in wrong.text) == (400, True)
    assert ask("flip", "b").status_code == 400
    assert ask("nothing", "b").status_code == 404


# ---- TEI


def test_teis_routes(http: httpx.Client) -> None:
    def ask(path: str, **body: Any) -> Any:
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert ask("/models/words/embed", inputs=["b"], normalize=False) == [[1, 0, 1, 1]]
    ranked = ask("/rerank", query="ab", texts=["b", "abc", "z"], return_text=True)
    assert ranked == [
        {"index": 1, "score": 2, "text": "abc"},
        {"index": 0, "score": 1, "text": "b"},
        {"index": 2, "score": 0, "text": "z"},
    ]
    good = [{"label": "good", "score": 0.75}, {"label": "bad", "score": 0.25}]
    assert ask("/predict", inputs="yes!") == good
    assert ask("/predict", inputs=[["yes!"], ["no!"]]) == [good, good]
    assert ask("/models/words/similarity", inputs={"source_sentence": "a", "sentences": ["a"]}) == [
        pytest.approx(1)
    ]


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/embed", {"inputs": "a"}, "name one in the path"),  # several models embed
        ("/models/words/embed", {"inputs": []}, "inputs: at least one"),
        ("/models/words/embed", {"inputs": "a", "prompt_name": "query"}, "prompt_name"),
        ("/models/words/embed", {"inputs": "a", "truncation_direction": "left"}, "direction"),
        ("/models/words/embed", {"inputs": "a", "truncate": True}, "truncate"),  # not its parameter
        ("/models/mood/embed", {"inputs": "a"}, "does not make embeddings"),
        ("/rerank", {"query": "a", "texts": ["a"], "raw_scores": True}, "raw_scores"),
        ("/rerank", {"query": "", "texts": ["a"]}, "query"),
        ("/rerank", {"query": "a", "texts": []}, "texts"),
        ("/predict", {"inputs": ["a", "b", "c"], "colour": 1}, "colour"),
        ("/predict", {"inputs": [["a", "b"]]}, "pairs"),
        ("/predict", {"inputs": [3]}, "inputs[0]"),
        ("/predict", {"inputs": "a", "parameters": {"inputs": "b"}}, "given twice"),
        ("/predict", {"inputs": "a", "parameters": 3}, "parameters"),
        ("/predict?colour=1", {"inputs": "a"}, "colour"),
        ("/models/draws", {"inputs": "a", "width": 8}, "height"),
        ("/models/photos", {"inputs": "not base64!"}, "base64"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    http: httpx.Client, path: str, body: dict[str, Any], why: str
) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert why in answer.json()["error"]


def test_a_file_may_be_missing(http: httpx.Client) -> None:
    answer = http.post("/models/photos", content=b"", headers={"content-type": "image/png"})
    assert (answer.status_code, "empty" in answer.text) == (400, True)


# ---- Cohere


@pytest.fixture(params=["Client", "ClientV2"])
def coheres(request: pytest.FixtureRequest, url: str) -> Iterator[Any]:
    with httpx.Client(timeout=MOST_S) as client:
        yield getattr(cohere, request.param)(api_key="none", base_url=url, httpx_client=client)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the client's own merging
def test_coheres_client_embeds(coheres: Any) -> None:
    given: dict[str, Any] = {"model": "words", "texts": ["aab", "b"], "input_type": "clustering"}
    types = ["float", "ubinary", "binary", "base64"]
    found = coheres.embed(**given, embedding_types=types)
    by_type = found.embeddings
    assert by_type.float_ == [[3, 2, 1, 1], [1, 0, 1, 1]]
    assert by_type.ubinary == [[0b11110000], [0b10110000]]
    assert by_type.binary == [[0b11110000 - 128], [0b10110000 - 128]]
    packed = numpy.frombuffer(base64.b64decode(by_type.base64[0]), "<f4")
    assert packed.tolist() == [3, 2, 1, 1]
    assert found.texts == ["aab", "b"]


def test_coheres_older_client_gets_floats_by_default(url: str) -> None:
    with httpx.Client(timeout=MOST_S) as client:
        old = cohere.Client(api_key="none", base_url=url, httpx_client=client)
        found = old.embed(model="words", texts=["aab"] * 200, input_type="search_query")
        assert found.response_type == "embeddings_floats"
        assert found.embeddings == [[3, 2, 1, 1]] * 200  # of several requests, merged by the client


def test_coheres_newer_client_embeds_contents_and_fewer_dimensions(url: str) -> None:
    with httpx.Client(timeout=MOST_S) as client:
        new = cohere.ClientV2(api_key="none", base_url=url, httpx_client=client)
        found = new.embed(
            model="words",
            inputs=[{"content": [{"type": "text", "text": "b"}]}],
            input_type="search_document",
            embedding_types=["float"],
            output_dimension=1,
        )
        assert found.embeddings.float_ == [[1]]


@pytest.mark.parametrize(
    ("input_type", "prompt"),
    [
        ("search_query", "q: "),
        ("search_document", "text: "),
        ("clustering", "cluster: "),
        ("classification", ""),  # the model has none of this name
    ],
)
def test_coheres_input_type_chooses_the_models_prompt(
    http: httpx.Client, input_type: str, prompt: str
) -> None:
    asked = {"model": "prompted", "texts": ["abc"], "input_type": input_type}
    found = http.post("/v2/embed", json=asked).json()["embeddings"]["float"]
    assert found == [[len(prompt) + 3]]


def test_embed_takes_the_name_of_a_prompt(http: httpx.Client, url: str) -> None:
    client = hub_client(url, "prompted")
    found = client.feature_extraction("abc", normalize=False, prompt_name="passage")
    assert found.tolist() == [[9]]
    asked = {"inputs": "abc", "prompt_name": "query", "normalize": False}
    assert http.post("/models/prompted/embed", json=asked).json() == [[6]]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"embedding_types": ["int8"]}, "embedding_types: 'int8'"),
        ({"truncate": "START"}, "truncate"),
        ({"images": ["data:"]}, "images"),
        ({"texts": None}, "texts: either texts or inputs"),
        ({"texts": []}, "texts: at least one"),
        ({"input_type": "image"}, "input_type"),
    ],
)
def test_what_coheres_embed_does_not_serve(
    http: httpx.Client, more: dict[str, Any], why: str
) -> None:
    for route in ("/v1/embed", "/v2/embed"):
        answer = http.post(route, json={"model": "words", "texts": ["a"], **more})
        assert answer.status_code == 400
        assert why in answer.text


def test_coheres_client_ranks_by_fields(url: str) -> None:
    documents = [{"title": "xyz", "text": "abc", "year": "1"}, {"title": "ab", "text": "c"}]
    with httpx.Client(timeout=MOST_S) as client:
        old = cohere.Client(api_key="none", base_url=url, httpx_client=client)

        def ask(**more: Any) -> list[tuple[int, float]]:
            found = old.rerank(model="pairs", query="abx", documents=documents, **more)
            return [(each.index, each.relevance_score) for each in found.results]

        assert ask() == [(0, 2), (1, 0)]  # by "text"
        assert ask(rank_fields=["title", "text"]) == [(0, 3), (1, 2)]
        assert ask(rank_fields=["title"], max_chunks_per_doc=1) == [(1, 2), (0, 1)]
        [first, _] = old.rerank(
            model="pairs", query="a", documents=documents, return_documents=True
        ).results
        assert (first.document.text, first.document.title) == ("abc", "xyz")
        with pytest.raises(cohere.BadRequestError) as caught:
            ask(rank_fields=["year"])
        assert "documents[1].year" in str(caught.value.body)


# ---- KServe's first protocol


def test_instances_become_predictions(http: httpx.Client) -> None:
    answer = http.post("/v1/models/words:predict", json={"instances": ["aab", "b"]})
    assert answer.json() == {"predictions": [[3, 2, 1, 1], [1, 0, 1, 1]]}
    one = http.post("/v1/models/flip:predict", json={"instances": [{"x": [3]}]})
    assert one.json() == {"predictions": [[-4]]}, one.text
    ready = http.get("/v1/models/words").json()
    assert (ready["name"], ready["ready"], ready["id"]) == ("words", True, "words")


def test_instances_that_do_not_fit(http: httpx.Client) -> None:
    for body, status, why in (
        ({"instances": []}, 400, "instances"),
        ({"instances": 3}, 400, "instances"),
        ({"inputs": ["a"]}, 400, "inputs"),
        ({"instances": [3]}, 400, ""),
        ({"instances": [0] * 40_001}, 413, "rows"),
        ({"instances": ["a"], "parameters": {"colour": 1}}, 400, "colour"),
    ):
        answer = http.post("/v1/models/words:predict", json=body)
        assert answer.status_code == status, answer.text
        assert why in answer.json()["error"]
    missing = http.post("/v1/models/nothing:predict", json={"instances": ["a"]})
    assert (missing.status_code, isinstance(missing.json()["error"], str)) == (404, True)


# ---- health


def test_health_is_that_of_all_models(http: httpx.Client) -> None:
    answer = http.get("/health")
    assert answer.status_code == 503  # `cold` was never started
    assert answer.headers["retry-after"] == "1"
    assert http.get("/models/words/health").json() == {"status": "ok"}
