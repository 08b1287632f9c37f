"""Tools and thoughts in Anthropic's, Ollama's and OpenAI's newer dialect, on tiny models of random
weights: a call that is complete has arguments that meet their schema."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import httpx
import msgspec
import pytest
from openai.types.responses import Response
from serving import MOST_S, serving
from tool_models import build_with_tools

from described import check_described

pytest.importorskip("llguidance", reason="headway[llm] brings it")
pytestmark = pytest.mark.real_time


class Weather(msgspec.Struct, forbid_unknown_fields=True):
    city: Literal["Oslo", "Rome"]
    days: Annotated[int, msgspec.Meta(ge=1, le=9)]


SCHEMA = msgspec.json.schema(Weather)
HELLO = {"role": "user", "content": "Hello"}
LIMIT = 3000  # the models think for as long as chance has it
ANTHROPIC: dict[str, Any] = {
    **{"model": "tiny", "messages": [HELLO], "max_tokens": LIMIT},
    "tools": [{"name": "weather", "description": "The weather", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}
RESPONSES: dict[str, Any] = {
    **{"model": "tiny", "input": "Hello", "max_output_tokens": LIMIT},
    "tools": [
        {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True},
        # As Codex sends them; they are skipped.
        {"type": "web_search", "external_web_access": False},
        {"type": "namespace", "name": "files", "description": "", "tools": []},
        {"type": "image_generation", "output_format": "png"},
        {"type": "tool_search"},
    ],
    **{"tool_choice": "required", "parallel_tool_calls": False},
}
FUNCTION = {"name": "weather", "parameters": SCHEMA}
OLLAMA: dict[str, Any] = {
    **{"model": "tiny", "messages": [HELLO], "options": {"num_predict": LIMIT}},
    "tools": [{"type": "function", "function": FUNCTION}],
}


@pytest.fixture(scope="module", params=["qwen3", "mistral-args"])
def http(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    folder = build_with_tools(request.param, tmp_path_factory.mktemp(request.param))
    with (
        serving(folder, max_context=4096, kv_cache_gib=0.05) as served,
        httpx.Client(base_url=served.url, timeout=MOST_S) as found,
    ):
        yield found


def posted(http: httpx.Client, path: str, asked: dict[str, Any]) -> Any:
    answer = http.post(path, json=asked)
    assert answer.status_code == 200, answer.text
    check_described(http, path, answer)
    return answer.json()


def events_of(http: httpx.Client, path: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    text = http.post(path, json={**asked, "stream": True}).text
    lines = [line for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


# ---- Anthropic


def test_a_message_calls_a_tool(http: httpx.Client) -> None:
    found = posted(http, "/v1/messages", ANTHROPIC)
    *_, call = found["content"]
    assert (found["stop_reason"], call["type"], call["name"]) == ("tool_use", "tool_use", "weather")
    msgspec.convert(call["input"], Weather)


def test_a_streamed_call_opens_grows_and_closes(http: httpx.Client) -> None:
    events = events_of(http, "/v1/messages", ANTHROPIC)
    blocks: dict[int, dict[str, Any]] = {}
    texts: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]], texts[event["index"]] = event["content_block"], ""
        elif event["type"] == "content_block_delta":
            (text,) = (each for name, each in event["delta"].items() if name != "type")
            texts[event["index"]] += text
    assert list(blocks) == list(range(len(blocks)))
    last = blocks[len(blocks) - 1]
    assert (last["type"], last["input"]) == ("tool_use", {})
    msgspec.json.decode(texts[len(blocks) - 1], type=Weather)
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_call_and_its_result_go_back_in(http: httpx.Client) -> None:
    call = {"type": "tool_use", "id": "abcdefghi", "name": "weather", "input": {"city": "Oslo"}}
    thought = {"type": "thinking", "thinking": "Hm", "signature": "x"}
    result = {"type": "tool_result", "tool_use_id": "abcdefghi", "content": "sun"}
    turns = [
        HELLO,
        {"role": "assistant", "content": [thought, {"type": "text", "text": "I look"}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    asked = {**ANTHROPIC, "messages": turns, "tool_choice": {"type": "tool", "name": "weather"}}
    found = posted(http, "/v1/messages", asked)
    assert found["stop_reason"] == "tool_use"
    count = {name: asked[name] for name in ("model", "messages", "tools")}
    counted = posted(http, "/v1/messages/count_tokens", count)["input_tokens"]
    usage = found["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
    fewer = posted(http, "/v1/messages/count_tokens", {**count, "tools": []})["input_tokens"]
    assert fewer < counted
    failed = {**result, "is_error": True, "content": [{"type": "text", "text": "rain"}]}
    again = [*turns[:2], {"role": "user", "content": [failed]}]
    assert posted(http, "/v1/messages", {**asked, "messages": again})["stop_reason"] == "tool_use"


def test_half_a_call_is_no_call(http: httpx.Client) -> None:
    found = posted(http, "/v1/messages", {**ANTHROPIC, "max_tokens": 3})
    assert found["stop_reason"] == "max_tokens"
    assert all(each["type"] != "tool_use" for each in found["content"])


def test_a_coding_agents_request_is_taken(http: httpx.Client) -> None:
    """In the shape of Claude Code's."""
    kept = {"cache_control": {"type": "ephemeral"}}
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **SCHEMA}
    sent = {
        **{"model": "tiny", "max_tokens": 32000, "stream": True},
        "system": [{"type": "text", "text": text, **kept} for text in ("You are", "Be brief")],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>"},
                    {"type": "text", "text": "Hello", **kept},
                ],
            },
            {"role": "system", "content": [{"type": "text", "text": "# Environment", **kept}]},
        ],
        "tools": [
            {"name": "weather", "description": "x", "input_schema": schema},
            {"name": "other", "input_schema": {"type": "object"}, "defer_loading": True},
        ],
        "metadata": {"user_id": "someone"},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "stop_sequences": ["</stop>"],
    }
    with http.stream("POST", "/v1/messages?beta=true", json=sent) as answer:
        assert answer.status_code == 200, answer.read()
        assert next(answer.iter_lines()) == "event: message_start"


