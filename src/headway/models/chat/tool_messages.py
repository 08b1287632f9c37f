"""Tools, calls and their results as plain messages, for a template that knows none of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headway.errors import InvalidInput
from headway.models.chat.chats import ChatTool, Message

_PROMPT = """You can call these functions. Each line describes one as JSON:
<tools>
{tools}
</tools>
To call a function, write its name and its arguments as JSON between <tool_call> and </tool_call>:
<tool_call>
{{"name": "a function's name", "arguments": {{"an argument": "its value"}}}}
</tool_call>
What a function returned comes between <tool_response> and </tool_response>."""


def as_plain(messages: Sequence[Message], tools: Sequence[ChatTool]) -> list[dict[str, Any]]:
    """Messages of which each has a role that every template knows, and a text."""
    made: list[dict[str, Any]] = []
    was_result = False
    for message in messages:
        if not isinstance(message, Mapping):
            raise InvalidInput("messages: each is an object with a role and a content")
        is_result = message.get("role") == "tool"
        plain = _result(message) if is_result else _with_calls(message)
        if is_result and was_result:  # templates want user and assistant in turn
            made[-1]["content"] += "\n" + plain["content"]
        else:
            made.append(plain)
        was_result = is_result
    return _with_prompt(made, tools) if tools else made


def _result(message: Message) -> dict[str, Any]:
    text = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
    return {"role": "user", "content": text}


def _with_calls(message: Message) -> dict[str, Any]:
    calls = message.get("tool_calls") or ()
    if not calls:
        return dict(message)
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    texts = [str(message.get("content") or ""), *(_call(each) for each in calls)]
    return {**plain, "content": "\n".join(filter(None, texts))}


def _call(call: Mapping[str, Any]) -> str:
    try:
        function = call["function"]
        written = {"name": function["name"], "arguments": function["arguments"]}
    except (KeyError, TypeError):
        raise InvalidInput("messages: a call has a function with a name and arguments") from None
    return f"<tool_call>\n{json.dumps(written, ensure_ascii=False)}\n</tool_call>"


def _with_prompt(messages: list[dict[str, Any]], tools: Sequence[ChatTool]) -> list[dict[str, Any]]:
    lines = "\n".join(json.dumps(each.as_json(), ensure_ascii=False) for each in tools)
    prompt = _PROMPT.format(tools=lines)
    if messages and messages[0].get("role") == "system":
        first = {**messages[0], "content": f"{messages[0].get('content') or ''}\n\n{prompt}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": prompt}, *messages]
