"""Requests in Anthropic's dialect, as a chat: one field of theirs for one of ours."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from headway.errors import InvalidInput
from headway.server.bodies.neutral import Neutral, is_neutral
from headway.server.families.openai.chat import ChatRequest
from headway.server.families.openai.chat_messages import MOST_MESSAGES

# Of ours, in errors: theirs.
FIELDS = {
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
_ROLES = ("user", "assistant", "system")
_TEXT: Neutral = {"cache_control": dict, "citations": ([],)}  # prefixes are shared without it
_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
_NEUTRAL: Neutral = {
    "cache_control": dict,
    "container": (),
    "context_management": ({}, {"edits": []}, _KEEPS_ALL),
    "mcp_servers": ([],),
    "metadata": dict,
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "thinking": ({"type": "disabled"},),
    "tool_choice": ({"type": "none"}, {"type": "auto"}),  # without tools it does not matter
    "tools": ([],),
}


class CountRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the prompt is made of."""

    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("compaction", "diagnostics", "fallbacks", "inference_geo", "thread"), ""),
        "prompt": "/v1/completions takes it; here a prompt is a message",
    }
    NEUTRAL: ClassVar[Neutral] = _NEUTRAL

    model: str
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None  # the older name of output_config.format


class MessagesRequest(CountRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1)]
    stop_sequences: list[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


def chat_of(asked: MessagesRequest) -> ChatRequest:
    return ChatRequest(
        model=asked.model,
        messages=messages_of(asked),
        max_tokens=asked.max_tokens,
        stop=asked.stop_sequences or None,
        stream=asked.stream,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        response_format=format_of(asked),
    )


def messages_of(asked: CountRequest) -> list[dict[str, Any]]:
    """The messages as templates take them. Raises InvalidInput, which names the place."""
    if not asked.messages:
        raise InvalidInput("messages: at least one is expected")
    if len(asked.messages) > MOST_MESSAGES:
        raise InvalidInput(
            f"messages: {len(asked.messages)} messages; at most {MOST_MESSAGES} are allowed"
        )
    found = []
    if asked.system:
        found.append({"role": "system", "content": _text(asked.system, "system")})
    found += [_message(each, f"messages[{i}]") for i, each in enumerate(asked.messages)]
    if found[-1]["role"] == "assistant":
        raise InvalidInput(
            f"messages[{len(asked.messages) - 1}].role: the last message is the assistant's; "
            "continuing an answer that has begun is not supported"
        )
    return found


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in _ROLES:
        raise InvalidInput(f"{where}.role: {role!r:.40} is unknown; there are {', '.join(_ROLES)}")
    for name in message:
        if name not in ("role", "content"):
            raise InvalidInput(f"{where}.{name}: there is no such field")
    return {"role": role, "content": _text(message.get("content"), f"{where}.content")}


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidInput(f"{where}: a text or a list of blocks is expected")
    return "\n".join(_block(block, f"{where}[{index}]") for index, block in enumerate(content))


def _block(block: Any, where: str) -> str:
    if not isinstance(block, dict):
        raise InvalidInput(f"{where}: an object with a type is expected")
    kind = block.get("type")
    if kind != "text":
        raise InvalidInput(f"{where}.type: {kind!r:.40} is not supported; only text is")
    for name, value in block.items():
        if name not in ("type", "text") and not is_neutral(name, value, _TEXT):
            raise InvalidInput(f"{where}.{name}: this field is not supported")
    if not isinstance(block.get("text"), str):
        raise InvalidInput(f"{where}.text: a text is expected")
    return str(block["text"])


def format_of(asked: CountRequest) -> dict[str, Any] | None:
    """The form of the answer, as OpenAI's field has it."""
    config = {name: each for name, each in (asked.output_config or {}).items() if each is not None}
    form, field = config.pop("format", None), "output_config.format"
    for name in config:
        raise InvalidInput(f"output_config.{name}: this field is not supported")
    if form is None:
        form, field = asked.output_format, "output_format"
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema" or "schema" not in form:
        raise InvalidInput(f"{field}: an object with type json_schema and a schema is expected")
    for name in form.keys() - {"type", "schema"}:
        raise InvalidInput(f"{field}.{name}: there is no such field")
    return {"type": "json_schema", "json_schema": {"schema": form["schema"]}}
