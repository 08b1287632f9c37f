"""Requests to a language model, and the pieces of its answers."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.core.generation.options import GenerationOptions
from headway.core.generation.sequence import Finished
from headway.hosting.explaining import GenerationTimes
from headway.models.chat.answer_reader import AnswerReading


@dataclass(frozen=True, slots=True)
class Generation:
    """A request: `n` answers to each prompt, prompt by prompt."""

    prompts: tuple[tuple[int, ...], ...]
    options: GenerationOptions
    n: int = 1
    shows_empty: bool = False  # pieces of tokens that have no text yet
    reading: AnswerReading | None = None  # what answers hold beside text
    shows_end: bool = False  # the token that ends an answer, which has none

    @property
    def count(self) -> int:
        return len(self.prompts) * self.n


class AnswerPiece(NamedTuple):
    """A part of one answer: perhaps without text, where a character is not whole yet."""

    choice: int  # which answer
    text: str
    token: int | None  # None: this is held-back text, at the end
    logprobs: Any = None  # of the token, where asked for
    finish_reason: str | None = None  # of the last piece: stop or length
    finished: Finished | None = None
    met: GenerationTimes | None = None  # of the last piece, if the caller asked for it
    stopped_by: str | None = None  # of the last piece: the stop string that ended the answer
    cached: int = 0  # of its prompt: tokens that were in the cache
