"""How many tokens a request took, counted while its pieces are written."""

from typing import Any, TypedDict

from headway.hosting.explaining import GenerationTimes
from headway.hosting.generation.pieces import AnswerPiece


class CachedTokens(TypedDict):
    cached_tokens: int


class TokenUsage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Usage:
    def __init__(self, prompts: int, prompt_tokens: int, n: int) -> None:
        """`prompts` have so many tokens together, and `n` answers each."""
        self._prompt_tokens = prompt_tokens
        self._n = n
        self._cached = dict.fromkeys(range(prompts), 0)
        self.completion_tokens = 0
        self._counted: dict[int, int] = {}  # by choice: its tokens so far
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
        """For `so_far`: of every piece, before it is written."""
        counted = self._counted.get(piece.choice, 0) + (piece.token is not None)
        self._counted[piece.choice] = counted if piece.finished is None else piece.finished.tokens

    def so_far(self) -> TokenUsage:
        return self._with(sum(self._counted.values()))

    def as_json(self) -> TokenUsage:
        return self._with(self.completion_tokens)

    def _with(self, completion_tokens: int) -> TokenUsage:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self._prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }

    def headway(self) -> list[dict[str, Any]]:
        """What each answer met on its way, where the caller asked for it."""
        return [{"index": index, **met.as_json()} for index, met in sorted(self.met.items())]
