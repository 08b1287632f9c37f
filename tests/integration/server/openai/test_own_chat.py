"""OpenAI's chat route over a model of one's own, by the unmodified `openai` client."""

import dataclasses
from collections.abc import Iterator
from typing import Any, TypedDict

import openai
import pytest
from small_server import STACKS, serving

import headway

pytestmark = pytest.mark.real_time


class Talk(TypedDict):
    messages: list[dict[str, Any]]


@dataclasses.dataclass
class ChatInput:
    messages: list[dict[str, Any]]
    temperature: float = 1.0
    max_tokens: int | None = None


class Echo(headway.Model[ChatInput, str]):
    """Streams the last message, word by word; breaks off at an exclamation mark."""

    def stream(self, items: list[ChatInput]) -> Iterator[list[Any]]:
        words = [item.messages[-1]["content"].split()[: item.max_tokens] for item in items]
        for step in range(max(map(len, words)) + 1):
            if any(each[step : step + 1] == ["!"] for each in words):
                raise ValueError("no shouting")
            yield [f"{each[step]} " if step < len(each) else headway.END for each in words]


class Answer(headway.Model[Talk, str]):
    def predict(self, items: list[Talk]) -> list[str]:
        return [f"{len(item['messages'])} messages" for item in items]


def asked(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def test_a_model_of_ones_own_chats() -> None:
    async with serving(echo=Echo(), answer=Answer()) as http:
        client = openai.AsyncOpenAI(
            base_url=f"{http.base_url}/v1", api_key="any", max_retries=0, timeout=20
        )
        create: Any = client.chat.completions.create
        answer = await create(model="echo", messages=asked("a b c"), max_completion_tokens=2)
        assert answer.choices[0].message.content == "a b "
        assert answer.choices[0].finish_reason == "stop"
        stream = await create(model="echo", messages=asked("a b"), temperature=0.5, stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]
        assert [chunk.delta.content for chunk in chunks] == ["a ", "b ", None]
        assert (chunks[0].delta.role, chunks[-1].finish_reason) == ("assistant", "stop")
        answer = await create(model="answer", messages=asked("a"))
        assert answer.choices[0].message.content == "1 messages"
        stream = await create(model="answer", messages=asked("a"), stream=True)
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert texts == ["1 messages", None]
        await client.close()


async def test_what_it_does_not_take_is_refused_by_name() -> None:
    async with serving(echo=Echo(), answer=Answer()) as http:
        for more, told in [
            ({"top_p": 0.5}, "top_p: this model does not take it"),
            ({"tools": [{"type": "function"}]}, "tools: this model does not take it"),
            ({"tool_choice": "required"}, "tool_choice: this model does not take it"),
            ({"reasoning_effort": "high"}, "reasoning_effort: this model does not take it"),
            ({"n": 2}, "n: this model gives one answer"),
            ({"max_tokens": "x"}, "max_tokens"),
        ]:
            body = {"model": "echo", "messages": asked("a"), **more}
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400
            assert told in answer.json()["error"]["message"]
        body = {"model": "echo", "messages": asked("a !"), "stream": True}
        answer = await http.post("/v1/chat/completions", json=body)
        assert '"server_error"' in answer.text
        assert "[DONE]" not in answer.text


@pytest.mark.parametrize("stack", STACKS)
async def test_a_field_that_openai_knows_is_not_supported_and_any_other_is_unknown(
    stack: str,
) -> None:
    known = {
        "verbosity": "high",
        **{name: ["audio"] for name in ("functions", "modalities")},
        **{name: {} for name in ("audio", "prediction", "web_search_options")},
        "function_call": {"name": "a"},
    }
    expected = [
        (name, value, f"{name}: this field is not supported") for name, value in known.items()
    ]
    expected += [
        ("guided_json", {}, "guided_json: this model does not take it; leave it out"),
        ("temprature", 0.5, "temprature: there is no such field; did you mean temperature?"),
        ("colour", "red", "colour: there is no such field"),
    ]
    async with serving(stack, echo=Echo()) as http:
        for name, value, told in expected:
            body = {"model": "echo", "messages": asked("a"), name: value}
            answer = await http.post("/v1/chat/completions", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["message"], error["param"]) == (400, told, name)
        body = {"model": "echo", "messages": asked("a"), "tools": None}  # null is absence
        body |= {"tool_choice": "auto", "parallel_tool_calls": True}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        body = {"model": "echo", "prompt": "a", "suffix": "b"}
        answer = await http.post("/v1/completions", json=body)
        assert answer.json()["error"]["message"] == "suffix: this field is not supported"
