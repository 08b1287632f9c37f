"""A chat as every dialect asks it, and the parts that its answer is made of. Knows no route.

A route reads its dialect's request into a `ChatPrompt` and has it prepared: `Language.prepare`
gives tokens, a grammar and, where the answer may hold more than text, an `AnswerReading`. The
route makes one `reading.reader()` for each choice, hands it the text of every piece (`read`), at
the end `finish`, and writes the parts that come back in its own dialect:

    ReasoningPart*  (TextPart | CallBegin CallArguments*)*

and the answer ends by `calls` where its reader `has_called`. Without one all text is text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

Message: TypeAlias = Mapping[str, Any]


class ChatTool(NamedTuple):
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # the schema of its arguments: an object
    field: str  # of the request, that described the parameters

    def as_json(self) -> dict[str, Any]:
        """As templates expect it."""
        described = {"description": self.description} if self.description else {}
        function = {"name": self.name, **described, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, and how they may be called."""

    tools: tuple[ChatTool, ...]  # that the template shows
    callable: tuple[ChatTool, ...]  # those of them that may be called
    mode: Literal["auto", "required"] = "auto"
    is_parallel: bool = True  # several calls in one answer


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A request. A message has a role (system, user, assistant or tool), a content, and perhaps
    `name`, `reasoning_content`, `tool_calls` (each with an id, and a function with a name and
    arguments as an object) or `tool_call_id`."""

    messages: Sequence[Message]
    tools: ToolUse | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)  # others that the template reads
    add_generation_prompt: bool = True


class TextPart(NamedTuple):
    text: str


class ReasoningPart(NamedTuple):
    """What the model thinks before it answers."""

    text: str


class CallBegin(NamedTuple):
    call: int  # its number in the answer
    id: str
    name: str


class CallArguments(NamedTuple):
    """More of a call's arguments: together they are a JSON object that meets the tool's schema,
    unless the answer was cut off."""

    call: int
    text: str


AnswerPart: TypeAlias = TextPart | ReasoningPart | CallBegin | CallArguments
