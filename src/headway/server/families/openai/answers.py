"""The answers of OpenAI's routes for language models, as types, and the tokens in them."""

import time
import uuid
from typing import Any, Literal, NotRequired, TypedDict

from headway.hosting.explaining import GenerationTimes
from headway.hosting.generation.pieces import AnswerPiece
from headway.server.families.openai.logprobs import ChatLogprobs, CompletionLogprobs, PromptScores


class CachedTokens(TypedDict):
    cached_tokens: int


class ThinkingTokens(TypedDict):
    reasoning_tokens: int


class TokenUsage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: NotRequired[ThinkingTokens]  # of a model that thinks


class CalledFunction(TypedDict):
    name: str
    arguments: str  # a JSON object


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None  # None: there are calls, and no text
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatHead(TypedDict):
    """The fields that a whole answer and each of its events begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None


class ChatCompletion(ChatHead):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: NotRequired[TokenUsage]  # of a language model
    prompt_logprobs: NotRequired[PromptScores]


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
    prompt_logprobs: NotRequired[PromptScores]


class CompletionHead(TypedDict):
    """The fields that a whole answer and each of its events begin with."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None


class Completion(CompletionHead):
    choices: list[CompletionChoice]
    usage: TokenUsage


class UsageCount:
    """The tokens of a request, counted while its pieces are written."""

    def __init__(self, prompts: int, prompt_tokens: int, n: int) -> None:
        """`prompt_tokens`: of all prompts together, which have `n` answers each."""
        self._prompt_tokens = prompt_tokens
        self._n = n
        self._cached = dict.fromkeys(range(prompts), 0)
        self.completion_tokens = 0
        self._counted: dict[int, int] = {}  # by choice: its tokens so far
        self.thinking: dict[int, int] = {}  # by choice: its tokens before the answer, if it thinks
        self.met: dict[int, GenerationTimes] = {}

    def add(self, piece: AnswerPiece) -> None:
        finished = piece.finished
        if finished is None:
            return
        self.completion_tokens += finished.tokens
        prompt = piece.choice // self._n
        if piece.choice % self._n == 0:  # the others share the prompt that it has computed
            self._cached[prompt] = finished.cached_tokens
        if piece.met is not None:
            self.met[piece.choice] = piece.met

    def count(self, piece: AnswerPiece) -> None:
        """Count a piece, before it is written: `so_far` needs it."""
        if piece.cached and piece.choice % self._n == 0:
            self._cached[piece.choice // self._n] = piece.cached
        counted = self._counted.get(piece.choice, 0) + (piece.token is not None)
        self._counted[piece.choice] = counted if piece.finished is None else piece.finished.tokens

    def so_far(self) -> TokenUsage:
        return self._with(sum(self._counted.values()))

    def as_json(self) -> TokenUsage:
        return self._with(self.completion_tokens)

    def _with(self, completion_tokens: int) -> TokenUsage:
        usage: TokenUsage = {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self._prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }
        if self.thinking:
            thinking = sum(self.thinking.values())
            usage["completion_tokens_details"] = {"reasoning_tokens": thinking}
        return usage

    def headway(self) -> list[dict[str, Any]]:
        """The batches and times of each answer, if the caller asked for them."""
        return [{"index": index, **met.as_json()} for index, met in sorted(self.met.items())]
