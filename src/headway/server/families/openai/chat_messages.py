"""The messages of a chat, as OpenAI's routes take them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from headway.errors import InvalidInput
from headway.server.bodies.neutral import check_count, check_fields, is_neutral, text_at
from headway.server.families.openai.generation_request import MESSAGE, PART

_ROLES = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_FIELDS = {
    "assistant": ("role", "content", "name", "tool_calls", "reasoning_content", "reasoning"),
    "tool": ("role", "content", "name", "tool_call_id"),
}
_TEXTS = ("name", "tool_call_id", "reasoning_content", "reasoning")
_PLAIN = ("role", "content", "name")


def checked_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, each with its role and its text as one string. Raises InvalidInput, which names
    the place."""
    if not messages:
        raise InvalidInput("messages: at least one is expected")
    check_count(messages)
    return [_checked(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _checked(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = _role(message.get("role"), where)
    fields = _FIELDS.get(known, _PLAIN)
    check_fields(message, fields, where, MESSAGE)
    if known != "assistant" and message.get("content") is None:
        raise InvalidInput(f"{where}.content: a text is expected")
    checked: dict[str, Any] = {
        "role": known,
        "content": _text(message.get("content"), f"{where}.content"),
        **_texts(message, where),
    }
    if known == "tool" and "tool_call_id" not in checked:
        raise InvalidInput(f"{where}.tool_call_id: the id of the call is expected")
    if message.get("tool_calls"):
        checked["tool_calls"] = _calls(message["tool_calls"], f"{where}.tool_calls")
    return checked


def _role(role: Any, where: str) -> str:
    known = _ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        what = "not supported" if role == "function" else "unknown"
        raise InvalidInput(f"{where}.role: {role!r:.40} is {what}; there are {', '.join(_ROLES)}")
    return known


def _texts(message: Mapping[str, Any], where: str) -> dict[str, str]:
    given = (name for name in _TEXTS if message.get(name) is not None)
    return {name: text_at(message, name, where) for name in given}


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidInput(f"{where}: a list of calls is expected")
    return [_call(each, f"{where}[{index}]") for index, each in enumerate(calls)]


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type", "function") != "function":
        raise InvalidInput(f"{where}: an object with an id, type = function and a function")
    call_id, name = text_at(call, "id", where), text_at(function, "name", f"{where}.function")
    arguments = call_arguments(function.get("arguments"), f"{where}.function.arguments")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def call_arguments(given: Any, where: str) -> Any:
    """The arguments of an earlier call as an object, which templates expect."""
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given or "{}")
        except (msgspec.DecodeError, RecursionError):
            raise InvalidInput(f"{where}: is not valid JSON") from None
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{where}: a JSON object is expected, as a text")
    return given


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidInput(f"{where}: a text, a list of parts, or null is expected")
    check_count(content, where)
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise InvalidInput(f"{where}: an object with a type is expected")
    if part.get("type") != "text":
        raise InvalidInput(f"{where}.type: {part.get('type')!r:.40} is not supported; only text is")
    for name, value in part.items():
        if name not in ("type", "text") and not is_neutral(name, value, PART):
            raise InvalidInput(f"{where}.{name}: there is no such field")
    return text_at(part, "text", where)
