"""Ollama's routes for language models, on a two-layer model: over plain HTTP, and by the `ollama`
client where it is installed. Its others: `integration/server/compatible/test_ollama_routes.py`."""

import contextlib
import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from serving import MOST_S, Serving

from described import check_described

pytestmark = pytest.mark.real_time
HELLO = [{"role": "user", "content": "Hello"}]
OPTIONS = {"num_predict": 12, "temperature": 0}
CHAT: dict[str, Any] = {"model": "tiny", "messages": HELLO, "stream": False, "options": OPTIONS}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "stream": False, "options": OPTIONS}
needs_llguidance = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="headway[llm] brings it"
)


@pytest.fixture(scope="module")
def http(served: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=MOST_S) as found:
        yield found


@pytest.fixture(scope="module")
def text(http: httpx.Client) -> str:
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    answer = http.post("/v1/chat/completions", json=asked).json()
    return str(answer["choices"][0]["message"]["content"])


def lines_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_chat_is_answered(http: httpx.Client, text: str) -> None:
    answer = http.post("/api/chat", json=CHAT)
    check_described(http, "/api/chat", answer)
    found = answer.json()
    assert found["message"] == {"role": "assistant", "content": text}
    assert (found["done"], found["done_reason"], found["model"]) == (True, "length", "tiny")
    assert (found["prompt_eval_count"], found["eval_count"]) == (7, 12)
    assert 0 < found["eval_duration"] < found["total_duration"]
    assert 0 < found["prompt_eval_duration"] < found["total_duration"]
    assert sum(found[f"{part}_duration"] for part in ("eval", "prompt_eval")) == pytest.approx(
        found["total_duration"], abs=2
    )


def test_a_prompt_is_answered_as_a_chat_of_one(http: httpx.Client, text: str) -> None:
    answer = http.post("/api/generate", json={**TEXT, "context": [], "raw": False})
    check_described(http, "/api/generate", answer)
    assert answer.json()["response"] == text
    system = http.post("/api/generate", json={**TEXT, "system": "Be brief"}).json()
    messages = [{"role": "system", "content": "Be brief"}, *HELLO]
    chat = http.post("/api/chat", json={**CHAT, "messages": messages}).json()
    assert system["response"] == chat["message"]["content"] != text


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_it_streams_lines_unless_told_otherwise(http: httpx.Client, text: str, path: str) -> None:
    asked = {**(CHAT if path == "/api/chat" else TEXT)}
    del asked["stream"]
    *pieces, last = lines_of(http.post(path, json=asked))
    shown = [
        each["message"]["content"] if "message" in each else each["response"] for each in pieces
    ]
    assert len(shown) > 1
    assert "".join(shown) == text
    assert not any(each["done"] for each in pieces)
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "length", 12)


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_without_a_prompt_the_model_is_there(http: httpx.Client, path: str) -> None:
    found = http.post(path, json={"model": "tiny:latest", "keep_alive": "5m"}).json()
    assert (found["done"], found["done_reason"]) == (True, "load")
    told = http.post(path, json={"model": "tiny", "keep_alive": 0})
    assert (told.status_code, "keep_alive: " in told.json()["error"]) == (400, True)


def test_options_of_loading_change_nothing(http: httpx.Client, text: str) -> None:
    more = {"num_ctx": 8192, "num_gpu": 99, "num_thread": 2, "use_mmap": True, "mirostat": 0}
    asked = {**CHAT, "options": {**OPTIONS, **more, "tfs_z": 1.0, "stop": []}, "think": False}
    assert http.post("/api/chat", json=asked).json()["message"]["content"] == text
    stop = text[4:6]
    cut = {**CHAT, "options": {**OPTIONS, "num_predict": -1, "stop": [stop]}}
    found = http.post("/api/chat", json=cut).json()
    assert found["message"]["content"] == text[: text.find(stop)]
    assert found["done_reason"] == "stop"


