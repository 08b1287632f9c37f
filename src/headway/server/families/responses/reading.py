"""Requests of OpenAI's `/v1/responses`, as a chat: instructions and input items become messages."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from headway.errors import InvalidInput
from headway.server.bodies.neutral import Neutral, is_neutral
from headway.server.families.openai.chat import ChatRequest
from headway.server.families.openai.chat_messages import MOST_MESSAGES

# Of a chat's fields, in errors: theirs.
FIELDS = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "messages": "input",
}
_STATELESS = "the server keeps no answers; send all of the input again"
_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
_MESSAGE: Neutral = {**dict.fromkeys(("id", "phase", "status"), str)}
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_PART: Neutral = {"annotations": ([],), "logprobs": ([],)}
# More of what only tools have that run on the server, or of what the answer has anyway.
_INCLUDED = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
# Tools of the server that agents offer wherever they run, and do without.
_SKIPPED = ("image_generation", "namespace", "tool_search", "web_search", "web_search_preview")


class ResponsesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("context_management", "moderation", "prompt", "top_logprobs"), ""),
        **dict.fromkeys(("conversation", "previous_response_id"), _STATELESS),
        "background": "the server keeps no answers",
        "messages": "this route takes input",
        "max_tokens": "its name here is max_output_tokens",
        "max_completion_tokens": "its name here is max_output_tokens",
        "response_format": "its name here is text.format",
        "store": "the server keeps no answers; send store = false",
    }
    NEUTRAL: ClassVar[Neutral] = {
        "background": (False,),
        "client_metadata": dict,
        "context_management": ([],),
        "prompt_cache_options": dict,
        "prompt_cache_retention": ("in_memory", "in-memory", "24h"),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "stream_options": ({}, {"include_obfuscation": False}),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    }

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    # For the caller, and the same in the answer.
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None


def chat_of(asked: ResponsesRequest) -> ChatRequest:
    for index, each in enumerate(asked.include or ()):
        if each not in _INCLUDED:
            raise InvalidInput(f"include[{index}]: {each!r:.60} is not supported")
    _check_tools(asked)
    _check_reasoning(asked.reasoning or {})
    return ChatRequest(
        model=asked.model,
        messages=_messages(asked),
        max_tokens=asked.max_output_tokens,
        stream=asked.stream,
        temperature=asked.temperature,
        top_p=asked.top_p,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        response_format=_format(asked.text or {}),
    )


def _check_tools(asked: ResponsesRequest) -> None:
    for index, tool in enumerate(asked.tools or ()):
        kind = tool.get("type")
        if kind not in _SKIPPED:
            raise InvalidInput(f"tools[{index}].type: {kind!r:.40} is not supported")
    if asked.tool_choice not in (None, "none", "auto"):
        raise InvalidInput("tool_choice: there are no tools to choose")


def _check_reasoning(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if not is_neutral(name, value, {"summary": ("auto",), "generate_summary": ("auto",)}):
            raise InvalidInput(f"reasoning.{name}: this field is not supported")


def _format(text: Mapping[str, Any]) -> dict[str, Any] | None:
    for name, value in text.items():
        if name != "format" and not is_neutral(name, value, {"verbosity": ("medium",)}):
            raise InvalidInput(f"text.{name}: this field is not supported")
    given = text.get("format")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise InvalidInput("text.format: an object with a type is expected")
    if given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {k: v for k, v in given.items() if k != "type"}}


# ---- input


def _messages(asked: ResponsesRequest) -> list[dict[str, Any]]:
    """Raises InvalidInput, which names the place."""
    items = asked.input
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not items:
        raise InvalidInput("input: at least one item is expected")
    if len(items) > MOST_MESSAGES:
        raise InvalidInput(f"input: {len(items)} items; at most {MOST_MESSAGES} are allowed")
    found = [] if not asked.instructions else [{"role": "system", "content": asked.instructions}]
    for index, item in enumerate(items):
        _add(found, _message(item, f"input[{index}]"))
    return found


def _add(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """What the system says at the beginning is one message: many templates take no second."""
    is_second = len(messages) == 1 and messages[0]["role"] == message["role"] == "system"
    if is_second:
        messages[0]["content"] += "\n\n" + message["content"]
    else:
        messages.append(message)


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "item_reference":
        raise InvalidInput(f"{where}.type: 'item_reference' is not supported; {_STATELESS}")
    if kind != "message":
        raise InvalidInput(f"{where}.type: {kind!r:.40} is not supported; there is message")
    role = item.get("role")
    known = _ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        raise InvalidInput(f"{where}.role: {role!r:.40} is unknown; there are {', '.join(_ROLES)}")
    for name, value in item.items():
        if name not in ("type", "role", "content") and not is_neutral(name, value, _MESSAGE):
            raise InvalidInput(f"{where}.{name}: this field is not supported")
    return {"role": known, "content": _text(item.get("content"), f"{where}.content")}


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidInput(f"{where}: a text or a list of parts is expected")
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise InvalidInput(f"{where}: an object with a type is expected")
    field = _PARTS.get(str(part.get("type")))
    if field is None:
        raise InvalidInput(f"{where}.type: {part.get('type')!r:.40} is not supported; only text is")
    for name, value in part.items():
        if name not in ("type", field) and not is_neutral(name, value, _PART):
            raise InvalidInput(f"{where}.{name}: this field is not supported")
    text = part.get(field)
    if not isinstance(text, str):
        raise InvalidInput(f"{where}.{field}: a text is expected")
    return text
