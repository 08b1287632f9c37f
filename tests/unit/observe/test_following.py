"""Which requests a batch's events are told with."""

import gc
from collections.abc import Callable
from typing import Any

from headway.core.items import Batch, FireReason, Item
from headway.events import BatchFinished, BatchLost, BatchStarted
from headway.observe.following import Following


class Request:
    """As an access log or a trace has one: held by whoever serves it."""


class Batcher:
    def follow(self, follower: Callable[[tuple[int, ...]], None]) -> None:
        self.queued = follower

    def observe(self, observer: Callable[[Any], None]) -> None:
        self.happens = observer


def batch(number: int) -> Batch:
    return Batch(
        id=number,
        items=(Item(7, 0.0),),
        rows=1,
        size=1,
        padded_rows=1,
        reason=FireReason.IDLE,
        fired_at=1.0,
        idle_since=0.0,
        batch_cap=64,
        linger_cap_s=0.002,
        predicted_s=None,
    )


def test_who_has_read_all_of_a_stream_belongs_to_its_batch_all_the_same() -> None:
    told: list[Any] = []
    serving = [Request()]
    batcher = Batcher()
    Following(
        lambda: serving[0],
        lambda event, requests, about: told.append((event.batch.id, len(requests), about)),
        lambda event, requests: f"batch {event.batch.id}",
    ).follow(batcher)
    batcher.queued((7,))
    batcher.happens(BatchStarted("m", batch(1)))
    batcher.happens(BatchLost("m", batch(1), 2.0, "killed", out_of_memory=False, failed=0))
    batcher.happens(BatchStarted("m", batch(2)))
    serving.clear()
    gc.collect()
    batcher.happens(BatchFinished("m", batch(2), 3.0, 1.0, 0, 0))
    assert told == [(2, 1, "batch 2")]
