"""A test of your own code on virtual time: exact times, no sleeping. Runs under pytest or alone."""

import asyncio

import headway
from headway.testing import FakeModel, Recorder, now, run


async def test_calls_that_come_while_the_model_is_busy_leave_together() -> None:
    model, recorder = FakeModel(cost_s=0.010), Recorder()
    async with headway.Batcher[int, int](model, observers=[recorder]) as batcher:
        first = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.005)  # the model is busy now
        others = await batcher.many([2, 3])
        assert await first == 2
        assert others == [4, 6]
        assert abs(now() - 0.020) < 1e-6  # exact: the clock is ours
    assert model.batches == [[1], [2, 3]]
    assert [event.reason.value for event in recorder.batches] == ["idle", "idle"]


async def test_an_hour_passes_in_no_time() -> None:
    async with headway.Batcher[int, int](FakeModel(cost_s=3600.0)) as batcher:
        assert await batcher.submit(21) == 42
        assert now() == 3600.0


if __name__ == "__main__":
    for test in (
        test_calls_that_come_while_the_model_is_busy_leave_together,
        test_an_hour_passes_in_no_time,
    ):
        run(test())
        print("passed:", test.__name__.removeprefix("test_").replace("_", " "))
