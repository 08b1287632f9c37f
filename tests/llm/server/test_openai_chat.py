"""OpenAI's routes on a two-layer model, by the unmodified `openai` client."""

import importlib.util
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from serving import MOST_S, Serving

from described import check_described

pytestmark = pytest.mark.real_time
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
needs_llguidance = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="headway[llm] brings it"
)
GREEDY: dict[str, Any] = {"temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def client(served: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="any", max_retries=0, timeout=MOST_S
    ) as found:
        yield found


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_completion_tokens=12, **GREEDY
    )
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 7
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == 19


def test_a_stream_is_the_answer_in_chunks(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 20, **GREEDY}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked)
    )
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    first = chunks[0].choices[0].delta
    assert (first.role, first.content) == ("assistant", "")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-2:] == [None, "length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_n_answers_are_those_of_their_seeds(client: openai.OpenAI) -> None:
    def ask(n: int, seed: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            max_tokens=10,
            n=n,
            seed=seed,
            extra_body={"ignore_eos": True},
        )
        assert [each.index for each in answer.choices] == list(range(n))
        return [each.message.content for each in answer.choices]

    three = ask(3, 5)
    assert len(set(three)) == 3
    assert three == ask(3, 5)
    assert three[0] == ask(1, 5)[0]


def test_n_streams_come_side_by_side(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "n": 2, "seed": 3}
    whole = client.chat.completions.create(**asked)
    texts = ["", ""]
    ends = ["", ""]
    for chunk in client.chat.completions.create(stream=True, **asked):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] += choice.finish_reason or ""
    assert texts == [each.message.content for each in whole.choices]
    assert ends == [each.finish_reason for each in whole.choices]


def test_a_stop_string_across_tokens_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 60, **GREEDY}
    text = client.chat.completions.create(**asked).choices[0].message.content or ""
    stop = text[10:14]
    cut = client.chat.completions.create(stop=[stop, "never there"], **asked).choices[0]
    assert cut.message.content == text[: text.find(stop)]
    assert cut.finish_reason == "stop"
    streamed = client.chat.completions.create(stop=stop, stream=True, **asked)
    pieces = [chunk.choices[0] for chunk in streamed]
    assert "".join(each.delta.content or "" for each in pieces) == text[: text.find(stop)]
    assert pieces[-1].finish_reason == "stop"


def test_logprobs_are_of_the_tokens_of_the_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=6, logprobs=True, top_logprobs=3, **GREEDY
    ).choices[0]
    assert answer.logprobs is not None
    entries = answer.logprobs.content or []
    assert len(entries) == 6
    for entry in entries:
        assert entry.token == entry.top_logprobs[0].token  # greedy: the likeliest
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
        assert len(entry.top_logprobs) == 3
    spelled = b"".join(bytes(entry.bytes or []) for entry in entries)
    assert spelled.decode(errors="replace").startswith((answer.message.content or "")[:3])


def test_biases_and_penalties_change_the_answer(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> str:
        answer = client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=10, **{**GREEDY, **more}
        )
        return answer.choices[0].message.content or ""

    assert ask(logit_bias={"70": 100}) == chr(ord("!") + 70 - 5) * 10
    biased = {"logit_bias": {"70": 60, "71": 59.5}}
    plain = ask(**biased)
    assert set(plain) <= {"b", "c"}
    assert ask(**biased, frequency_penalty=2.0) != plain
    assert ask(**biased, presence_penalty=-2.0, frequency_penalty=-2.0) == "b" * 10


def test_contents_are_texts_parts_or_null(client: openai.OpenAI) -> None:
    def tokens(content: Any) -> int:
        messages: list[Any] = [{"role": "assistant", "content": content}, *HELLO]
        answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=1)
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    assert tokens("abcd") == tokens(parts) == tokens(None) + 4 == tokens("") + 4


def test_special_tokens_in_a_text_stay_text(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "</s>"}], max_tokens=1
    )
    assert plain.usage is not None
    assert plain.usage.prompt_tokens == 2 + len("</s>")


