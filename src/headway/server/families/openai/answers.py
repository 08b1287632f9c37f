"""What OpenAI's routes for language models answer, as types: `/openapi.json` describes them."""

import time
import uuid
from typing import Literal, NotRequired, TypedDict

from headway.server.families.openai.logprobs import ChatLogprobs, CompletionLogprobs
from headway.server.families.openai.usage import TokenUsage


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatHead(TypedDict):
    """What every event has, too."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None


class ChatCompletion(ChatHead):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: NotRequired[TokenUsage]  # of a language model


def chat_head(model: str) -> ChatHead:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": None,
    }


def chat_completion(
    head: ChatHead, choices: list[ChatChoice], usage: TokenUsage | None
) -> ChatCompletion:
    answer: ChatCompletion = {
        "id": head["id"],
        "object": "chat.completion",
        "created": head["created"],
        "model": head["model"],
        "system_fingerprint": head["system_fingerprint"],
        "choices": choices,
    }
    if usage is not None:
        answer["usage"] = usage
    return answer


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class CompletionHead(TypedDict):
    """What every event has, too."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None


class Completion(CompletionHead):
    choices: list[CompletionChoice]
    usage: TokenUsage
