"""The explanation of one request: `Headway-Explain: 1` is answered with `Headway-Batch`, on gRPC
with metadata of the same name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.items import Batch
from headway.runtime.batching.batcher import Batcher
from headway.runtime.batching.explaining import Explanation
from headway.runtime.events import ItemTimes

HEADER = "Headway-Batch"
_YES = frozenset(["1", "true", "yes", "on"])


def is_asked_for(value: str) -> bool:
    """Does this value of `Headway-Explain` mean yes?"""
    return value.strip().lower() in _YES


@dataclass(frozen=True, slots=True)
class GenerationTimes:
    """How the time of one generated answer was spent."""

    queued_s: float
    first_token_s: float
    took_s: float
    prefill_chunks: int
    cached_tokens: int
    awaited_tokens: int
    preemptions: int
    steps: int
    batches: tuple[int, ...]  # for each step: how many answers got a token

    def as_json(self) -> dict[str, Any]:
        return {
            "queued_ms": round(self.queued_s * 1e3, 3),
            "first_token_ms": round(self.first_token_s * 1e3, 3),
            "took_ms": round(self.took_s * 1e3, 3),
            "prefill_chunks": self.prefill_chunks,
            "cached_tokens": self.cached_tokens,
            "awaited_tokens": self.awaited_tokens,
            "preempted": self.preemptions,
            "steps": self.steps,
            "batches": list(self.batches),
        }

    def text(self) -> str:
        """A dictionary of RFC 8941, as in `Headway-Batch` of other models."""
        mean = sum(self.batches) / len(self.batches) if self.batches else 0.0
        return (
            f"steps={self.steps}, queued={self.queued_s * 1e3:.3f}, "
            f"first_token={self.first_token_s * 1e3:.3f}, ran={self.took_s * 1e3:.3f}, "
            f"prefill_chunks={self.prefill_chunks}, cached_tokens={self.cached_tokens}, "
            f"awaited_tokens={self.awaited_tokens}, preempted={self.preemptions}, size={mean:.2f}"
        )


class Story:
    """The batches of one request: one, or several for a request of many rows."""

    __slots__ = ("_batches", "_met")

    def __init__(self) -> None:
        self._batches: dict[int, tuple[Batch, ItemTimes]] = {}  # by the batch's id
        self._met: list[GenerationTimes] = []

    def add(self, explanation: Explanation) -> None:
        for batch, times in zip(explanation.batches, explanation.times, strict=True):
            self._batches[batch.id] = (batch, times)

    async def submit(
        self, batcher: Batcher[Any, Any], value: Any, options: Mapping[str, Any]
    ) -> Any:
        """The batcher's answer; its batch is noted here."""
        explained = await batcher.explain(value, **options)
        self.add(explained.explanation)
        return explained.result

    async def many(
        self, batcher: Batcher[Any, Any], values: Sequence[Any], options: Mapping[str, Any]
    ) -> list[Any]:
        many = await batcher.explain_many(values, **options)
        for explained in many:
            self.add(explained.explanation)
        return [explained.result for explained in many]

    def tell(self, met: Iterable[GenerationTimes]) -> None:
        """Note the times of generated answers."""
        self._met = list(met)

    def answers(self) -> list[dict[str, Any]]:
        """The times of each generated answer, for the end of a stream."""
        return [{"index": index, **met.as_json()} for index, met in enumerate(self._met)]

    def text(self) -> str:
        """The batch that finished last, or the answer that took longest: the caller waited for it.

        A dictionary of RFC 8941; times are in milliseconds. Empty where nothing has run.
        """
        if not self._batches:
            slowest = max(self._met, key=lambda each: each.took_s, default=None)
            return "" if slowest is None else slowest.text()
        batch, times = max(self._batches.values(), key=_finished_at)
        parts = [
            f"size={batch.rows}",
            f"reason={batch.reason}",
            f"queued={times.queued_s * 1e3:.3f}",
            f"lingered={times.lingered_s * 1e3:.3f}",
            f"ran={times.ran_s * 1e3:.3f}",
            f"padding={batch.padding:.3f}",
        ]
        if len(self._batches) > 1:
            parts.append(f"batches={len(self._batches)}")
        return ", ".join(parts)

    def headers(self) -> tuple[tuple[str, str], ...]:
        text = self.text()
        return ((HEADER, text),) if text else ()


def _finished_at(ran: tuple[Batch, ItemTimes]) -> float:
    batch, times = ran
    return batch.fired_at + times.ran_s
