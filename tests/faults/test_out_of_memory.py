"""Out of memory is a normal event: cut, run again, remember what fits, try more later."""

import asyncio
from typing import Any

import numpy
import pytest
from fragile import FragileBatcher, FragileWorker

from headway import Batcher, ModelFailed, Tensor, TensorModel
from headway.events import BatchLost, FireReason, OutOfMemory
from headway.runtime.calling.faults import is_out_of_memory
from headway.testing import Recorder

HUGE = 10_000


class Memory:
    """A model that doubles numbers, in a memory that holds `room` of them (or of their sizes)."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.calls: list[int] = []

    async def __call__(self, values: list[Any]) -> list[Any]:
        await asyncio.sleep(0.010)
        self.calls.append(len(values))
        if len(values) > self.room or HUGE in values:
            raise MemoryError("no room")
        if "raise" in values:
            raise ValueError("a bad one")
        return [value * 2 for value in values]


async def outcomes(batcher: Any, values: Any) -> list[Any]:
    return await asyncio.gather(*(batcher.submit(v) for v in values), return_exceptions=True)


async def test_a_batch_that_does_not_fit_is_cut_until_it_does_and_everyone_is_answered() -> None:
    model, recorder = Memory(5), Recorder()
    async with Batcher(model, observers=[recorder]) as batcher:
        assert await outcomes(batcher, range(64)) == [2 * n for n in range(64)]
    assert model.calls == [64, 32, 16, 8, *[4] * 16]
    [event] = [event for event in recorder.events if isinstance(event, OutOfMemory)]
    assert (event.batch.rows, event.limit_rows) == (64, 4)
    assert recorder.batches[0].failed == 0


async def test_the_limit_is_remembered_and_says_why_batches_are_small() -> None:
    model, recorder = Memory(5), Recorder()
    async with Batcher(model, observers=[recorder]) as batcher:
        await outcomes(batcher, range(64))
        model.calls.clear()
        await outcomes(batcher, range(16))
    assert model.calls == [4, 4, 4, 4]
    assert [batch.reason for batch in recorder.batches[1:-1]] == [FireReason.BUDGET] * 3


async def test_more_is_tried_after_a_while_and_given_up_later_each_time() -> None:
    model = Memory(5)
    async with Batcher(model, max_batch_size=16) as batcher:
        await outcomes(batcher, range(16))
        failures = []
        for _ in range(40):
            model.calls.clear()
            await outcomes(batcher, range(64))
            failures.append(sum(rows > 5 for rows in model.calls))
        assert 1 <= sum(failures) <= 6
        model.room = 100  # somebody else has left
        for _ in range(60):
            await outcomes(batcher, range(256))
        model.calls.clear()
        await outcomes(batcher, range(64))
        assert max(model.calls) == 16


async def test_one_item_that_does_not_fit_alone_is_told_so_and_limits_nobody() -> None:
    model, recorder = Memory(1000), Recorder()
    values = [*range(31), HUGE, *range(32)]
    async with Batcher(model, observers=[recorder]) as batcher:
        results = await outcomes(batcher, values)
        error = results.pop(31)
        assert type(error) is ModelFailed
        assert is_out_of_memory(error)
        assert results == [2 * n for n in values if n != HUGE]
        assert len(model.calls) <= 13
        model.calls.clear()
        await outcomes(batcher, range(64))
        assert model.calls == [64]


async def test_an_item_that_raises_is_found_in_a_batch_that_does_not_fit() -> None:
    values: list[Any] = list(range(64))
    values[40] = "raise"
    async with Batcher(Memory(16)) as batcher:
        results = await outcomes(batcher, values)
    assert type(results.pop(40)) is ModelFailed
    assert results == [2 * n for n in range(64) if n != 40]


async def test_a_model_that_must_not_run_twice_is_not_cut() -> None:
    model = Memory(5)
    async with Batcher(model, max_reruns=0) as batcher:
        results = await outcomes(batcher, range(8))
        assert [type(each) for each in results] == [ModelFailed] * 8
        assert model.calls == [8]
        model.calls.clear()
        assert await outcomes(batcher, range(8)) == [2 * n for n in range(8)]
        assert model.calls == [4, 4]  # but the next batches are smaller


async def test_the_limit_is_by_size_and_holds_for_all_that_are_larger() -> None:
    calls: list[tuple[int, int]] = []

    async def model(values: list[int]) -> list[int]:
        calls.append((len(values), max(values)))
        if len(values) * max(values) > 1024:
            raise MemoryError
        return values

    async with Batcher(model, size=lambda value: value, policy="idle") as batcher:
        for length in (8, 128, 300):
            await outcomes(batcher, [length] * 32)
        calls.clear()
        for length in (8, 128, 300):
            assert await outcomes(batcher, [length] * 32) == [length] * 32
    assert all(rows * length <= 1024 for rows, length in calls)
    assert max(rows for rows, length in calls if length == 8) == 32


async def test_fixed_batch_sizes_are_kept() -> None:
    model = Memory(5)
    async with Batcher(model, max_batch_size=8, batch_sizes=[1, 4, 8]) as batcher:
        assert await outcomes(batcher, range(8)) == [2 * n for n in range(8)]
        assert await outcomes(batcher, range(8)) == [2 * n for n in range(8)]
    assert model.calls == [8, 4, 4, 4, 4]


class Rows(TensorModel):
    inputs = [Tensor("x", "float32", [-1, 2])]  # noqa: RUF012
    outputs = [Tensor("y", "float32", [-1, 2])]  # noqa: RUF012

    def __init__(self, room: int) -> None:
        self.room = room
        self.calls: list[int] = []

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(len(batch["x"]))
        if len(batch["x"]) > self.room:
            raise MemoryError
        return {"y": batch["x"] * 2}


async def test_one_request_of_many_rows_is_cut_by_rows_and_joined_again() -> None:
    model = Rows(3)
    rows = numpy.arange(40, dtype=numpy.float32).reshape(20, 2)
    async with Batcher(model) as batcher:
        model.calls.clear()
        answer: Any = await batcher.submit({"x": rows})
        numpy.testing.assert_array_equal(answer["y"], 2 * rows)
        assert model.calls[:4] == [20, 10, 5, 2]
        model.calls.clear()
        answer = await batcher.submit({"x": rows})  # from now on it is split at the door
        numpy.testing.assert_array_equal(answer["y"], 2 * rows)
    assert max(model.calls) <= 3


async def test_a_single_row_that_does_not_fit_fails_its_request_only() -> None:
    model = Rows(0)
    async with Batcher(model) as batcher:
        with pytest.raises(ModelFailed):
            await batcher.submit({"x": numpy.ones((4, 2), numpy.float32)})
        model.room = 100
        answer: Any = await batcher.submit({"x": numpy.ones((4, 2), numpy.float32)})
    assert answer["y"].shape == (4, 2)


# ---- killed by the kernel


async def test_a_worker_that_the_kernel_kills_for_its_memory_teaches_the_same() -> None:
    calls: list[int] = []

    async def behave(worker: FragileWorker, values: list[Any]) -> list[Any]:
        calls.append(len(values))
        if len(values) > 5:
            asyncio.get_running_loop().call_later(
                0.005, lambda: worker.die("killed for its memory", out_of_memory=True)
            )
        await worker.work(values, 0.010)
        return [value * 2 for value in values]

    recorder = Recorder()
    async with FragileBatcher(behave, observers=[recorder]) as batcher:
        assert await outcomes(batcher, range(64)) == [2 * n for n in range(64)]
        assert [rows for rows in calls if rows > 5] == [64, 32, 16, 8]
        calls.clear()
        await outcomes(batcher, range(64))
    assert calls == [4] * 16
    losses = [event for event in recorder.events if isinstance(event, BatchLost)]
    assert all(event.out_of_memory for event in losses)