def test_what_changes_nothing_is_taken(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 5, **GREEDY}
    plain = client.chat.completions.create(**asked)
    others = client.chat.completions.create(
        user="me", metadata={"a": "b"}, store=False, service_tier="auto", **asked
    )
    assert plain.choices == others.choices


def test_prompts_are_continued(client: openai.OpenAI, served: Serving) -> None:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 6, **GREEDY}
    one = client.completions.create(prompt="ab", **asked)
    assert one.object == "text_completion"
    ids = httpx.post(f"{served.url}/tokenize", json={"model": "tiny", "prompt": "ab"}).json()
    assert client.completions.create(prompt=ids["tokens"], **asked).choices == one.choices
    two = client.completions.create(prompt=["ab", "x"], n=2, echo=True, **asked)
    assert [each.index for each in two.choices] == [0, 1, 2, 3]
    assert two.choices[0].text == two.choices[1].text == "ab" + one.choices[0].text
    assert two.choices[2].text.startswith("x")
    assert two.usage is not None
    assert (two.usage.prompt_tokens, two.usage.completion_tokens) == (3, 24)
    streamed = client.completions.create(prompt="ab", stream=True, echo=True, **asked)
    assert "".join(each.choices[0].text for each in streamed) == "ab" + one.choices[0].text


def test_older_logprobs_are_lists_side_by_side(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt="ab", max_tokens=4, logprobs=2, **GREEDY
    ).choices[0]
    logprobs = answer.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs or []) == 4
    assert logprobs.text_offset[0] == 0
    assert all(len(each) >= 2 for each in logprobs.top_logprobs or [])


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"


