"""Requests in Anthropic's dialect, as a chat: one field of theirs for one of ours."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from headway.errors import InvalidInput
from headway.server.bodies.json_body import CHAT_VALUES
from headway.server.bodies.neutral import (
    Neutral,
    check_count,
    check_fields,
    check_names,
    is_neutral,
    text_at,
    texts_in,
)
from headway.server.families.openai.chat import ChatRequest

# Of ours, in errors: theirs.
FIELDS = {
    r"response_format(\.json_schema)?": "output_config.format",
    "stop": "stop_sequences",
    r"tools\[(\d+)\]\.function\.parameters": r"tools[\1].input_schema",
    r"tools\[(\d+)\]\.function": r"tools[\1]",
    r"tool_choice\.function": "tool_choice",
    "reasoning_effort": "output_config.effort",
}
_ROLES = ("user", "assistant", "system")
_CACHED: Neutral = {"cache_control": dict}  # prefixes are shared without it
_BLOCK: Neutral = {**_CACHED, "citations": ([],), "signature": str}
_TOOL: Neutral = {
    **_CACHED,
    **dict.fromkeys(("defer_loading", "eager_input_streaming"), (False, True)),
    "allowed_callers": (["direct"],),
}
_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
_NEUTRAL: Neutral = {
    **_CACHED,
    "container": (),
    "context_management": ({}, {"edits": []}, _KEEPS_ALL),
    "mcp_servers": ([],),
    "metadata": dict,
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class CountRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the prompt is made of."""

    MOST_VALUES: ClassVar[int] = CHAT_VALUES
    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("compaction", "diagnostics", "fallbacks", "inference_geo", "thread"), ""),
        "prompt": "/v1/completions takes it; here a prompt is a message",
    }
    NEUTRAL: ClassVar[Neutral] = _NEUTRAL

    model: str
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None  # its tokens count towards max_tokens, nothing else
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None  # the older name of output_config.format


