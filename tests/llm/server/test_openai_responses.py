"""OpenAI's `/v1/responses` on a two-layer model: over plain HTTP, and by the `openai` client."""

import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from serving import MOST_S, Serving

from described import check_described
from headway.cli.main import main

pytestmark = pytest.mark.real_time
HELLO = [{"role": "user", "content": "Hello"}]
FUNCTION = {"type": "function", "name": "f"}
ASKED: dict[str, Any] = {
    "model": "tiny",
    "input": "Hello",
    "max_output_tokens": 12,
    "temperature": 0,
}
needs_llguidance = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="headway[llm] brings it"
)


@pytest.fixture(scope="module")
def http(served: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=MOST_S) as found:
        yield found


@pytest.fixture(scope="module")
def client(served: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="any", max_retries=0, timeout=MOST_S
    ) as found:
        yield found


def chat_text(http: httpx.Client, messages: Any = HELLO) -> str:
    asked = {"model": "tiny", "messages": messages, "max_tokens": 12, "temperature": 0}
    answer = http.post("/v1/chat/completions", json=asked).json()
    return str(answer["choices"][0]["message"]["content"])


def events_of(text: str) -> list[dict[str, Any]]:
    """Each event's data; its name is the data's type, and they are counted."""
    found = []
    *events, last = text.strip().split("\n\n")
    assert last == "data: [DONE]"
    for number, event in enumerate(events):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        assert found[-1]["sequence_number"] == number
    return found


def test_a_response_is_the_chats_answer(http: httpx.Client) -> None:
    answer = http.post("/v1/responses", json={**ASKED, "metadata": {"a": "b"}, "user": "me"})
    found = answer.json()
    check_described(http, "/v1/responses", answer)
    Response.model_validate(found, strict=True)
    assert found["status"] == "incomplete"  # it has as many tokens as it may
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}
    (message,) = found["output"]
    (part,) = message["content"]
    assert (message["type"], message["role"], part["type"]) == (
        *("message", "assistant"),
        "output_text",
    )
    assert part["text"] == chat_text(http)
    assert (found["metadata"], found["user"], found["store"]) == ({"a": "b"}, "me", False)
    assert (found["temperature"], found["tools"], found["tool_choice"]) == (0, [], "auto")
    usage = found["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 12, 19)


def test_events_come_in_their_order(http: httpx.Client) -> None:
    events = events_of(http.post("/v1/responses", json={**ASKED, "stream": True}).text)
    kinds = [each["type"].removeprefix("response.") for each in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == [
        *("output_text.done", "content_part.done", "output_item.done"),
        "incomplete",
    ]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    text = "".join(each["delta"] for each in events[4:-4])
    assert text == events[-4]["text"] == chat_text(http)
    assert events[0]["response"]["status"] == "in_progress"
    assert events[-1]["response"]["output"] == [events[-2]["item"]]
    assert len({each["item_id"] for each in events[3:-2]}) == 1
    assert len({events[n]["response"]["id"] for n in (0, 1, -1)}) == 1


def test_instructions_and_items_are_a_chat(http: httpx.Client) -> None:
    turns = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "How\nare you?"},
    ]
    said = {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {
            **{"type": "message", "role": "assistant", "id": "msg_1", "status": "completed"},
            "content": [said],
        },
        {
            "role": "user",
            "content": [{"type": "input_text", "text": text} for text in ("How", "are you?")],
        },
    ]
    system = {"role": "system", "content": "Be brief\n\nBe kind"}
    expected = chat_text(http, [system, *turns])
    developer = {"role": "developer", "content": "Be kind"}
    for each in (turns, items):
        asked = {**ASKED, "instructions": "Be brief", "input": [developer, *each]}
        found = http.post("/v1/responses", json=asked).json()
        assert found["output"][0]["content"][0]["text"] == expected
        assert found["instructions"] == "Be brief"


def test_an_agents_twelve_fields_are_taken(http: httpx.Client) -> None:
    """As Codex sends them, but for tools."""
    content = [{"type": "input_text", "text": "Hello"}]
    sent = {
        "model": "tiny",
        "instructions": "",
        "input": [{"type": "message", "role": "user", "content": content}],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": None,
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "client_metadata": {"x": "y"},
    }
    events = events_of(http.post("/v1/responses", json=sent).text)
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    assert events[-1]["response"]["prompt_cache_key"] == "0199"


