"""What of an answer a caller sees, step by step, and what it met on its way."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.core.generation.sequence import Finished
from headway.core.generation.wishes import Wishes


@dataclass(frozen=True, slots=True)
class Generation:
    """What is asked for: `n` answers to each prompt, prompt by prompt."""

    prompts: tuple[tuple[int, ...], ...]
    wishes: Wishes
    n: int = 1
    shows_empty: bool = False  # pieces of tokens that have no text yet
    shows_end: bool = False  # the token that ends an answer, which has none

    @property
    def count(self) -> int:
        return len(self.prompts) * self.n


@dataclass(frozen=True, slots=True)
class Met:
    """Enough to explain one answer's time."""

    queued_s: float
    first_token_s: float
    took_s: float
    prefill_chunks: int
    cached_tokens: int
    preemptions: int
    steps: int
    batches: tuple[int, ...]  # of each step: how many answers got a token from it

    def as_json(self) -> dict[str, Any]:
        return {
            "queued_ms": round(self.queued_s * 1e3, 3),
            "first_token_ms": round(self.first_token_s * 1e3, 3),
            "took_ms": round(self.took_s * 1e3, 3),
            "prefill_chunks": self.prefill_chunks,
            "cached_tokens": self.cached_tokens,
            "preempted": self.preemptions,
            "steps": self.steps,
            "batches": list(self.batches),
        }

    def text(self) -> str:
        """A dictionary of RFC 8941, as `Headway-Batch` has it of other models."""
        mean = sum(self.batches) / len(self.batches) if self.batches else 0.0
        return (
            f"steps={self.steps}, queued={self.queued_s * 1e3:.3f}, "
            f"first_token={self.first_token_s * 1e3:.3f}, ran={self.took_s * 1e3:.3f}, "
            f"prefill_chunks={self.prefill_chunks}, cached_tokens={self.cached_tokens}, "
            f"preempted={self.preemptions}, size={mean:.2f}"
        )


class Piece(NamedTuple):
    """A part of one answer: perhaps without text, where a character is not whole yet."""

    choice: int  # which answer
    text: str
    token: int | None  # None: its text was held back, and comes with the end
    logprobs: Any = None  # of the token, where asked for
    finish_reason: str | None = None  # of the last piece: stop or length
    finished: Finished | None = None
    met: Met | None = None  # likewise, where the caller asked for it
