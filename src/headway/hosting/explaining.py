"""What became of one request, for a caller who asked: `Headway-Explain: 1` is answered with
`Headway-Batch`, on gRPC with metadata of the same name."""

from collections.abc import Iterable
from typing import Any

from headway.core.items import Batch
from headway.hosting.generation.pieces import Met
from headway.runtime.batching.batcher import Batcher
from headway.runtime.batching.explaining import Explanation
from headway.runtime.events import ItemTimes

HEADER = "Headway-Batch"
_YES = frozenset(["1", "true", "yes", "on"])


def is_asked_for(value: str) -> bool:
    """Does this value of `Headway-Explain` mean yes?"""
    return value.strip().lower() in _YES


class Story:
    """The batches that one request was in: one, or several where it was of many rows."""

    __slots__ = ("_batches", "_met")

    def __init__(self) -> None:
        self._batches: dict[int, tuple[Batch, ItemTimes]] = {}  # by the batch's id
        self._met: list[Met] = []

    def add(self, explanation: Explanation) -> None:
        for batch, times in zip(explanation.batches, explanation.times, strict=True):
            self._batches[batch.id] = (batch, times)

    def tell(self, met: Iterable[Met]) -> None:
        """What generated answers met."""
        self._met = list(met)

    def answers(self) -> list[dict[str, Any]]:
        """What each generated answer met, for the end of a stream."""
        return [{"index": index, **met.as_json()} for index, met in enumerate(self._met)]

    def text(self) -> str:
        """Of the batch that was finished last, or the answer that took longest: it was waited for.

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


class Told:
    """A batcher that tells a story while it answers."""

    __slots__ = ("_batcher", "_story")

    def __init__(self, batcher: Batcher[Any, Any], story: Story) -> None:
        self._batcher = batcher
        self._story = story

    async def submit(self, value: Any, **options: Any) -> Any:
        explained = await self._batcher.explain(value, **options)
        self._story.add(explained.explanation)
        return explained.result

    async def many(self, values: Any, **options: Any) -> list[Any]:
        found = await self._batcher.explain_many(values, **options)
        for explained in found:
            self._story.add(explained.explanation)
        return [explained.result for explained in found]
