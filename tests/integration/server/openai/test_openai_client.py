"""Unmodified `openai` clients, sync and async, on the real embedding model."""

import asyncio
import base64
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from real_server import Server

openai = pytest.importorskip("openai")


class Client:
    """One face for both clients."""

    def __init__(self, name: str, url: str) -> None:
        kind = openai.OpenAI if name == "sync" else openai.AsyncOpenAI
        self.runner = asyncio.Runner()
        self.client = kind(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20)

    def __call__(self, ask: Callable[[Any], Any]) -> Any:
        async def main() -> Any:
            found = ask(self.client)
            return await found if hasattr(found, "__await__") else found

        return self.runner.run(main())

    def embed(self, given: Any, **options: Any) -> Any:
        return self(lambda client: client.embeddings.create(model="minilm", input=given, **options))


@pytest.fixture(scope="module", params=["sync", "async"])
def client(request: pytest.FixtureRequest, minilm: Server) -> Iterator[Client]:
    made = Client(request.param, minilm.url)
    yield made
    made(lambda inner: inner.close())
    made.runner.close()


def vectors(answer: Any) -> Any:
    return numpy.array([each.embedding for each in answer.data], numpy.float32)


def test_models_are_listed(client: Client) -> None:
    page = client(lambda inner: inner.models.list())
    assert [each.id for each in page.data] == ["minilm"]
    found = client(lambda inner: inner.models.retrieve("minilm"))
    assert (found.id, found.object) == ("minilm", "model")


def test_a_text_becomes_a_unit_vector(client: Client) -> None:
    answer = client.embed("hello world")
    assert answer.model == "minilm"
    assert answer.object == "list"
    [entry] = answer.data
    assert (entry.object, entry.index, len(entry.embedding)) == ("embedding", 0, 384)
    assert numpy.linalg.norm(entry.embedding) == pytest.approx(1, rel=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 4  # [CLS] hello world [SEP]


def test_floats_base64_and_the_clients_default_say_the_same(client: Client) -> None:
    default, floats = client.embed("hello"), client.embed("hello", encoding_format="float")
    packed = client.embed("hello", encoding_format="base64").data[0].embedding
    assert isinstance(packed, str)
    unpacked = numpy.frombuffer(base64.b64decode(packed), "<f4")
    numpy.testing.assert_allclose(vectors(default)[0], vectors(floats)[0], atol=1e-6)
    numpy.testing.assert_allclose(vectors(default)[0], unpacked, atol=1e-6)


def test_fewer_dimensions_are_still_a_unit_vector(client: Client) -> None:
    whole, short = vectors(client.embed("hello"))[0], vectors(client.embed("hello", dimensions=64))
    assert short.shape == (1, 64)
    cut = whole[:64] / numpy.linalg.norm(whole[:64])
    numpy.testing.assert_allclose(short[0], cut, atol=1e-5)


def test_token_ids_stand_for_their_text(client: Client) -> None:
    ids = [101, 7592, 2088, 102]  # [CLS] hello world [SEP]
    text = vectors(client.embed("hello world"))[0]
    one, many = client.embed(ids), client.embed([ids, ids])
    numpy.testing.assert_allclose(vectors(one)[0], text, atol=1e-5)
    assert vectors(many).shape == (2, 384)
    assert many.usage.prompt_tokens == 8


def test_token_ids_of_another_tokenizer_are_refused(client: Client) -> None:
    """LangChain's default sends those of OpenAI's tokenizer."""
    with pytest.raises(openai.BadRequestError, match="not of this model's own tokenizer") as caught:
        client.embed([[15339, 1917]])  # hello world, in cl100k_base
    assert "begin with [101] and end with [102]" in caught.value.message


def test_the_list_of_models_says_whose_token_ids_are_taken(client: Client) -> None:
    found = client(lambda inner: inner.models.retrieve("minilm"))
    assert found.task == "feature-extraction"
    assert found.token_ids == {
        "tokenizer": "the model's own",
        "vocabulary": 30522,
        "begin_with": [101],
        "end_with": [102],
    }


def test_a_hundred_texts_come_back_in_order(client: Client) -> None:
    texts = [f"number {number}" for number in range(100)]
    answer = client.embed(texts)
    assert [each.index for each in answer.data] == list(range(100))
    found = vectors(answer)
    assert found.shape == (100, 384)
    for index in (0, 57, 99):
        numpy.testing.assert_allclose(
            found[index], vectors(client.embed(texts[index]))[0], atol=1e-4
        )


def test_what_does_not_change_the_answer_is_accepted(client: Client) -> None:
    assert vectors(client.embed("hello", user="me")).shape == (1, 384)


def test_an_unknown_model_is_not_found(client: Client) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client(lambda inner: inner.embeddings.create(model="gpt", input="a"))
    error = caught.value
    assert error.status_code == 404
    assert error.code == "model_not_found"
    assert error.type == "invalid_request_error"
    assert "no model 'gpt'; there are: minilm" in error.message
    with pytest.raises(openai.NotFoundError):
        client(lambda inner: inner.models.retrieve("gpt"))


@pytest.mark.parametrize(
    ("given", "options", "part"),
    [
        ([], {}, "at least one text"),
        (["a", 3], {}, "input[1]"),
        ([[1, "a"]], {}, "input[0]"),
        ([-1], {}, "token ids from 0"),
        ([10**9], {}, "token ids from 0"),
        ([[]], {}, "token ids from 0"),
        (3, {}, "$.input"),
        ({"a": 1}, {}, "$.input"),
        ("a", {"dimensions": 385}, "dimensions: 385 is more than the model gives: 384"),
        ("a", {"dimensions": 0}, "$.dimensions"),
        ("a", {"encoding_format": "hex"}, "$.encoding_format"),
        (["a"] * 2049, {}, "at most 2048"),
    ],
    ids=[
        *("nothing", "number", "mixed ids", "negative id", "huge id", "no ids", "not a text"),
        *("object", "too many dimensions", "no dimensions", "encoding", "too many texts"),
    ],
)
def test_a_mistake_is_a_bad_request_in_openais_shape(
    client: Client, given: Any, options: dict[str, Any], part: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embed(given, **options)
    error = caught.value
    assert part in error.message
    assert error.type == "invalid_request_error"
    assert error.code == "invalid_input"
    assert error.body.keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("model", ["upper", "double", "arithmetic"])
def test_a_model_that_does_not_embed_says_so(server: Server, model: str) -> None:
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match=f"'{model}' does not make embeddings"),
    ):
        client.embeddings.create(model=model, input="a")


def test_an_impossible_deadline_is_an_error_of_the_servers_kind(minilm: Server) -> None:
    headers = {"Headway-Timeout-Ms": "0.001"}
    with (
        openai.OpenAI(base_url=f"{minilm.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.embeddings.create(model="minilm", input="a", extra_headers=headers)
    assert caught.value.status_code == 504
    assert caught.value.type == "server_error"


def test_an_unknown_path_keeps_openais_shape(minilm: Server) -> None:
    answer = minilm.http.post("/v1/nothing", json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"input": "a"}',
        b'{"model": "minilm", "input": "\xff"}',
        b'{"model": "minilm", "input": ' + b"[" * 100_000,
    ],
    ids=lambda each: repr(each[:40]),
)
def test_a_body_that_is_no_request_is_a_400(minilm: Server, body: bytes) -> None:
    answer = minilm.http.post("/v1/embeddings", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_input"
