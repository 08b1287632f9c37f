"""The tools of a chat, as OpenAI's route takes them: which there are, and which may be called."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from headway.errors import InvalidInput
from headway.models.chat.chats import ChatTool, ToolUse
from headway.server.bodies.neutral import check_names

MOST_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def tool_use(
    tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None, parallel: bool | None
) -> ToolUse | None:
    """None: nothing may be called, and the model sees no tools. Raises InvalidInput."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidInput("tool_choice: there are no tools to choose")
        return None
    known = _known(tools)
    if choice == "none":
        return None
    if isinstance(choice, Mapping):
        return _chosen(choice, known, is_parallel=parallel is not False)
    if choice not in (None, "auto", "required"):
        raise InvalidInput(
            f"tool_choice: {choice!r:.40} is not one of none, auto, required, or a function"
        )
    shown = tuple(known.values())
    mode: Literal["auto", "required"] = "required" if choice == "required" else "auto"
    return ToolUse(shown, shown, mode, is_parallel=parallel is not False)


def _known(tools: list[dict[str, Any]]) -> dict[str, ChatTool]:
    """The tools by their names."""
    if len(tools) > MOST_TOOLS:
        raise InvalidInput(f"tools: {len(tools)} tools; at most {MOST_TOOLS} are allowed")
    known: dict[str, ChatTool] = {}
    for index, each in enumerate(tools):
        tool = _tool(each, f"tools[{index}]")
        if tool.name in known:
            raise InvalidInput(f"tools[{index}].function.name: {tool.name!r} is there twice")
        known[tool.name] = tool
    return known


def _chosen(
    choice: Mapping[str, Any], known: Mapping[str, ChatTool], *, is_parallel: bool
) -> ToolUse:
    shown = tuple(known.values())
    kind = choice.get("type")
    if kind == "function":
        one = _named(choice, known, "tool_choice")
        return ToolUse(shown, (one,), "required", is_parallel=False)
    if kind != "allowed_tools":
        raise InvalidInput(f"tool_choice.type: {kind!r:.40} is not supported; function is")
    where = "tool_choice.allowed_tools"
    allowed = choice.get("allowed_tools")
    if not isinstance(allowed, Mapping) or not isinstance(allowed.get("tools"), list):
        raise InvalidInput(f"{where}: an object with mode and tools is expected")
    mode = allowed.get("mode")
    if mode not in ("auto", "required"):
        raise InvalidInput(f"{where}.mode: {mode!r:.40} is not one of auto, required")
    named = [
        _named(each, known, f"{where}.tools[{index}]")
        for index, each in enumerate(allowed["tools"])
    ]
    if not named:
        raise InvalidInput(f"{where}.tools: at least one is expected")
    callable_ = tuple(dict.fromkeys(each.name for each in named))
    return ToolUse(shown, tuple(known[name] for name in callable_), mode, is_parallel=is_parallel)


def _named(choice: Any, known: Mapping[str, ChatTool], where: str) -> ChatTool:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidInput(f"{where}.function.name: the name of a tool is expected")
    if name not in known:
        raise InvalidInput(f"{where}.function.name: there is no tool {name!r:.80}")
    return known[name]


def _tool(given: Mapping[str, Any], where: str) -> ChatTool:
    kind = given.get("type")
    if kind != "function":
        raise InvalidInput(f"{where}.type: {kind!r:.40} is not supported; function is")
    check_names(given, ("type", "function"), where)
    function = given.get("function")
    where = f"{where}.function"
    if not isinstance(function, Mapping):
        raise InvalidInput(f"{where}: an object with a name is expected")
    check_names(function, ("name", "description", "parameters", "strict"), where)
    # Arguments always meet their schema, strict or not.
    if not isinstance(function.get("strict"), bool | None):
        raise InvalidInput(f"{where}.strict: must be true or false")
    return checked_tool(
        function.get("name"), function.get("description"), function.get("parameters"), where
    )


def checked_tool(name: Any, description: Any, parameters: Any, where: str) -> ChatTool:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(f"{where}.name: a name of letters, digits and _ . : / - is expected")
    if not isinstance(description, str | None):
        raise InvalidInput(f"{where}.description: a text is expected")
    if parameters is None:
        parameters = _NO_ARGUMENTS
    if not isinstance(parameters, Mapping):
        raise InvalidInput(f"{where}.parameters: a JSON schema is an object")
    return ChatTool(name, description or "", parameters, f"{where}.parameters")