@needs_llguidance
def test_an_answer_has_the_form_that_is_asked_for(client: openai.OpenAI) -> None:
    import pydantic

    class Verdict(pydantic.BaseModel):
        is_ok: bool

    asked: dict[str, Any] = {**ASKED, "max_output_tokens": 60}
    parsed = client.responses.parse(**asked, text_format=Verdict)
    assert parsed.status == "completed"
    assert isinstance(parsed.output_parsed, Verdict)
    loose = client.responses.create(**asked, text={"format": {"type": "json_object"}})
    assert loose.output_text.startswith("{")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": "a"}
    form = {"type": "json_schema", "name": "wrong", "schema": schema}
    with pytest.raises(openai.BadRequestError, match=r"text\.format\.schema: "):
        client.responses.create(**asked, text={"format": form})


def test_the_client_asks_and_streams(client: openai.OpenAI, http: httpx.Client) -> None:
    expected = chat_text(http)
    asked: dict[str, Any] = ASKED
    assert client.responses.create(**asked).output_text == expected
    with client.responses.stream(**asked) as stream:
        text = "".join(each.delta for each in stream if each.type == "response.output_text.delta")
    assert text == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"input": []}, "input: at least one"),
        ({"input": None}, "input: this field is missing"),
        ({"previous_response_id": "resp_1"}, "previous_response_id: this field is not supported; "),
        ({"conversation": "conv_1"}, "conversation: this field is not supported; "),
        ({"background": True}, "background: this field is not supported; "),
        ({"store": True}, "store: this field is not supported; "),
        ({"truncation": "auto"}, "truncation: this field is not supported"),
        ({"max_tokens": 3}, "max_tokens: this field is not supported; its name here is"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature: "),
        ({"taste": 1}, "taste: there is no such field"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type: 'file_search' is not supported"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type: 'code_interpreter' is not"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type: 'web_search' is not supported"),
        (
            {"tools": [FUNCTION, {"type": "web_search_preview"}]},
            "tools[1].type: 'web_search_preview' is not supported",
        ),
        ({"tools": [{"type": "mcp"}]}, "tools[0].type: 'mcp' is not supported"),
        ({"tool_choice": "required"}, "tool_choice: "),
        ({"tools": [{"type": "custom", "name": "f"}]}, "tools[0].type: 'custom' is not"),
        ({"tools": [{"type": "function", "name": "f g"}]}, "tools[0].name: "),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}},
            "tool_choice.name: there is no tool 'g'",
        ),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "tools": []}},
            "tool_choice.mode: ",
        ),
        ({"reasoning": {"effort": "a lot"}}, "reasoning.effort: "),
        ({"input": [{"type": "function_call", "call_id": "a"}]}, "input[0].name: a text"),
        ({"include": ["everything"]}, "include[0]: 'everything' is not supported"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type: "),
        ({"text": {"taste": 1}}, "text.taste: "),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type: 'item_reference'"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type: 'computer_call' is not"),
        ({"input": [{"role": "nobody", "content": ""}]}, "input[0].role: 'nobody' is unknown"),
        ({"input": [{"role": "user", "content": 1}]}, "input[0].content: a text or a list"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type: 'input_image' is not supported",
        ),
        ({"input": "x" * 10**6}, "input[0].content: at least "),
    ],
)
def test_what_is_refused_is_named(http: httpx.Client, given: dict[str, Any], words: str) -> None:
    answer = http.post("/v1/responses", json={**ASKED, **given})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    check_described(http, "/v1/responses", answer)


def test_a_stored_answer_is_not_there(http: httpx.Client) -> None:
    for call in (http.get("/v1/responses/resp_1"), http.post("/v1/responses/resp_1/cancel")):
        assert call.status_code == 404
        assert "no answers are kept" in call.json()["error"]["message"]


def test_a_client_that_leaves_ends_its_answer(served: Serving, http: httpx.Client) -> None:
    asked = {**ASKED, "max_output_tokens": 100_000, "stream": True}
    with http.stream("POST", "/v1/responses", json=asked) as answer:
        next(answer.iter_lines())
    served.wait_idle()


def test_bench_times_the_tokens_of_responses(
    served: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ("--rate", "4", "--arrivals", "constant", "--seconds", "1.1", "--warm-up", "0", "--json")
    main(["bench", served.url, "--api", "responses", "--max-tokens", "12", *load])
    [point] = json.loads(capsys.readouterr().out)
    assert point["errors"] == {}
    assert 0 < round(point["tokens"]["per_s"] * point["seconds"]) <= 12 * point["answered"]
    assert point["tokens"]["first_p50_ms"] > 0
