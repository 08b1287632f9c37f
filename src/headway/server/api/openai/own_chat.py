"""`/v1/chat/completions` for a model of yours: a `headway.Model` whose input has `messages`.

Its texts are the answer, whole or as they come. Fields of the request that its input has, too
(`temperature`, `max_tokens`), are handed on; one that it has not is refused, not ignored.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, cast

import msgspec

from headway.errors import InvalidInput, ModelFailed
from headway.hosting.registry import Ask, ServedModel
from headway.server.api.events import Events
from headway.server.api.openai.answers import (
    ChatChoice,
    ChatMessage,
    chat_completion,
    chat_head,
)
from headway.server.api.openai.events import DONE, error_event, event_of
from headway.server.api.v2.generating import single, whole
from headway.server.json.encoding import encode_json
from headway.server.net.messages import Answer, Response, StreamResponse
from headway.server.net.plain_json import plain_of
from headway.signature.values import field_hints

_HEADERS = (("Cache-Control", "no-cache"),)
# Ours to obey, or without effect.
_NOT_THE_MODELS = frozenset(
    [
        *("model", "messages", "stream", "stream_options", "n"),
        *("user", "metadata", "store", "service_tier"),
    ]
)
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
        parts = _parts(served, value, ask, {**head, "object": "chat.completion.chunk"})
        events = Events(parts, bytes, error_event)
        await events.start()
        return StreamResponse(events, headers=_HEADERS)
    result = await (whole if served.only_streams else _predicted)(served, value, ask)
    message: ChatMessage = {"role": "assistant", "content": _text(result), "refusal": None}
    choice: ChatChoice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "stop",
    }
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
        taken = name if name in known else _NEWER_NAMES.get(name, name)
        if taken not in known:
            raise InvalidInput(f"{name}: this model does not take it; leave it out")
        value[taken] = given
    return value


async def _parts(
    served: ServedModel, value: Any, ask: Ask, head: Mapping[str, Any]
) -> AsyncIterator[bytes]:
    stream = served.stream(value, ask) if served.streams else single(served, value, ask)

    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return event_of({**head, "choices": [choice]})

    is_first = True
    async with aclosing(cast(Any, stream)):
        async for text in stream:
            if is_first:
                is_first = False
                yield chunk({"role": "assistant", "content": _text(text)})
            else:
                yield chunk({"content": _text(text)})
    yield chunk({}, "stop") + DONE


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ModelFailed(f"a chat model gives texts, not {type(value).__name__}")
    return value
