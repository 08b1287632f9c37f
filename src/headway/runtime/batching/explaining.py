"""The explanation of one answer: its batch, why that left, where the time went."""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from headway.core.items import Batch
from headway.runtime.batching.fan_out import LongCall
from headway.runtime.driving.calls import Call
from headway.runtime.events import ItemTimes

Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Several batches if a value of many rows was cut, in the order in which they finished."""

    batches: tuple[Batch, ...]
    times: tuple[ItemTimes, ...]  # of this value, in each of the batches


class Explained(NamedTuple, Generic[Out]):
    """What `Batcher.explain` returns."""

    result: Out
    explanation: Explanation


def explanation_of(call: Call | LongCall) -> Explanation:
    own = set(call.item_ids)
    times = []
    for batch, ran_s in call.ran:
        item = next(item for item in batch.items if item.id in own)
        own.discard(item.id)  # two parts may have shared a batch
        times.append(ItemTimes(item.id, batch.queued_s(item), batch.lingered_s(item), ran_s))
    return Explanation(tuple(batch for batch, _ in call.ran), tuple(times))