def test_tokens_and_back(served: Serving) -> None:
    def post(route: str, **body: Any) -> Any:
        answer = httpx.post(f"{served.url}/{route}", json={"model": "tiny", **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    found = post("tokenize", prompt="héllo", return_token_strs=True)
    assert found["count"] == len(found["tokens"]) == 6
    assert found["max_model_len"] == 256
    assert found["token_strs"] == ["h", "Ã", "©", "l", "l", "o"]  # as the vocabulary writes them
    assert post("detokenize", tokens=found["tokens"])["prompt"] == "héllo"
    chat = post("tokenize", messages=HELLO)
    assert chat["count"] == 7
    assert chat["token_strs"] is None
    bare = post("tokenize", messages=HELLO, add_generation_prompt=False)["tokens"]
    assert bare == chat["tokens"][:-1]


def test_a_tokenizer_needs_no_name_where_there_is_one_model(served: Serving) -> None:
    """vLLM serves one, and takes a body without `model`."""
    found = httpx.post(f"{served.url}/tokenize", json={"prompt": "ab"}).json()
    text = httpx.post(f"{served.url}/detokenize", json={"tokens": found["tokens"]}).json()
    assert text == {"prompt": "ab"}
    for field, body in {
        "model": {"model": "other", "prompt": "ab"},
        "prompt": {"messages": HELLO, "prompt": "ab"},
        "add_special_tokens": {"messages": HELLO, "add_special_tokens": True},
        "add_generation_prompt": {"prompt": "ab", "add_generation_prompt": True},
        "chat_template": {"messages": HELLO, "chat_template": "{{ messages }}"},
    }.items():
        answer = httpx.post(f"{served.url}/tokenize", json=body)
        assert answer.status_code in (400, 404), answer.text
        told = answer.json()["error"]  # as on OpenAI's routes
        assert field in told["message"]
        assert told["type"] == "invalid_request_error"
    answer = httpx.post(f"{served.url}/detokenize", json={"tokens": [-1]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")


def test_whoever_asks_is_told_what_the_answer_met(served: Serving) -> None:
    body: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 5, "ignore_eos": True}
    route, explain = f"{served.url}/v1/chat/completions", {"Headway-Explain": "1"}
    whole = httpx.post(route, json=body, headers=explain)
    assert "steps=5" in whole.headers["headway-batch"]
    assert "prefill_chunks=1" in whole.headers["headway-batch"]
    with httpx.stream("POST", route, json={**body, "stream": True}, headers=explain) as answer:
        events = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    (met,) = json.loads(events[-2])["headway"]
    assert met["steps"] == len(met["batches"]) == 5
    assert met["preempted"] == 0


def test_metrics_have_the_names_that_dashboards_know(
    served: Serving, client: openai.OpenAI
) -> None:
    client.completions.create(model="tiny", prompt="metrics", max_tokens=5, **GREEDY)
    text = httpx.get(f"{served.url}/metrics").text
    where = '{model="tiny",version="1"}'
    for name in (
        *("time_to_first_token_seconds_count", "inter_token_latency_seconds_count"),
        *("generation_tokens_total", "prompt_tokens_total", "prefix_cache_queries_total"),
    ):
        (line,) = [each for each in text.splitlines() if each.startswith(f"headway_{name}{where}")]
        assert float(line.split()[-1]) > 0
    for name in (
        *("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"),
        *("num_preemptions_total", "prefix_cache_hits_total"),
    ):
        assert f"headway_{name}{where}" in text
    assert (
        'headway_request_success_total{model="tiny",version="1",finished_reason="length"}' in text
    )
    assert f"nv_inference_request_success{where}" in text


# ---- answers of a given form

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}


def formed(client: openai.OpenAI, seed: int, **more: Any) -> Any:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=120, seed=seed, **more
    ).choices[0]
    assert answer.finish_reason == "stop"
    return answer.message.content or ""


@needs_llguidance
def test_json_follows_its_schema(client: openai.OpenAI) -> None:
    schema: Any = {
        "type": "json_schema",
        "json_schema": {"name": "it", "schema": SCHEMA, "strict": True},
    }
    for seed in range(5):
        found = json.loads(formed(client, seed, response_format=schema))
        assert found.keys() == {"n", "ok"}
        assert type(found["n"]) is int
        assert type(found["ok"]) is bool


@needs_llguidance
def test_an_expression_or_one_of_several_texts(client: openai.OpenAI) -> None:
    for seed in range(5):
        regex = {"extra_body": {"structured_outputs": {"regex": "[ab]{3}-[0-9]"}}}
        assert re.fullmatch("[ab]{3}-[0-9]", formed(client, seed, **regex))
        choice = {"extra_body": {"structured_outputs": {"choice": ["yes", "no", "it depends"]}}}
        assert formed(client, seed, **choice) in ("yes", "no", "it depends")


@needs_llguidance
def test_json_is_valid_whenever_it_ends_by_itself(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_tokens=100,
        n=8,
        seed=1,
        response_format={"type": "json_object"},
    )
    for choice in answer.choices:
        assert (choice.message.content or "").startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content or ""), dict)


# ---- bad input

