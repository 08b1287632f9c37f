"""Thoughts on a tiny model whose template has them, as Qwen 3's: apart from the answer, counted,
and before a form or a call. What ends them is made likelier by `logit_bias`."""

from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest
from serving import MOST_S, Serving, serving
from tokenizers import Tokenizer
from tool_models import build_with_tools

pytestmark = pytest.mark.real_time
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"a": {"enum": [1, 2]}}}},
}


class Thinker:
    def __init__(self, served: Serving, client: openai.OpenAI, closes: int) -> None:
        self.served, self._client, self._closes = served, client, closes

    def asked(self, *, closes: float = 3.0, **options: Any) -> dict[str, Any]:
        """Options of a chat; the template opens the thoughts."""
        extra = {"chat_template_kwargs": {"opens": True}, **options.pop("extra", {})}
        bias = {str(self._closes): closes}
        given = {"model": "tiny", "messages": HELLO, "seed": 1, "max_completion_tokens": 150}
        return {**given, "logit_bias": bias, "extra_body": extra, **options}

    def ask(self, **options: Any) -> Any:
        return self._client.chat.completions.create(**self.asked(**options))


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Thinker]:
    folder = build_with_tools("qwen3", tmp_path_factory.mktemp("qwen3"))
    closes = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("</think>")
    with (
        serving(folder, max_context=4096, kv_cache_gib=0.05) as served,
        openai.OpenAI(
            base_url=f"{served.url}/v1", api_key="any", max_retries=0, timeout=MOST_S
        ) as client,
    ):
        yield Thinker(served, client, closes)


def test_thoughts_come_apart_from_the_answer(thinker: Thinker) -> None:
    whole = thinker.ask()
    message, usage = whole.choices[0].message, whole.usage
    assert message.reasoning_content
    assert message.content
    assert "</think>" not in message.reasoning_content
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    thought, text, kinds = "", "", []
    for chunk in thinker.ask(stream=True):
        delta = chunk.choices[0].delta
        more = getattr(delta, "reasoning_content", None) or ""
        thought, text = thought + more, text + (delta.content or "")
        kinds += ["thought"] * bool(more) + ["text"] * bool(delta.content)
    assert (thought, text) == (message.reasoning_content, message.content)
    assert kinds == sorted(kinds, reverse=True)  # all thoughts before all text


def test_thoughts_are_part_of_the_budget(thinker: Thinker) -> None:
    answer = thinker.ask(closes=-100, max_completion_tokens=20)
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert choice.message.content == ""
    assert choice.message.reasoning_content
    assert answer.usage.completion_tokens == 20
    assert answer.usage.completion_tokens_details.reasoning_tokens == 20


def test_a_model_that_is_told_not_to_think(thinker: Thinker) -> None:
    for options in (
        {"extra": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"reasoning_effort": "none"},
    ):
        answer = thinker.ask(closes=-100, max_completion_tokens=20, **options)
        message = answer.choices[0].message
        assert getattr(message, "reasoning_content", None) is None
        assert message.content


def test_a_form_holds_after_the_thoughts(thinker: Thinker) -> None:
    pytest.importorskip("llguidance", reason="headway[llm] brings it")
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [10, 20]}}}
    message = thinker.ask(response_format=form).choices[0].message
    assert message.reasoning_content
    assert message.content in ("10", "20")


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_calls_come_after_the_thoughts(thinker: Thinker, choice: str) -> None:
    pytest.importorskip("llguidance", reason="headway[llm] brings it")
    (answer,) = thinker.ask(
        tools=[TOOL], tool_choice=choice, parallel_tool_calls=False, max_completion_tokens=300
    ).choices
    assert answer.message.reasoning_content
    if choice == "required":
        (call,) = answer.message.tool_calls
        assert set(msgspec.json.decode(call.function.arguments)) <= {"a"}


def test_earlier_thoughts_may_come_back(thinker: Thinker) -> None:
    earlier = {"role": "assistant", "content": "Hi", "reasoning_content": "I greet."}
    answer = thinker.ask(messages=[*HELLO, earlier, *HELLO], max_completion_tokens=5)
    assert answer.usage.completion_tokens == 5
