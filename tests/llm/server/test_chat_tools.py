"""Tools on tiny models of random weights, by the unmodified `openai` client: whatever such a model
says, a call that is complete has arguments that meet their schema."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import httpx
import msgspec
import openai
import pytest
from serving import MOST_S, serving
from tool_models import FORMS, build_with_tools

pytest.importorskip("llguidance", reason="headway[llm] brings it")
pytestmark = pytest.mark.real_time


class Weather(msgspec.Struct, forbid_unknown_fields=True):
    city: Literal["Oslo", "Rome"]
    days: Annotated[int, msgspec.Meta(ge=1, le=9)]


class Time(msgspec.Struct, forbid_unknown_fields=True):
    zone: Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")]


TYPES = {"weather": Weather, "time": Time}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The {name}",
            "parameters": msgspec.json.schema(kind),
        },
    }
    for name, kind in TYPES.items()
]
SCHEMA = msgspec.json.schema(Time)
END = 2  # the token that ends an answer of these models
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def client(form: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = build_with_tools(form, tmp_path_factory.mktemp(form))
    with (
        serving(folder, max_context=4096, kv_cache_gib=0.05) as served,
        openai.OpenAI(
            base_url=f"{served.url}/v1", api_key="any", max_retries=0, timeout=MOST_S
        ) as found,
    ):
        yield found


def asked(**options: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HELLO, "tools": TOOLS, "max_tokens": 200, **options}


def check(calls: list[Any]) -> None:
    for call in calls:
        msgspec.json.decode(call.function.arguments, type=TYPES[call.function.name])
    assert len({call.id for call in calls}) == len(calls)


def test_a_required_call_meets_its_schema(client: openai.OpenAI) -> None:
    for seed in range(4):
        answer = client.chat.completions.create(
            **asked(tool_choice="required", parallel_tool_calls=False, seed=seed)
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert len(choice.message.tool_calls or []) == 1
        check(choice.message.tool_calls or [])


def test_spaces_after_a_call_do_not_force_another_one(client: openai.OpenAI, form: str) -> None:
    """The model writes spaces wherever it can, and ends where it can no more."""
    if form == "mistral":
        pytest.skip("its calls are one list")
    tokenize = str(client.base_url).replace("/v1/", "/tokenize")
    space = httpx.post(tokenize, json={"prompt": " ", "add_special_tokens": False}).json()
    likely = {str(space["tokens"][0]): 100, str(END): 90}
    answer = client.chat.completions.create(**asked(tool_choice="required", logit_bias=likely))
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None
    assert len(answer.choices[0].message.tool_calls or []) == 1


def test_a_named_tool_is_the_one_that_is_called(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "time"}}
    answer = client.chat.completions.create(**asked(tool_choice=named))
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "time"
    check([call])


def test_a_stream_has_the_same_calls(client: openai.OpenAI) -> None:
    options = asked(tool_choice="required", parallel_tool_calls=False, temperature=0, seed=3)
    whole = client.chat.completions.create(**options).choices[0].message
    with client.chat.completions.stream(**options) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_completion().choices[0]
    assert kinds.count("tool_calls.function.arguments.done") == 1
    assert kinds.count("tool_calls.function.arguments.delta") > 3
    assert streamed.finish_reason == "tool_calls"
    assert [each.function for each in streamed.message.tool_calls or []] != []
    for ours, theirs in zip(streamed.message.tool_calls or [], whole.tool_calls or [], strict=True):
        assert ours.function.name == theirs.function.name
        assert ours.function.arguments == theirs.function.arguments


def test_a_conversation_goes_on_after_its_calls(client: openai.OpenAI) -> None:
    call = {
        "id": "abcdefghi",
        "type": "function",
        "function": {"name": "time", "arguments": '{"zone": "CET"}'},
    }
    messages = [
        {"role": "system", "content": "Be brief."},
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "12:30"},
    ]
    answer = client.chat.completions.create(
        **asked(messages=messages, max_tokens=20, tool_choice="none")
    )
    assert answer.choices[0].message.tool_calls is None


def test_free_text_stays_what_it_is_without_tools(client: openai.OpenAI) -> None:
    """`auto`, where the model opens no call."""
    answer = client.chat.completions.create(**asked(max_tokens=30, n=4, seed=1))
    for choice in answer.choices:
        check(choice.message.tool_calls or [])
        assert choice.message.content is not None


def test_calls_or_an_answer_of_a_form(client: openai.OpenAI, form: str) -> None:
    """As agents ask that want their last answer as JSON."""
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA}}
    options = asked(response_format=wanted, parallel_tool_calls=False, n=8, seed=1)
    if form == "llama":  # its calls look like such answers
        with pytest.raises(openai.BadRequestError, match="response_format"):
            client.chat.completions.create(**options)
        return
    for choice in client.chat.completions.create(**options).choices:
        message = choice.message
        assert bool(message.tool_calls) == (choice.finish_reason == "tool_calls")
        check(message.tool_calls or [])
        if not message.tool_calls:
            msgspec.json.decode(message.content or "", type=Time)
