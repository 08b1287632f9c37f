"""Requests of OpenAI's `/v1/responses`, as a chat: instructions and input items become messages."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, get_args

import msgspec
from msgspec import Meta

from headway.errors import InvalidInput
from headway.server.bodies.json_body import CHAT_VALUES
from headway.server.bodies.neutral import (
    Neutral,
    check_count,
    check_fields,
    is_neutral,
    text_at,
    texts_in,
)
from headway.server.families.openai.chat import ChatRequest, Effort
from headway.server.families.openai.chat_messages import call_arguments

# Of a chat's fields, in errors: theirs.
FIELDS = {
    r"response_format(\.json_schema)?": "text.format",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    r"tools\[(\d+)\]\.function": r"tools[\1]",
    r"tool_choice\.function": "tool_choice",
    r"(tool_choice)\.allowed_tools((?:\.\w+(?:\[\d+\])?)*?)(?:\.function)?": r"\1\2",
    "reasoning_effort": "reasoning.effort",
}
_STATELESS = "the server keeps no answers; send all of the input again"
_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
_MESSAGE: Neutral = {**dict.fromkeys(("id", "phase", "status"), str)}
_PARTS = {
    **dict.fromkeys(
        ("input_text", "output_text", "text", "summary_text", "reasoning_text"), "text"
    ),
    "refusal": "refusal",
}
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
# Tools of the server that agents offer beside their own, wherever they run, and do without.
_SKIPPED = ("image_generation", "namespace", "tool_search", "web_search")
_TOOL: Neutral = {
    **dict.fromkeys(("async", "defer_loading"), (False,)),
    "allowed_callers": (["direct"],),
    "output_schema": dict,  # says how results look
}
_SKIPPED_IN_THOUGHT = ("type", "id", "status", "encrypted_content", "summary", "content")


class ResponsesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    MOST_VALUES: ClassVar[int] = CHAT_VALUES
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
    return ChatRequest(
        model=asked.model,
        messages=_messages(asked),
        tools=_tools(asked.tools or []) or None,
        tool_choice=_choice(asked.tool_choice),
        parallel_tool_calls=asked.parallel_tool_calls,
        reasoning_effort=_effort(asked.reasoning or {}),
        max_tokens=asked.max_output_tokens,
        stream=asked.stream,
        temperature=asked.temperature,
        top_p=asked.top_p,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        response_format=_format(asked.text or {}),
    )


def _tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    has_own = any(tool.get("type") == "function" for tool in tools)
    for index, tool in enumerate(tools):
        kind = tool.get("type")
        if kind in _SKIPPED and has_own:
            continue
        if kind != "function":
            raise InvalidInput(f"tools[{index}].type: {kind!r:.40} is not supported; function is")
        function = {name: each for name, each in tool.items() if name != "type"}
        for name in [name for name, each in function.items() if is_neutral(name, each, _TOOL)]:
            del function[name]
        found.append({"type": "function", "function": function})
    return found


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """As the chat has it: what is chosen lies one level deeper."""
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind == "function":
        return {"type": kind, "function": {"name": choice.get("name")}}
    if kind == "allowed_tools" and isinstance(choice.get("tools"), list):
        named = [
            {"function": each}
            if isinstance(each, dict) and each.get("type") == "function"
            else None
            for each in choice["tools"]
        ]
        return {"type": kind, "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
    raise InvalidInput(f"tool_choice.type: {kind!r:.40} is not supported; function is")


def _effort(given: Mapping[str, Any]) -> Any:
    summary: Neutral = dict.fromkeys(("summary", "generate_summary"), ("auto",))
    check_fields(given, ("effort",), "reasoning", summary)
    effort = given.get("effort")
    if effort not in (None, *get_args(Effort)):
        raise InvalidInput(f"reasoning.effort: {effort!r:.40} is unknown")
    return effort


def _format(text: Mapping[str, Any]) -> dict[str, Any] | None:
    check_fields(text, ("format",), "text", {"verbosity": ("medium",)})
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
    check_count(items, "input")
    found = [] if not asked.instructions else [{"role": "system", "content": asked.instructions}]
    for index, item in enumerate(items):
        _add(found, item, f"input[{index}]")
    return found


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    """Add an item. What the assistant thinks, says and calls in one turn is one message."""
    kind = item.get("type", "message")
    add = _ADDS.get(kind) if isinstance(kind, str) else None
    if add is None:
        why = _STATELESS if kind == "item_reference" else f"there are {', '.join(_ADDS)}"
        raise InvalidInput(f"{where}.type: {kind!r:.40} is not supported; {why}")
    add(messages, item, where)


def _add_message(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    role = item.get("role")
    known = _ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        raise InvalidInput(f"{where}.role: {role!r:.40} is unknown; there are {', '.join(_ROLES)}")
    check_fields(item, ("type", "role", "content"), where, _MESSAGE)
    text = _text(item.get("content"), f"{where}.content")
    last = messages[-1] if messages else {}
    if len(messages) == 1 and known == "system" == last["role"]:
        last["content"] += "\n\n" + text  # many templates take no second one
    elif known == "assistant" and last.keys() == {"role", "content", "reasoning_content"}:
        last["content"] = text
    else:
        messages.append({"role": known, "content": text})


def _add_thought(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    check_fields(item, _SKIPPED_IN_THOUGHT, where, _MESSAGE)
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list):
        raise InvalidInput(f"{where}.content: a list of parts is expected")
    text = _text(parts, f"{where}.content")
    if text:
        messages.append({"role": "assistant", "content": "", "reasoning_content": text})


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    check_fields(item, ("type", "call_id", "name", "arguments"), where, _MESSAGE)
    call_id, name, given = (text_at(item, each, where) for each in ("call_id", "name", "arguments"))
    function = {"name": name, "arguments": call_arguments(given, f"{where}.arguments")}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    call = {"id": call_id, "type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(call)


def _add_output(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str) -> None:
    check_fields(item, ("type", "call_id", "output"), where, _MESSAGE)
    call_id = text_at(item, "call_id", where)
    text = _text(item.get("output"), f"{where}.output")
    messages.append({"role": "tool", "tool_call_id": call_id, "content": text})


_ADDS = {
    "message": _add_message,
    "reasoning": _add_thought,
    "function_call": _add_call,
    "function_call_output": _add_output,
}


def _text(content: Any, where: str) -> str:
    return "\n".join(texts_in(content, where, _part, "parts"))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise InvalidInput(f"{where}: an object with a type is expected")
    field = _PARTS.get(str(part.get("type")))
    if field is None:
        raise InvalidInput(f"{where}.type: {part.get('type')!r:.40} is not supported; only text is")
    check_fields(part, ("type", field), where, _PART)
    return text_at(part, field, where)
