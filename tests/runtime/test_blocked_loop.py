"""A model that blocks the event loop is named; one that waits is not."""

import asyncio
import itertools
import threading

import pytest

import headway
from headway.runtime.calling.blocked_loop import BlockedLoopWatch


class Blocking(headway.Model[int, int]):
    async def predict(self, items: list[int]) -> list[int]:
        threading.Event().wait(0.15)
        return items


class Waiting(headway.Model[int, int]):
    async def predict(self, items: list[int]) -> list[int]:
        await asyncio.sleep(10)
        return items


@pytest.mark.real_time
async def test_a_model_that_blocks_the_event_loop_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with headway.Batcher(Blocking()) as batcher:
        for item in (1, 2):
            assert await batcher.submit(item) == item
    (said,) = [each for each in caplog.messages if "held the event loop" in each]
    assert said.startswith("Blocking held")
    assert "Write `def`" in said


async def test_a_model_that_waits_holds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ticks = itertools.count()
    watch = BlockedLoopWatch("waiting", lambda: next(ticks) * 0.01)
    assert await watch.watched(Waiting().predict([1])) == [1]
    assert not caplog.messages


async def test_a_cancellation_and_an_error_reach_the_model() -> None:
    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def fails() -> None:
        await asyncio.sleep(1)
        raise ValueError("no")

    async def watched(work: object) -> None:
        await BlockedLoopWatch("m").watched(work)  # type: ignore[arg-type]

    task = asyncio.create_task(watched(waits()))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
    with pytest.raises(ValueError, match="no"):
        await watched(fails())
