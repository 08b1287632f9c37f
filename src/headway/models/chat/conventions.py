"""How models write calls and thoughts: found in what a model's template makes of a call, and in
its vocabulary.

A call is written as its model was trained to write it. The grammar and the reader are made of the
same parts, so that what the grammar lets through the reader understands.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.models.chat.chats import ChatTool

_SENTINEL = 0xDC00  # half of a surrogate pair: no caller can send it as text


class Marker(NamedTuple):
    """A word that a model writes to begin or end a part of its answer."""

    text: str
    id: int | None = None  # of its token, if there is one
    is_special: bool = False  # only the token counts; the same letters are text

    @property
    def shown(self) -> str:
        """What the text of an answer has in its place."""
        assert self.id is not None or not self.is_special
        return chr(_SENTINEL + (self.id or 0) % 0x400) if self.is_special else self.text


@dataclass(frozen=True, slots=True)
class Convention:
    """The form of calls: `opens begin call (between call)* end`, where a call is
    `head NAME middle ARGUMENTS tail`."""

    name: str
    opens: Marker | None  # None: an answer that begins with `{` is a call
    begin: str
    head: str
    middle: Marker
    tail: str
    end: str
    closes: Marker | None = None
    between: str = ""  # empty: each call is opened anew
    takes_many: bool = True  # calls in one answer
    id_length: int = 24

    @property
    def markers(self) -> list[Marker]:
        return [each for each in (self.opens, self.middle, self.closes) if each is not None]


class Thinking(NamedTuple):
    """The words around a model's thoughts."""

    opens: Marker
    closes: Marker


_JSON_ARGUMENTS = Marker('", "arguments": ')
HERMES = Convention(
    *("hermes", Marker("<tool_call>"), "\n", '{"name": "', _JSON_ARGUMENTS, "}", "\n"),
    closes=Marker("</tool_call>"),
)
LLAMA = Convention(
    *("llama", None, "", '{"name": "', Marker('", "parameters": '), "}", ""),
    takes_many=False,  # its template takes no more in a message
)
MISTRAL = Convention(
    *("mistral", Marker("[TOOL_CALLS]"), "[", '{"name": "', _JSON_ARGUMENTS, "}", "]"),
    between=", ",
    id_length=9,
)
MISTRAL_ARGS = Convention(
    *("mistral-args", Marker("[TOOL_CALLS]"), "", "", Marker("[ARGS]"), "", ""), id_length=9
)
# Where the template shows no tools: they are put into the messages (`tool_messages`).
GENERIC = dataclasses.replace(HERMES, name="generic")
_THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<reasoning>", "</reasoning>"),
)
FindToken = Callable[[str], Marker]

_FUNCTION: dict[str, Any] = {"name": "weather", "arguments": {"city": "Oslo"}}
_CALL = {"id": "abcdefghi", "type": "function", "function": _FUNCTION}
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
EXAMPLE_TOOL = ChatTool("weather", "The weather in a city", _SCHEMA, "tools")
EXAMPLE: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": "Sun", "tool_call_id": _CALL["id"]},
    {"role": "user", "content": "Hello"},
)


def find_convention(shown: str, find: FindToken) -> Convention:
    """The convention of a template. `shown`: what it makes of the messages of EXAMPLE."""
    text = "".join(shown.split())
    known = (HERMES, LLAMA, MISTRAL, MISTRAL_ARGS)
    found = next((each for each in known if _beginning(each) in text), GENERIC)
    return dataclasses.replace(
        found,
        opens=found.opens and find(found.opens.text),
        middle=find(found.middle.text),
        closes=found.closes and find(found.closes.text),
    )


def _beginning(convention: Convention) -> str:
    """The example's call up to its arguments, without spaces: templates differ in those. Some of
    Mistral's have the call's id between."""
    begun = "" if convention.opens is None else convention.opens.text
    begun += f"{convention.begin}{convention.head}{_FUNCTION['name']}"
    if convention is not MISTRAL_ARGS:
        begun += convention.middle.text + json.dumps(_FUNCTION["arguments"])
    return "".join(begun.split())


def find_thinking(source: str, find: FindToken) -> Thinking | None:
    for opens, closes in _THOUGHTS:
        if closes in source:
            return Thinking(find(opens), find(closes))
    return None


def finder(added: Mapping[int, Any]) -> FindToken:
    """Finds markers among a tokenizer's added tokens."""
    tokens = {each.content: Marker(each.content, id_, each.special) for id_, each in added.items()}
    return lambda text: tokens.get(text, Marker(text))
