"""What each dialect writes where an answer fails after it has begun."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from headway.core.generation.options import generation_options
from headway.errors import ContextLengthExceeded, DeadlineExceeded, HeadwayError, InvalidInput
from headway.hosting.generation.pieces import AnswerPiece
from headway.hosting.registry import PLAIN
from headway.server.families.anthropic.reading import MessagesRequest
from headway.server.families.anthropic.reading import chat_of as message_chat
from headway.server.families.anthropic.writing import MessageWriter
from headway.server.families.ollama.reading import OllamaChatRequest, messages_of
from headway.server.families.ollama.writing import LineWriter
from headway.server.families.openai.answers import UsageCount
from headway.server.families.openai.chat import BegunChat, ChatRequest
from headway.server.families.openai.chat_messages import checked_messages
from headway.server.families.openai.chat_tools import tool_use
from headway.server.families.responses.reading import ResponsesRequest
from headway.server.families.responses.reading import chat_of as response_chat
from headway.server.families.responses.writing import ResponseWriter
from headway.server.service.error_words import anthropic_error, renamed

DEEP = '{"a":' * 5000 + "1" + "}" * 5000
CHAT = ChatRequest(model="m", messages=[])
LATE = DeadlineExceeded("too late")


def begun() -> BegunChat:
    nothing = cast(Any, None)
    usage = UsageCount(1, 3, 1)
    given = dict.fromkeys(BegunChat._fields, nothing)
    return BegunChat(**{**given, "usage": usage, "ask": PLAIN, "options": generation_options({})})


def data_of(event: bytes) -> Any:
    return json.loads(event.decode().partition("data: ")[2])


def test_a_message_ends_with_an_error_event() -> None:
    writer = MessageWriter(CHAT, "m", begun())
    assert writer.piece(AnswerPiece(0, "Hel", 1)).startswith(b"event: message_start\n")
    event = writer.error_of(LATE)
    assert event.startswith(b"event: error\n")
    assert data_of(event)["error"] == {"type": "timeout_error", "message": "too late"}


def test_a_response_has_failed_with_what_it_had() -> None:
    writer = ResponseWriter(ResponsesRequest(model="m", input="hi"), CHAT, "m", begun())
    sent = writer.piece(AnswerPiece(0, "Hel", 1)).count(b"event: ")
    event = writer.error_of(LATE)
    assert event.startswith(b"event: response.failed\n")
    failed = data_of(event)
    assert failed["sequence_number"] == sent
    response = failed["response"]
    assert response["error"] == {"code": "server_error", "message": "too late"}
    (message,) = response["output"]
    assert (message["status"], message["content"][0]["text"]) == ("incomplete", "Hel")


def test_a_line_says_what_went_wrong() -> None:
    writer = LineWriter(CHAT, "m", begun(), is_chat=True)
    assert json.loads(writer.piece(AnswerPiece(0, "Hel", 1)))["message"]["content"] == "Hel"
    assert json.loads(writer.error_of(LATE)) == {"error": "too late"}


@pytest.mark.parametrize(
    ("error", "status", "kind", "words"),
    [
        (InvalidInput("a: b"), 400, "invalid_request_error", "a: b"),
        (ContextLengthExceeded("c"), 400, "invalid_request_error", "prompt is too long: c"),
        (HeadwayError("d"), 500, "api_error", "d"),
        (HeadwayError("e"), 429, "rate_limit_error", "e"),
    ],
)
def test_errors_are_in_anthropics_words(
    error: HeadwayError, status: int, kind: str, words: str
) -> None:
    found = anthropic_error(status, str(error), code=error.code)
    assert found == {"type": "error", "error": {"type": kind, "message": words}}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("stop: 17 texts", "stop_sequences: 17 texts"),
        ("stopped: by hand", "stopped: by hand"),
        ("tools[3].function.parameters: is wrong", "tools[3].input_schema: is wrong"),
        ("tools[3].type: is wrong", "tools[3].type: is wrong"),
    ],
)
def test_fields_have_the_dialects_names(said: str, expected: str) -> None:
    names = {
        "stop": "stop_sequences",
        r"tools\[(\d+)\]\.function\.parameters": r"tools[\1].input_schema",
    }
    with pytest.raises(InvalidInput) as caught, renamed(names):
        raise InvalidInput(said)
    assert str(caught.value) == expected


MANY: list[dict[str, Any]] = [{"role": "user", "content": "hi"}] * 4097


@pytest.mark.parametrize(
    ("read", "field"),
    [
        (lambda: checked_messages(MANY), "messages"),
        (lambda: messages_of(OllamaChatRequest(model="m", messages=MANY)), "messages"),
        (lambda: message_chat(MessagesRequest(model="m", max_tokens=1, messages=MANY)), "messages"),
        (lambda: response_chat(ResponsesRequest(model="m", input=MANY)), "input"),
    ],
)
def test_every_dialect_takes_as_many_messages(read: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidInput, match=f"{field}: 4097; at most 4096 are allowed"):
        read()


def test_a_choice_of_tools_that_is_no_text_is_refused() -> None:
    asked = MessagesRequest(
        model="m",
        max_tokens=1,
        messages=[{"role": "user", "content": "a"}],
        tool_choice={"type": []},
    )
    with pytest.raises(InvalidInput, match=r"tool_choice\.type"):
        message_chat(asked)


def test_json_within_a_text_that_is_nested_too_deep_is_refused() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": DEEP}}
    with pytest.raises(InvalidInput, match="arguments: is not valid JSON"):
        checked_messages([{"role": "assistant", "tool_calls": [call]}])
    with pytest.raises(InvalidInput, match="guided_json: is not valid JSON"):
        ChatRequest(model="m", messages=[], guided_json=DEEP).form()


def test_a_choice_within_a_choice_is_refused() -> None:
    choice: dict[str, Any] = {"type": "function", "name": "f"}
    for _ in range(600):
        choice = {"type": "allowed_tools", "mode": "auto", "tools": [choice]}
    asked = ResponsesRequest(model="m", input="a", tool_choice=choice)
    with pytest.raises(InvalidInput, match="the name of a tool is expected"):
        tool_use(
            [{"type": "function", "function": {"name": "f"}}],
            response_chat(asked).tool_choice,
            None,
        )