MESSAGE: dict[str, Any] = {"role": "user", "content": "Hello"}
BAD: list[tuple[str, dict[str, Any]]] = [
    ("messages", {"messages": []}),
    ("messages", {"messages": "Hello"}),
    ("messages", {"messages": [MESSAGE] * 5000}),
    ("messages[0].role", {"messages": [{**MESSAGE, "role": "wizard"}]}),
    ("messages[0].role", {"messages": [{"role": "function", "content": "x", "name": "f"}]}),
    ("messages[0].tool_call_id", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages[0].role", {"messages": [{"content": "x"}]}),
    ("messages[0].content", {"messages": [{**MESSAGE, "content": 3}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("prompt", {"prompt": "Hello"}),
    (
        "messages[0].content[0].type",
        {"messages": [{**MESSAGE, "content": [{"type": "image_url", "image_url": {}}]}]},
    ),
    ("messages[0].tool_calls", {"messages": [{**MESSAGE, "tool_calls": [{}]}]}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 10**12}),
    ("max_tokens", {"max_tokens": 1.5}),
    ("max_completion_tokens", {"max_completion_tokens": -3}),
    ("n", {"n": 0}),
    ("n", {"n": 10**6}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": "hot"}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": 1.01}),
    ("seed", {"seed": 2**70}),
    ("presence_penalty", {"presence_penalty": 3}),
    ("stop", {"stop": ["x" * 10**6]}),
    ("stop", {"stop": ["x"] * 10**5}),
    ("stop", {"stop": [""]}),
    ("logit_bias", {"logit_bias": {"abc": 1}}),
    ("logit_bias", {"logit_bias": {"100000": 1}}),
    ("logit_bias", {"logit_bias": {"7": 101}}),
    ("stop_token_ids", {"stop_token_ids": [-1]}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("response_format.type", {"response_format": {"type": "poem"}}),
    ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
    (
        "response_format.json_schema.schema",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "wizard"}}}},
    ),
    (
        "response_format.json_schema.schema",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}},
    ),
    ("structured_outputs.regex", {"structured_outputs": {"regex": "(a"}}),
    ("structured_outputs.choice", {"structured_outputs": {"choice": []}}),
    ("structured_outputs.grammar", {"structured_outputs": {"grammar": "x"}}),
    ("structured_outputs", {"structured_outputs": {}}),
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("tools[0].type", {"tools": [{"type": "custom"}]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("parallel_tool_calls", {"parallel_tool_calls": 1}),
    ("chat_template", {"chat_template": "{{ messages }}"}),
    ("reasoning_effort", {"reasoning_effort": "lots"}),
    ("allowed_token_ids", {"allowed_token_ids": [1]}),
    ("continue_final_message", {"continue_final_message": True}),
    ("bad_words", {"bad_words": ["a"]}),
    ("store", {"store": True}),
    ("service_tier", {"service_tier": "flex"}),
    ("skip_special_tokens", {"skip_special_tokens": False}),
    ("chat_template_kwargs.colour", {"chat_template_kwargs": {"colour": "red"}}),
    ("chat_template_kwargs.messages", {"chat_template_kwargs": {"messages": []}}),
    ("modalities", {"modalities": ["text", "audio"]}),
    ("verbosity", {"verbosity": "low"}),
    ("user", {"user": 5}),
    ("messages[0].cache_control", {"messages": [{**MESSAGE, "cache_control": 1}]}),
    ("colour", {"colour": "blue"}),
]


@pytest.mark.parametrize(("field", "change"), BAD, ids=lambda each: str(each)[:60])
def test_bad_input_is_refused_by_name(served: Serving, field: str, change: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": [MESSAGE], **change}
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=MOST_S)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == field, error
    assert field in error["message"]
    assert error["type"] == "invalid_request_error"


NEUTRAL: list[dict[str, Any]] = [
    {"tools": []},
    {"tools": None, "tool_choice": None, "reasoning_effort": None},
    {"tool_choice": "none", "parallel_tool_calls": False},
    {"tool_choice": "auto", "parallel_tool_calls": True},
    {"include_reasoning": True, "vllm_xargs": {}, "mm_processor_kwargs": {}},
    {"functions": [], "function_call": "auto"},
    {"chat_template_kwargs": {}, "documents": []},
    {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
    {"add_generation_prompt": True, "continue_final_message": False, "echo": False},
    {"skip_special_tokens": True, "spaces_between_special_tokens": True},
    {"prompt_cache_key": "a", "safety_identifier": "b", "prompt_cache_retention": "24h"},
    {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "user": "me"},
    {"service_tier": "default", "modalities": ["text"], "verbosity": "medium"},
    {"bad_words": [], "allowed_token_ids": [], "length_penalty": 1.0, "use_beam_search": False},
    {"include_stop_str_in_output": False, "return_token_ids": False, "priority": 0},
    {"messages": [{**MESSAGE, "tool_calls": [], "annotations": [], "reasoning_content": ""}]},
    {"messages": [{**MESSAGE, "cache_control": {"type": "ephemeral"}}]},
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}},
                ],
            }
        ]
    },
]


@pytest.mark.parametrize("change", NEUTRAL, ids=lambda each: str(each)[:60])
def test_a_field_that_asks_for_nothing_changes_nothing(
    served: Serving, change: dict[str, Any]
) -> None:
    plain = {"model": "tiny", "messages": [MESSAGE], "max_tokens": 4, "temperature": 0}
    texts = []
    for body in (plain, {**plain, **change}):
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=MOST_S)
        assert answer.status_code == 200, answer.text
        texts.append(answer.json()["choices"][0]["message"]["content"])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("change", [{"best_of": 1}, {"suffix": ""}, {"user": "me", "store": False}])
