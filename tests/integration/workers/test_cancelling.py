"""A model that takes a token learns that nobody waits any more, wherever it runs."""

import asyncio
from typing import Any

import pytest
from test_process_worker import run
from worker_models import Patient

import headway
from headway.events import BatchStarted, Event

WORKERS = pytest.mark.parametrize("worker", ["thread", "process"])


class Started:
    """An observer: has a batch left?"""

    def __init__(self) -> None:
        self.batch = asyncio.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, BatchStarted):
            self.batch.set()


@WORKERS
def test_when_the_last_caller_leaves_the_model_is_told(worker: Any) -> None:
    async def main() -> None:
        started = Started()
        async with headway.Batcher(Patient, worker=worker, observers=[started]) as batcher:
            one, two = (asyncio.create_task(batcher.submit(name)) for name in ("one", "two"))
            await started.batch.wait()
            one.cancel()
            two.cancel()
            await asyncio.wait([one, two])
            assert await batcher.submit("how often") == 1

    run(main())


@WORKERS
def test_when_the_deadline_passes_the_model_is_told(worker: Any) -> None:
    async def main() -> None:
        async with headway.Batcher(Patient, worker=worker) as batcher:
            await asyncio.gather(batcher.submit("one", deadline_ms=300), return_exceptions=True)
            assert await batcher.submit("how often") == 1

    run(main())


@WORKERS
def test_a_stream_that_is_left_is_told_between_two_steps(worker: Any) -> None:
    async def main() -> None:
        async with headway.Batcher(Patient, worker=worker) as batcher:
            stream = batcher.stream("one")
            assert await anext(stream) == "begun"
            await stream.aclose()  # type: ignore[attr-defined]
            assert await batcher.submit("how often") == 1

    run(main())


async def test_a_function_may_take_one_too() -> None:
    def wants_to_know(items: list[int], cancel: headway.Cancel) -> list[bool]:
        return [cancel.is_set for _ in items]

    async with headway.Batcher(wants_to_know) as batcher:
        assert await batcher.submit(1) is False
