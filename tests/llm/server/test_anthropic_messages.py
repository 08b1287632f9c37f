"""Anthropic's routes on a two-layer model: over plain HTTP, and by the unmodified `anthropic`
client where it is installed."""

import importlib.util
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from serving import MOST_S, Serving

from described import check_described

pytestmark = pytest.mark.real_time
HELLO = [{"role": "user", "content": "Hello"}]
ASKED: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 0}
BY_CLIENT = {**ASKED, "extra_body": {"temperature": 0}}  # the newest no longer has the field
del BY_CLIENT["temperature"]
needs_llguidance = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="headway[llm] brings it"
)


@pytest.fixture(scope="module")
def http(served: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=MOST_S) as found:
        yield found


def events_of(text: str) -> list[dict[str, Any]]:
    """Each event's data; its name is the data's type."""
    found = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def openai_text(http: httpx.Client, **asked: Any) -> str:
    answer = http.post("/v1/chat/completions", json={**ASKED, **asked}).json()
    return str(answer["choices"][0]["message"]["content"])


def test_a_message_is_answered_as_a_chat_is(http: httpx.Client) -> None:
    answer = http.post("/v1/messages", json=ASKED)
    found = answer.json()
    assert found["content"] == [{"type": "text", "text": openai_text(http)}]
    assert (found["type"], found["role"], found["model"]) == ("message", "assistant", "tiny")
    assert (found["stop_reason"], found["stop_sequence"]) == ("max_tokens", None)
    usage = found["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == 7
    assert usage["output_tokens"] == 12
    check_described(http, "/v1/messages", answer)


def test_a_stream_has_its_events_in_their_order(http: httpx.Client) -> None:
    whole = http.post("/v1/messages", json=ASKED).json()
    events = events_of(http.post("/v1/messages", json={**ASKED, "stream": True}).text)
    kinds = [each["type"] for each in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    begun = events[0]["message"]
    assert begun["content"] == []
    assert begun["stop_reason"] is None
    assert begun["usage"]["input_tokens"] == 7
    text = "".join(each["delta"]["text"] for each in events[3:-3])
    assert text == whole["content"][0]["text"]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 12


def test_the_tokens_of_the_prompt_are_told_alike_at_both_ends_of_a_stream(
    http: httpx.Client,
) -> None:
    """What came from the cache is known with the first token."""
    messages = [{"role": "user", "content": "a longer prompt, of several blocks " * 4}]
    found = []
    for _ in range(2):
        sent = {**ASKED, "messages": messages, "stream": True}
        first, *_, last, _ = events_of(http.post("/v1/messages", json=sent).text)
        begun, ended = first["message"]["usage"], last["usage"]
        assert begun | {"output_tokens": 12} == ended
        found.append((ended["input_tokens"], ended["cache_read_input_tokens"]))
    assert sum(found[0]) == sum(found[1])
    assert found[1][1] >= 100


def test_a_system_message_may_stand_within_the_conversation(http: httpx.Client) -> None:
    """Anthropic has none there; Claude Code sends them."""
    hello = {"role": "user", "content": "Hello"}
    messages = [hello, {"role": "system", "content": "Be brief"}, hello]
    found = http.post("/v1/messages", json={**ASKED, "messages": messages}).json()
    assert found["content"][0]["text"] == openai_text(http, messages=messages)


def test_a_stop_sequence_is_named(http: httpx.Client) -> None:
    text = openai_text(http)
    stops = ["never there", text[4:7]]
    found = http.post("/v1/messages", json={**ASKED, "stop_sequences": stops}).json()
    assert found["content"][0]["text"] == text[: text.find(stops[1])]
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", stops[1])
    streamed = {**ASKED, "stop_sequences": stops, "stream": True}
    last = events_of(http.post("/v1/messages", json=streamed).text)[-2]
    assert last["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": stops[1]}


def test_system_and_blocks_are_the_same_chat(http: httpx.Client) -> None:
    turns = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "How\nare you?"},
    ]
    kept = {"cache_control": {"type": "ephemeral"}}
    blocks = [
        {"role": "user", "content": [{"type": "text", "text": "Hello", **kept}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi", "citations": None}]},
        {"role": "user", "content": [{"type": "text", "text": t} for t in ("How", "are you?")]},
    ]
    expected = openai_text(http, messages=[{"role": "system", "content": "Be brief"}, *turns])
    for system in ("Be brief", [{"type": "text", "text": "Be brief", **kept}]):
        for messages in (turns, blocks):
            asked = {**ASKED, "system": system, "messages": messages}
            found = http.post("/v1/messages", json=asked).json()
            assert found["content"][0]["text"] == expected
            count = {"model": "tiny", "system": system, "messages": messages}
            counted = http.post("/v1/messages/count_tokens", json=count).json()
            usage = found["usage"]
            read = usage["input_tokens"] + usage["cache_read_input_tokens"]
            assert counted == {"input_tokens": read}


def test_an_answer_longer_than_the_context_ends_there(http: httpx.Client) -> None:
    found = http.post("/v1/messages", json={**ASKED, "max_tokens": 100_000}).json()
    assert found["stop_reason"] in ("model_context_window_exceeded", "end_turn")
    assert found["usage"]["output_tokens"] < 100_000


def test_what_clients_send_out_of_habit_changes_nothing(http: httpx.Client) -> None:
    habits = {
        "metadata": {"user_id": "someone"},
        "service_tier": "auto",
        "thinking": {"type": "disabled"},
        "tools": [],
        "tool_choice": {"type": "auto"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "mcp_servers": [],
        "system": "",
        "stop_sequences": [],
        "top_k": None,
    }
    answer = http.post("/v1/messages?beta=true", json={**ASKED, **habits})
    assert answer.json()["content"][0]["text"] == openai_text(http)


@needs_llguidance
def test_an_answer_has_the_form_that_is_asked_for(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}
    for given in ({"output_config": {"format": form}}, {"output_format": form}):
        found = http.post("/v1/messages", json={**ASKED, "max_tokens": 40, **given}).json()
        assert found["stop_reason"] == "end_turn"
        assert list(json.loads(found["content"][0]["text"])) == ["ok"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"messages": []}, "messages: at least one"),
        ({"max_tokens": None}, "max_tokens: this field is missing"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature: "),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences: 17 texts"),
        ({"thinking": {"type": "never"}}, "thinking.type: 'never' is not one of"),
        ({"thinking": {"type": "enabled", "display": "half"}}, "thinking.display: "),
        ({"tools": [{"type": "web_search_20250305"}]}, "tools[0].type: 'web_search_20250305' is"),
        ({"tools": [{"name": "f", "input_schema": 1}]}, "tools[0].input_schema: a JSON schema"),
        ({"tools": [{"name": "f g"}]}, "tools[0].name: "),
        ({"tools": [{"name": "f", "taste": 1}]}, "tools[0].taste: this field is not"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: there are no tools to choose"),
        (
            {"tools": [{"name": "f"}], "tool_choice": {"type": "tool", "name": "g"}},
            "tool_choice.name: there is no tool 'g'",
        ),
        (
            {"tools": [{"name": "f"}], "tool_choice": {"type": "any", "name": "f"}},
            "tool_choice.name: goes with type tool, not 'any'",
        ),
        ({"output_config": {"effort": "a lot"}}, "output_config.effort: "),
        ({"inference_geo": "us"}, "inference_geo: this field is not supported"),
        ({"stop": ["x"]}, "stop: there is no such field"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format: "),
        ({"output_config": {"taste": 1}}, "output_config.taste: "),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: 'tool'"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content: a text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type: 'image' is not supported",
        ),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": "{"}]},
            "messages[1].role: the last message is the assistant's",
        ),
        ({"messages": [{"role": "user", "content": "x" * 10**6}]}, "prompt is too long: "),
    ],
)
def test_what_is_refused_is_named(http: httpx.Client, given: dict[str, Any], words: str) -> None:
    answer = http.post("/v1/messages", json={**ASKED, **given})
    assert answer.status_code == 400
    found = answer.json()
    assert found["type"] == "error"
    assert found["error"]["type"] == "invalid_request_error"
    assert words in found["error"]["message"]
    check_described(http, "/v1/messages", answer)


def test_an_unknown_model_is_not_found(http: httpx.Client) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        asked = {"model": "nobody", "messages": HELLO}
        more = {} if path.endswith("tokens") else {"max_tokens": 1}
        answer = http.post(path, json={**asked, **more})
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


def test_other_queries_are_refused(http: httpx.Client) -> None:
    answer = http.post("/v1/messages?beta=false", json=ASKED)
    assert (answer.status_code, answer.json()["type"]) == (400, "error")


def test_a_client_that_leaves_ends_its_answer(served: Serving, http: httpx.Client) -> None:
    asked = {**ASKED, "max_tokens": 100_000, "stream": True}
    with http.stream("POST", "/v1/messages", json=asked) as answer:
        next(answer.iter_lines())
    served.wait_idle()


def test_answers_of_many_callers_are_each_their_own(http: httpx.Client) -> None:
    turns = [[{"role": "user", "content": f"Tell me about {n}"}] for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        asked = [{**ASKED, "messages": each} for each in turns]
        answers = list(pool.map(lambda each: http.post("/v1/messages", json=each).json(), asked))
    expected = [openai_text(http, messages=each) for each in turns]
    assert [each["content"][0]["text"] for each in answers] == expected


# ---- the client


@pytest.fixture
def client(served: Serving) -> Iterator[Any]:
    anthropic = pytest.importorskip("anthropic", reason="pip install anthropic")
    with anthropic.Anthropic(
        base_url=served.url, api_key="any", max_retries=0, timeout=MOST_S
    ) as found:
        yield found


def test_the_client_asks(client: Any, http: httpx.Client) -> None:
    answer = client.messages.create(**BY_CLIENT)
    assert answer.content[0].text == openai_text(http)
    assert answer.usage.output_tokens == 12
    assert client.messages.count_tokens(model="tiny", messages=HELLO).input_tokens == 7


def test_the_client_streams(client: Any, http: httpx.Client) -> None:
    with client.messages.stream(**BY_CLIENT) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == last.content[0].text == openai_text(http)
    assert (last.stop_reason, last.usage.output_tokens) == ("max_tokens", 12)


def test_the_client_is_told_what_is_wrong(client: Any) -> None:
    import anthropic

    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{**BY_CLIENT, "extra_body": {"temperature": -1}})
    assert "temperature: " in str(caught.value)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**BY_CLIENT, "model": "nobody"})


def test_the_clients_beta_asks_the_same(client: Any, http: httpx.Client) -> None:
    assert client.beta.messages.create(**BY_CLIENT).content[0].text == openai_text(http)
