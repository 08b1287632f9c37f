"""A model that hangs: its callers are answered in time, on virtual time."""

import asyncio

import pytest

import headway
from headway.runtime.jobs.watchdog import Watchdog
from headway.testing import FakeModel, now


async def test_a_batch_over_its_time_is_answered_and_the_next_one_runs() -> None:
    heard: list[tuple[float, bool]] = []
    async with headway.Batcher(FakeModel(cost_s=10.0), max_batch_size=2) as batcher:
        batcher.observe(Watchdog(batcher, limit_s=3.0, hangs=lambda it: heard.append((now(), it))))
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(3)]
        done, _ = await asyncio.wait(calls[:2])
        assert now() == 3.0
        for call in done:
            with pytest.raises(headway.ModelFailed, match="did not answer within 3 s"):
                call.result()
        with pytest.raises(headway.ModelFailed):
            await calls[2]  # it runs when the worker is back, and hangs as well
    assert heard == [(3.0, True), (10.0, False), (13.0, True), (20.0, False)]


async def test_a_batch_in_time_is_left_alone() -> None:
    heard: list[bool] = []
    async with headway.Batcher(FakeModel(cost_s=1.0)) as batcher:
        batcher.observe(Watchdog(batcher, limit_s=3.0, hangs=heard.append))
        assert await batcher.submit(1) == 2
    assert heard == []


async def test_closing_does_not_wait_for_who_was_told() -> None:
    async with headway.Batcher(FakeModel(cost_s=1000.0)) as batcher:
        batcher.observe(Watchdog(batcher, limit_s=1.0))
        with pytest.raises(headway.ModelFailed):
            await batcher.submit(1)
        await batcher.close(drain_s=5.0)
        assert now() == 6.0