def test_thoughts_that_are_not_wanted_are_empty_blocks(http: httpx.Client) -> None:
    asked = {**ANTHROPIC, "thinking": {"type": "adaptive", "display": "omitted"}}
    whole = posted(http, "/v1/messages", asked)
    assert all(each["thinking"] == "" for each in whole["content"] if each["type"] == "thinking")
    deltas = [each.get("delta", {}) for each in events_of(http, "/v1/messages", asked)]
    assert {each.get("type") for each in deltas}.isdisjoint({"thinking_delta"})


# ---- Responses


def test_a_response_calls_a_function(http: httpx.Client) -> None:
    found = posted(http, "/v1/responses", RESPONSES)
    Response.model_validate(found)
    shown = {"type": "function", "name": "weather", "description": None, "strict": True}
    assert found["tools"] == [{**shown, "parameters": SCHEMA}]
    *_, call = found["output"]
    assert (found["status"], call["type"], call["name"]) == (
        *("completed", "function_call"),
        "weather",
    )
    msgspec.json.decode(call["arguments"], type=Weather)


def test_a_streamed_function_call_has_its_events(http: httpx.Client) -> None:
    events = events_of(http, "/v1/responses", RESPONSES)
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    item = events[-1]["response"]["output"][-1]
    own = [each for each in events if each.get("item_id") == item["id"]]
    kinds = [each["type"].removeprefix("response.function_call_arguments.") for each in own]
    assert set(kinds[:-1]) == {"delta"}
    assert kinds[-1] == "done"
    assert "".join(each["delta"] for each in own[:-1]) == item["arguments"] == own[-1]["arguments"]
    assert [each["type"] for each in events[-2:]] == [
        *("response.output_item.done", "response.completed")
    ]
    assert events[-2]["item"] == item


