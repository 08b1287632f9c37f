"""A model that hangs: its callers are answered in time, on virtual time."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import headway
from headway.errors import NotReady
from headway.testing import FakeModel, now


async def test_the_callers_of_a_batch_over_its_time_are_answered() -> None:
    async with headway.Batcher(
        FakeModel(cost_s=10.0), max_batch_size=2, execute_timeout_ms=3000
    ) as batcher:
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(2)]
        await asyncio.wait(calls)
        assert now() == 3.0
        for call in calls:
            with pytest.raises(headway.ModelFailed, match="did not answer within 3 s"):
                call.result()


async def test_with_every_worker_stuck_nobody_is_left_to_wait() -> None:
    async with headway.Batcher(
        FakeModel(cost_s=10.0), max_batch_size=1, execute_timeout_ms=3000
    ) as batcher:
        first, second = (asyncio.create_task(batcher.submit(n)) for n in range(2))
        with pytest.raises(NotReady, match="more than 3 s"):
            await second
        assert now() == 3.0
        assert isinstance(first.exception(), headway.ModelFailed)
        assert not batcher.is_open
        assert "is stuck" in batcher.trouble
        with pytest.raises(NotReady):
            await batcher.submit(3)


async def test_a_stuck_batch_that_comes_back_heals_its_model() -> None:
    async def predict(items: list[float]) -> list[float]:
        await asyncio.sleep(items[0])
        return items

    async with headway.Batcher(predict, execute_timeout_ms=3000) as batcher:
        with pytest.raises(headway.ModelFailed):
            await batcher.submit(10.0)
        await asyncio.sleep(7.0)
        assert batcher.is_open
        assert batcher.trouble == ""
        assert await batcher.submit(1.0) == 1.0


async def test_one_stuck_worker_of_two_leaves_the_other_to_answer() -> None:
    async def predict(items: list[float]) -> list[float]:
        await asyncio.sleep(items[0])
        return items

    async with headway.Batcher(
        predict, workers=2, max_batch_size=1, execute_timeout_ms=3000
    ) as batcher:
        with pytest.raises(headway.ModelFailed):
            await batcher.submit(1000.0)
        assert batcher.is_open
        assert [await batcher.submit(0.5), await batcher.submit(0.25)] == [0.5, 0.25]
        with pytest.raises(headway.ModelFailed):
            await batcher.submit(1000.0)
        assert not batcher.is_open
        await batcher.close(drain_s=0)


async def test_a_batch_in_time_is_left_alone() -> None:
    async with headway.Batcher(FakeModel(cost_s=1.0), execute_timeout_ms=3000) as batcher:
        for n in range(10):  # several limits in all
            assert await batcher.submit(n) == 2 * n
        assert batcher.trouble == ""


async def test_of_a_stream_each_step_has_the_limit() -> None:
    class Slowly(headway.Model[float, float]):
        async def stream(self, items: list[float]) -> AsyncIterator[list[float]]:  # type: ignore[override]
            for seconds in (2.0, 2.0, 2.0, items[0]):
                await asyncio.sleep(seconds)
                yield [seconds]

    async with headway.Batcher(Slowly(), execute_timeout_ms=3000) as batcher:
        assert [chunk async for chunk in batcher.stream(1.0)] == [2.0, 2.0, 2.0, 1.0]
        with pytest.raises(headway.ModelFailed):
            assert [chunk async for chunk in batcher.stream(1000.0)] == []
        assert now() == 7.0 + 6.0 + 3.0
        await batcher.close(drain_s=0)


async def test_without_a_limit_a_batch_may_run_for_ever() -> None:
    async with headway.Batcher(FakeModel(cost_s=1e6), execute_timeout_ms=float("inf")) as batcher:
        assert await batcher.submit(1) == 2


async def test_closing_does_not_wait_for_who_was_told() -> None:
    async with headway.Batcher(FakeModel(cost_s=1000.0), execute_timeout_ms=1000) as batcher:
        with pytest.raises(headway.ModelFailed):
            await batcher.submit(1)
        await batcher.close(drain_s=5.0)
        assert now() == 1.0


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_drain_without_a_limit_ends_when_only_stuck_batches_run(workers: int) -> None:
    async def predict(items: list[float]) -> list[float]:
        await asyncio.sleep(items[0])
        return items

    batcher = headway.Batcher(predict, max_batch_size=1, workers=workers, execute_timeout_ms=3000)
    async with batcher:
        stuck = asyncio.create_task(batcher.submit(1e6))
        others = [asyncio.create_task(batcher.submit(1.0)) for _ in range(workers - 1)]
        await asyncio.sleep(0.5)
        await batcher.close(drain_s=None)
        assert now() == 3.0
        assert isinstance(stuck.exception(), headway.ModelFailed)
        assert [each.result() for each in others] == [1.0] * (workers - 1)