class MessagesRequest(CountRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1)]
    stop_sequences: list[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


def chat_of(asked: CountRequest) -> ChatRequest:
    """Raises InvalidInput, which names the place in Anthropic's words."""
    more: dict[str, Any] = {}
    if isinstance(asked, MessagesRequest):
        more = {
            "max_tokens": asked.max_tokens,
            "stop": asked.stop_sequences or None,
            "stream": asked.stream,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "top_k": asked.top_k,
        }
    effort, form = _output(asked)
    choice = asked.tool_choice or {}
    return ChatRequest(
        model=asked.model,
        messages=_messages(asked),
        tools=[_tool(each, f"tools[{i}]") for i, each in enumerate(asked.tools or ())] or None,
        tool_choice=_choice(choice),
        parallel_tool_calls=not choice.get("disable_parallel_tool_use", False),
        chat_template_kwargs=_thinking(asked.thinking or {}),
        reasoning_effort=effort,
        response_format=form,
        **more,
    )


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise InvalidInput(f"{where}.type: {kind!r:.40} is not supported; the server has no tools")
    known = ("name", "description", "input_schema", "strict", "type", "input_examples")
    check_fields(tool, known, where, _TOOL)
    if tool.get("input_examples"):
        raise InvalidInput(f"{where}.input_examples: put examples into the description")
    function = {name: tool.get(name) for name in ("name", "description", "strict")}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


def _choice(choice: Mapping[str, Any]) -> str | dict[str, Any] | None:
    check_names(choice, ("type", "name", "disable_parallel_tool_use"), "tool_choice")
    kind = choice.get("type")
    if kind != "tool" and choice.get("name") is not None:
        raise InvalidInput(f"tool_choice.name: goes with type tool, not {kind!r:.40}")
    if not choice:
        return None
    if isinstance(kind, str) and kind in _CHOICES:
        return _CHOICES[kind]
    if kind != "tool":
        known = ", ".join([*_CHOICES, "tool"])
        raise InvalidInput(f"tool_choice.type: {kind!r:.40} is unknown; there are {known}")
    return {"type": "function", "function": {"name": choice.get("name")}}


def _thinking(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """For the model's template. A model that does not think answers as it always does."""
    if not given:
        return None
    kind = given.get("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise InvalidInput(f"thinking.type: {kind!r:.40} is not one of enabled, adaptive, disabled")
    for name, value in given.items():
        is_budget = name == "budget_tokens" and isinstance(value, int)
        neutral: Neutral = {"display": ("summarized", "omitted")}
        if name != "type" and not is_budget and not is_neutral(name, value, neutral):
            raise InvalidInput(f"thinking.{name}: this field is not supported")
    return {"enable_thinking": kind != "disabled"}


def _output(asked: CountRequest) -> tuple[Any, dict[str, Any] | None]:
    """How much effort an answer is worth, and its form as OpenAI's field has it."""
    config = {name: each for name, each in (asked.output_config or {}).items() if each is not None}
    effort = config.pop("effort", None)
    if effort not in (None, "low", "medium", "high", "xhigh", "max"):
        raise InvalidInput(f"output_config.effort: {effort!r:.40} is unknown")
    form, where = config.pop("format", None), "output_config.format"
    for name in config:
        raise InvalidInput(f"output_config.{name}: this field is not supported")
    if form is None:
        form, where = asked.output_format, "output_format"
    if form is None:
        return effort, None
    if not isinstance(form, dict) or form.get("type") != "json_schema" or "schema" not in form:
        raise InvalidInput(f"{where}: an object with type json_schema and a schema is expected")
    check_names(form, ("type", "schema"), where)
    return effort, {"type": "json_schema", "json_schema": {"schema": form["schema"]}}


# ---- messages


def _messages(asked: CountRequest) -> list[dict[str, Any]]:
    """The messages as OpenAI has them: what tools gave is a message of its own."""
    if not asked.messages:
        raise InvalidInput("messages: at least one is expected")
    check_count(asked.messages)
    found: list[dict[str, Any]] = []
    if asked.system:
        found.append({"role": "system", "content": _text(asked.system, "system")})
    for index, message in enumerate(asked.messages):
        found += _turn(message, f"messages[{index}]")
    if found[-1]["role"] == "assistant":
        raise InvalidInput(
            f"messages[{len(asked.messages) - 1}].role: the last message is the assistant's; "
            "continuing an answer that has begun is not supported"
        )
    return found


def _turn(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    role = message.get("role")
    if role not in _ROLES:
        raise InvalidInput(f"{where}.role: {role!r:.40} is unknown; there are {', '.join(_ROLES)}")
    check_names(message, ("role", "content"), where)
    content, where = message.get("content"), f"{where}.content"
    if isinstance(content, list):
        check_count(content, where)
        return _of_blocks(role, content, where)
    return [{"role": role, "content": _text(content, where)}]


def _of_blocks(role: str, content: list[Any], where: str) -> list[dict[str, Any]]:
    found: dict[str, list[Any]] = {}
    for index, block in enumerate(content):
        kind = str(block.get("type")) if isinstance(block, dict) else ""
        read: Callable[[Any, str], Any] = _BLOCKS[role].get(kind, _block)
        found.setdefault(kind, []).append(read(block, f"{where}[{index}]"))
    results = found.get("tool_result", [])
    if results and "text" not in found:
        return results
    made: dict[str, Any] = {"role": role, "content": "\n".join(found.get("text", []))}
    if "tool_use" in found:
        made["tool_calls"] = found["tool_use"]
    if "thinking" in found:
        made["reasoning_content"] = "".join(found["thinking"])
    return [*results, made]


def _text(content: Any, where: str) -> str:
    return "\n".join(texts_in(content, where, _block, "blocks"))


def _block(block: Any, where: str) -> str:
    if not isinstance(block, dict):
        raise InvalidInput(f"{where}: an object with a type is expected")
    kind = block.get("type")
    if kind != "text":
        raise InvalidInput(f"{where}.type: {kind!r:.40} is not supported here")
    return _field(block, where, field="text")


def _field(block: Mapping[str, Any], where: str, *, field: str) -> str:
    """A block's one text."""
    check_fields(block, ("type", field), where, _BLOCK)
    return text_at(block, field, where)


def _result(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    check_fields(block, ("type", "tool_use_id", "content", "is_error"), where, _BLOCK)
    call_id = text_at(block, "tool_use_id", where)
    text = _text(block.get("content") or "", f"{where}.content")
    said = f"Error: {text}" if block.get("is_error") is True else text
    return {"role": "tool", "tool_call_id": call_id, "content": said}


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    check_fields(block, ("type", "id", "name", "input", "caller"), where, _BLOCK)
    call_id, name = text_at(block, "id", where), text_at(block, "name", where)
    if not isinstance(block.get("input"), dict):
        raise InvalidInput(f"{where}.input: an object is expected")
    function = {"name": name, "arguments": block["input"]}
    return {"id": call_id, "type": "function", "function": function}


_BLOCKS: dict[str, dict[str, Callable[[Any, str], Any]]] = {  # beside text
    "user": {"tool_result": _result},
    "assistant": {"tool_use": _call, "thinking": partial(_field, field="thinking")},
    "system": {},
}