def test_calls_and_outputs_are_one_turn(http: httpx.Client) -> None:
    items = [
        {"role": "user", "content": "Hello"},
        {
            **{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
            "content": [{"type": "reasoning_text", "text": "Hm"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        {
            **{"type": "function_call", "id": "fc_1", "call_id": "abcdefghi", "name": "weather"},
            **{"arguments": '{"city": "Oslo"}', "status": "completed"},
        },
        {"type": "function_call_output", "call_id": "abcdefghi", "output": "sun"},
    ]
    found = posted(http, "/v1/responses", {**RESPONSES, "input": items})
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    messages = [
        HELLO,
        {
            **{"role": "assistant", "content": "A", "reasoning_content": "Hm"},
            "tool_calls": [{"id": "abcdefghi", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "sun"},
    ]
    described = {"type": "function", "function": {**FUNCTION, "strict": True}}
    chat = {"model": "tiny", "messages": messages, "tools": [described], "max_tokens": LIMIT}
    same = http.post("/v1/chat/completions", json={**chat, "tool_choice": "required"}).json()
    assert same["usage"]["prompt_tokens"] == found["usage"]["input_tokens"]


# ---- Ollama


def test_ollama_streams_whole_calls(http: httpx.Client) -> None:
    calls: list[Any] = []
    for seed in range(6):
        options = {"num_predict": LIMIT, "seed": seed}
        text = http.post("/api/chat", json={**OLLAMA, "options": options}).text
        *lines, last = map(json.loads, text.splitlines())
        assert last["done"]
        calls += [call for line in lines for call in line["message"].get("tool_calls", ())]
    for call in calls:  # a model of random weights may make none
        assert call["function"]["name"] == "weather"
        msgspec.convert(call["function"]["arguments"], Weather)


def test_ollamas_calls_and_results_go_back_in(http: httpx.Client) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    turns = [
        HELLO,
        {"role": "assistant", "content": "", "thinking": "Hm", "tool_calls": [call, call]},
        {"role": "tool", "tool_name": "weather", "content": "sun"},
        {"role": "tool", "content": "rain"},
    ]
    found = posted(http, "/api/chat", {**OLLAMA, "messages": turns, "stream": False})
    assert found["done"]
    assert found["prompt_eval_count"] > 0


# ---- thoughts


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Its prompts end within its thoughts, which a model of random weights never ends."""
    folder = build_with_tools("qwen3", tmp_path_factory.mktemp("thinking"))
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("{% elif opens %}", "{% else %}"))
    with (
        serving(folder, max_context=4096, kv_cache_gib=0.05) as served,
        httpx.Client(base_url=served.url, timeout=MOST_S) as found,
    ):
        yield found


SHORT: dict[str, Any] = {"model": "tiny", "temperature": 0}


def test_thoughts_are_blocks_of_their_own(thinking: httpx.Client) -> None:
    asked = {**SHORT, "messages": [HELLO], "max_tokens": 12}
    enabled = {**asked, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    found = posted(thinking, "/v1/messages", enabled)
    assert [each["type"] for each in found["content"]] == ["thinking"]
    kinds = {
        each.get("delta", {}).get("type") for each in events_of(thinking, "/v1/messages", enabled)
    }
    assert "thinking_delta" in kinds
    assert "text_delta" not in kinds
    disabled = {**asked, "thinking": {"type": "disabled"}}
    found = posted(thinking, "/v1/messages", disabled)
    assert [each["type"] for each in found["content"]] == ["text"]


def test_thoughts_are_reasoning_items(thinking: httpx.Client) -> None:
    asked = {**SHORT, "input": "Hello", "max_output_tokens": 12}
    found = posted(thinking, "/v1/responses", {**asked, "reasoning": {"effort": "low"}})
    Response.model_validate(found)
    (item,) = found["output"]
    assert (item["type"], item["status"]) == ("reasoning", "incomplete")
    assert found["usage"]["output_tokens_details"]["reasoning_tokens"] == 12
    events = events_of(thinking, "/v1/responses", asked)
    text = "".join(
        each["delta"] for each in events if each["type"] == "response.reasoning_text.delta"
    )
    assert (
        text
        == item["content"][0]["text"]
        == events[-1]["response"]["output"][0]["content"][0]["text"]
    )
    without = posted(thinking, "/v1/responses", {**asked, "reasoning": {"effort": "none"}})
    assert [each["type"] for each in without["output"]] == ["message"]


def test_thoughts_are_a_field_of_ollamas(thinking: httpx.Client) -> None:
    asked = {"model": "tiny", "prompt": "Hello", "stream": False}
    asked["options"] = {"num_predict": 12, "temperature": 0}
    found = posted(thinking, "/api/generate", asked)
    assert found["thinking"]
    assert found["response"] == ""
    without = posted(thinking, "/api/generate", {**asked, "think": False})
    assert "thinking" not in without
    shown = thinking.post("/api/show", json={"model": "tiny"}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