@needs_llguidance
def test_an_answer_has_the_form_that_is_asked_for(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {**schema, "additionalProperties": False}
    asked = {**CHAT, "options": {"num_predict": 60, "temperature": 0}}
    found = http.post("/api/chat", json={**asked, "format": form}).json()
    assert list(json.loads(found["message"]["content"])) == ["ok"]
    loose = http.post("/api/chat", json={**asked, "format": "json"}).json()
    assert loose["message"]["content"].startswith("{")
    wrong = http.post("/api/chat", json={**asked, "format": {"required": "a"}})
    assert (wrong.status_code, wrong.json()["error"][:7]) == (400, "format.")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"options": {"temperature": -1}}, "options.temperature: "),
        ({"options": {"top_k": "many"}}, "$.options.top_k"),
        ({"options": {"mirostat": 2}}, "$.options.mirostat"),
        ({"options": {"taste": 1}}, "options.taste: there is no such field"),
        ({"options": {"penalize_newline": False}}, "options.penalize_newline: "),
        ({"format": "yaml"}, "format: "),
        ({"think": "a lot"}, "$.think"),
        ({"tools": [{"type": "function"}]}, "tools[0].function: "),
        ({"logprobs": True}, "logprobs: this field is not supported"),
        ({"truncate": True}, "truncate: this field is not supported; "),
        (
            {"messages": [{"role": "nobody", "content": ""}]},
            "messages[0].role: 'nobody' is unknown",
        ),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content: a text"),
        ({"messages": [{**HELLO[0], "images": ["aGk="]}]}, "messages[0].images: this field"),
        ({"messages": [{**HELLO[0], "content": "x" * 10**6}]}, "messages[0].content: at least "),
    ],
)
def test_what_is_refused_is_named(http: httpx.Client, given: dict[str, Any], words: str) -> None:
    answer = http.post("/api/chat", json={**CHAT, **given})
    assert (answer.status_code, words in answer.json()["error"]) == (400, True), answer.text


@pytest.mark.parametrize(
    "given", [{"raw": True}, {"template": "{{ .Prompt }}"}, {"suffix": "x"}, {"context": [1]}]
)
def test_what_a_template_or_a_suffix_would_do_is_refused(
    http: httpx.Client, given: dict[str, Any]
) -> None:
    answer = http.post("/api/generate", json={**TEXT, **given})
    (name,) = given
    assert (answer.status_code, answer.json()["error"].partition(":")[0]) == (400, name)


def test_a_model_is_shown(http: httpx.Client) -> None:
    shown = http.post("/api/show", json={"model": "tiny"}).json()
    assert "completion" in shown["capabilities"]
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == 256


def test_a_client_that_leaves_ends_its_answer(served: Serving, http: httpx.Client) -> None:
    asked = {**CHAT, "options": {"num_predict": -1}, "stream": True}
    with http.stream("POST", "/api/chat", json=asked) as answer:
        next(answer.iter_lines())
    served.wait_idle()


# ---- the client


@pytest.fixture
def client(served: Serving) -> Iterator[Any]:
    ollama = pytest.importorskip("ollama", reason="pip install ollama")
    with contextlib.closing(ollama.Client(served.url, timeout=MOST_S)) as found:
        yield found


def test_the_client_asks_and_streams(client: Any, text: str) -> None:
    asked = {"model": "tiny", "messages": HELLO, "options": OPTIONS}
    found = client.chat(**asked)
    assert (found.message.content, found.done_reason) == (text, "length")
    assert "".join(each.message.content for each in client.chat(**asked, stream=True)) == text
    prompt = {"model": "tiny", "prompt": "Hello", "options": OPTIONS}
    assert client.generate(**prompt).response == text
    assert "".join(each.response for each in client.generate(**prompt, stream=True)) == text


def test_the_client_lists_and_shows(client: Any) -> None:
    assert [each.model for each in client.list().models] == ["tiny"]
    assert client.show("tiny").capabilities == ["completion", "tools"]


def test_the_client_is_told_what_is_wrong(client: Any) -> None:
    import ollama

    with pytest.raises(ollama.ResponseError, match="images: this field is not supported"):
        client.chat(model="tiny", messages=[{**HELLO[0], "images": ["aGk="]}])
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(model="nobody", messages=HELLO)
    assert caught.value.status_code == 404
