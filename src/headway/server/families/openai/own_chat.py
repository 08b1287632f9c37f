"""`/v1/chat/completions` for a model of yours: a `headway.Model` whose input has `messages`.

Its texts are the answer, whole or as they come. Fields of the request that its input has, too
(`temperature`, `max_tokens`), are handed on; one that it has not is refused, not ignored.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from headway.errors import InvalidInput, ModelFailed
from headway.hosting.registry import Ask, ServedModel
from headway.server.bodies.encoding import encode_json
from headway.server.bodies.neutral import Neutral, is_neutral
from headway.server.families.openai.answers import (
    ChatChoice,
    ChatMessage,
    chat_completion,
    chat_head,
)
from headway.server.families.openai.writer import DONE, error_event, event_of
from headway.server.families.v2.text_generation import single, whole
from headway.server.service.event_stream import Events
from headway.signature.foreign import plain_of
from headway.signature.values import field_hints
from headway.wire.messages import EVENT_HEADERS, Answer, Response, StreamResponse

_NOT_THE_MODELS = frozenset(["model", "messages", "stream", "stream_options", "n"])  # ours to obey
# What clients send out of habit, and what asks for nothing.
_HABITS: Neutral = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (False, True),
    "chat_template_kwargs": ({},),
}
_NEWER_NAMES = {"max_completion_tokens": "max_tokens"}


def is_own_chat(served: ServedModel) -> bool:
    signature = served.signature
    return signature is not None and "messages" in field_hints(signature.input.hint)


async def answer_own_chat(asked: Any, served: ServedModel, ask: Ask) -> Answer:
    """`asked`: a ChatRequest."""
    asked.check_stream()
    if asked.n != 1:
        raise InvalidInput("n: this model gives one answer")
    value = _value_of(asked, served)
    head = chat_head(served.name)
    if asked.stream:
        writer = _EventWriter({**head, "object": "chat.completion.chunk"})
        stream = served.stream(value, ask) if served.streams else single(served, value, ask)
        events = Events(stream, writer.event_of, error_event, writer.tail)
        await events.start()
        return StreamResponse(events, headers=EVENT_HEADERS)
    result = await (whole if served.only_streams else _predicted)(served, value, ask)
    message: ChatMessage = {"role": "assistant", "content": _text(result), "refusal": None}
    choice: ChatChoice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    body = await encode_json(chat_completion(head, [choice], None), plain_of)
    return Response(body, headers=ask.headers())


async def _predicted(served: ServedModel, value: Any, ask: Ask) -> Any:
    return await served.predict(value, ask)


def _value_of(asked: Any, served: ServedModel) -> dict[str, Any]:
    known = field_hints(cast(Any, served).signature.input.hint)
    defaults = {each.name: each.default for each in msgspec.structs.fields(asked)}
    value: dict[str, Any] = {"messages": asked.messages}
    for name in asked.__struct_fields__:
        given = getattr(asked, name)
        if name in _NOT_THE_MODELS or given == defaults[name]:
            continue
        if name not in known and is_neutral(name, given, _HABITS):
            continue
        taken = name if name in known else _NEWER_NAMES.get(name, name)
        if taken not in known:
            raise InvalidInput(f"{name}: this model does not take it; leave it out")
        value[taken] = given
    return value


class _EventWriter:
    """Writes the events of one answer."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self._head = head
        self._role = {"role": "assistant"}  # sent with the first

    def event_of(self, chunk: Any) -> bytes:
        value = self._value({**self._role, "content": _text(chunk)})
        self._role = {}
        return event_of(value)

    def tail(self) -> bytes:
        return event_of(self._value({}, "stop")) + DONE

    def _value(self, delta: Mapping[str, str], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._head, "choices": [choice]}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ModelFailed(f"a chat model gives texts, not {type(value).__name__}")
    return value