def test_so_it_does_not_for_a_completion(served: Serving, change: dict[str, Any]) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2, **change}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=MOST_S)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": [MESSAGE]}),
        ("/v1/completions", {"prompt": "Hello"}),
    ],
)
def test_every_event_says_how_many_tokens_there_are_where_asked(
    served: Serving, path: str, asked: dict[str, Any]
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": "tiny", **asked, "max_tokens": 6, "n": 2, "stream": True, "ignore_eos": True}
    answer = httpx.post(
        f"{served.url}{path}", json={**body, "stream_options": options}, timeout=MOST_S
    )
    said = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    usages = [json.loads(each)["usage"] for each in said if each != "[DONE]"]
    counts = [each["completion_tokens"] for each in usages]
    assert counts == sorted(counts)
    assert len(set(counts)) >= 12
    assert counts[-1] == 12
    assert all(
        each["total_tokens"] == each["prompt_tokens"] + each["completion_tokens"] for each in usages
    )


@pytest.mark.parametrize(
    "field", ["allowed_token_ids", "bad_words", "continue_final_message", "echo", "request_id"]
)
def test_a_field_of_vllms_is_called_unsupported_and_no_other_is_suggested(
    served: Serving, field: str
) -> None:
    body = {"model": "tiny", "messages": [MESSAGE], field: 1}
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=MOST_S)
    assert f"{field}: this field is not supported" in answer.json()["error"]["message"]
    assert "did you mean" not in answer.text


def test_the_models_context_is_listed(served: Serving) -> None:
    (listed,) = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert listed["max_model_len"] == 256


@pytest.mark.parametrize("text", [r"\ud800", r"a\udfffb", r"\uD83D \ude42"])
def test_half_of_a_surrogate_pair_is_refused_by_its_field(served: Serving, text: str) -> None:
    whole: dict[str, Any] = {"model": "tiny", "messages": HELLO, "stop": ["x"]}
    for place, field in (("Hello", "messages[0].content"), ('"x"', "stop[0]")):
        body = json.dumps(whole).replace(place, text if field != "stop[0]" else f'"{text}"')
        answer = httpx.post(f"{served.url}/v1/chat/completions", content=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == field
        assert "half of a surrogate pair" in answer.json()["error"]["message"]


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(client: openai.OpenAI) -> None:
    for content in ("x" * 300, "x" * 10**6):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": content}]
            )
        assert caught.value.code == "context_length_exceeded"
        assert "256" in caught.value.message
    assert caught.value.param is not None
    with pytest.raises(openai.BadRequestError, match="257") as caught:
        client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=250)
    assert caught.value.code == "context_length_exceeded"


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="other", messages=HELLO)
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("template", "body"),
    [
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/chat/completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "n": 2}),
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/completions", {"prompt": ["Hello", "a"], "logprobs": 2}),
        ("/tokenize", {"prompt": "Hello", "return_token_strs": True}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
def test_answers_are_as_described(served: Serving, template: str, body: dict[str, Any]) -> None:
    more = {} if "token" in template else {"max_tokens": 3}
    with httpx.Client(base_url=served.url, timeout=MOST_S) as http:
        answer = http.post(template, json={"model": "tiny", **more, **body}).raise_for_status()
        check_described(http, template, answer)


def test_the_only_language_model_needs_no_name(served: Serving) -> None:
    body = {"messages": [MESSAGE], "max_tokens": 2}
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=MOST_S)
    assert answer.json()["model"] == "tiny"
    answer = httpx.post(f"{served.url}/v1/completions", json={"prompt": "a"}, timeout=MOST_S)
    assert answer.json()["model"] == "tiny"


@needs_llguidance
def test_older_names_of_forms(served: Serving) -> None:
    def text_of(**form: Any) -> str:
        body = {"model": "tiny", "messages": [MESSAGE], "max_tokens": 40, **form}
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=MOST_S)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    schema = {"enum": [1, 2]}
    assert text_of(guided_choice=["yes", "no"]) in ("yes", "no")
    assert re.fullmatch("[ab]{3}", text_of(guided_regex="[ab]{3}"))
    for form in (
        {"guided_json": schema},
        {"guided_json": json.dumps(schema)},
        {"response_format": {"type": "json_object", "schema": schema}},
    ):
        assert text_of(**form) in ("1", "2")


def test_scores_of_the_prompt(served: Serving) -> None:
    """vLLM's `prompt_logprobs`: the same in chats and texts, and as `echo` has them."""
    url = f"{served.url}/v1"
    asked = {"model": "tiny", "max_tokens": 3, "temperature": 0, "seed": 1}
    text = {**asked, "prompt": "Hello", "logprobs": 1}
    echoed = httpx.post(f"{url}/completions", json={**text, "echo": True}, timeout=MOST_S).json()
    plain = httpx.post(f"{url}/completions", json=text, timeout=MOST_S).json()
    both = httpx.post(
        f"{url}/completions", json={**text, "prompt_logprobs": 3}, timeout=MOST_S
    ).json()
    (choice,) = both["choices"]
    scores = choice.pop("prompt_logprobs")
    assert choice == plain["choices"][0]  # the answer's own are as without
    assert scores[0] is None
    expected = echoed["choices"][0]["logprobs"]["token_logprobs"][1:5]
    for letter, score, value in zip("ello", scores[1:], expected, strict=True):
        own = [each for each in score.values() if each["decoded_token"] == letter]
        assert own[0]["logprob"] == pytest.approx(value)
        ranks = [each["rank"] for each in score.values() if each["rank"] is not None]
        assert sorted(ranks) == [1, 2, 3]
    chat = {**asked, "messages": [MESSAGE], "prompt_logprobs": 0}
    answer = httpx.post(f"{url}/chat/completions", json=chat, timeout=MOST_S).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["choices"][0]["logprobs"] is None


def test_the_best_of_several_answers(served: Serving) -> None:
    asked = {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 5, "seed": 3, "ignore_eos": True}
    url = f"{served.url}/v1/completions"
    every = httpx.post(url, json={**asked, "n": 4, "logprobs": 0}, timeout=MOST_S).json()["choices"]

    def mean(choice: dict[str, Any]) -> float:
        return sum(choice["logprobs"]["token_logprobs"])

    best = httpx.post(url, json={**asked, "n": 2, "best_of": 4}, timeout=MOST_S).json()
    expected = [
        each["text"]
        for first in (0, 4)
        for each in sorted(every[first : first + 4], key=mean, reverse=True)[:2]
    ]
    assert [each["text"] for each in best["choices"]] == expected
    assert [each["index"] for each in best["choices"]] == [0, 1, 2, 3]
    assert best["usage"]["completion_tokens"] == 40
    for wrong in ({"best_of": 1, "n": 2}, {"best_of": 2, "stream": True}, {"best_of": 0}):
        answer = httpx.post(url, json={**asked, **wrong}, timeout=MOST_S)
        assert answer.json()["error"]["param"] == "best_of", answer.text


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/messages", "v1/responses", "api/chat"])
def test_many_small_values_are_refused_before_they_are_made(served: Serving, path: str) -> None:
    """Nothing else runs in the process meanwhile."""
    field = "input" if path == "v1/responses" else "messages"
    parts = [{"type": "text", "text": ""}] * 5000
    for content, status, words in (
        ([{"role": "user", "content": "a"}] * 90_000, 413, "more than 262144 values"),
        ([{"role": "user", "content": parts}], 400, "5000; at most 4096 are allowed"),
    ):
        if path == "api/chat" and status == 400:
            continue  # its messages have texts, no parts
        asked = {"model": "tiny", "max_tokens": 1, field: content}
        if path in ("v1/responses", "api/chat"):
            del asked["max_tokens"]
        answer = httpx.post(f"{served.url}/{path}", json=asked, timeout=MOST_S)
        assert (answer.status_code, words in answer.text) == (status, True), answer.text
