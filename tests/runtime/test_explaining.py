"""`explain`: the result, and how it came about."""

import asyncio
from typing import Any, ClassVar

import numpy
import pytest

import headway
from headway import Tensor
from headway.core.items import FireReason
from headway.testing import FakeModel


class Same(headway.TensorModel):
    inputs: ClassVar = [Tensor("x", "float32", (-1, 1))]
    outputs: ClassVar = [Tensor("x", "float32", (-1, 1))]

    async def predict(self, batch: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        await asyncio.sleep(0.010)
        return batch


async def test_the_result_comes_with_its_batch_and_its_times() -> None:
    async with headway.Batcher(FakeModel(cost_s=0.010), policy="idle") as batcher:
        first = asyncio.create_task(batcher.explain(1))
        await asyncio.sleep(0.004)
        late = asyncio.create_task(batcher.explain(2))
        also = asyncio.create_task(batcher.submit(3))
        explained, explained_late = await first, await late
        await also
    assert explained.result == 2
    (batch,), (times,) = explained.explanation.batches, explained.explanation.times
    assert (batch.rows, batch.reason, times.queued_s) == (1, FireReason.IDLE, 0.0)
    assert times.ran_s == pytest.approx(0.010)
    (batch,), (times,) = explained_late.explanation.batches, explained_late.explanation.times
    assert batch.rows == 2
    assert times.queued_s == pytest.approx(0.006)


async def test_a_value_of_many_rows_was_in_several_batches() -> None:
    async with headway.Batcher(Same(), max_batch_size=4) as batcher:
        explained: Any = await batcher.explain({"x": numpy.ones((10, 1), numpy.float32)})
        assert explained.result["x"].shape == (10, 1)
        story = explained.explanation
        assert sorted(batch.rows for batch in story.batches) == [3, 3, 4]
        assert len({times.id for times in story.times}) == 3
        assert all(times.ran_s == pytest.approx(0.010) for times in story.times)


async def test_several_values_are_explained_one_by_one() -> None:
    async with headway.Batcher(FakeModel(cost_s=0.001), max_batch_size=2) as batcher:
        found = await batcher.explain_many([1, 2, 3])
    assert [each.result for each in found] == [2, 4, 6]
    assert len({each.explanation.batches[0].id for each in found}) == 2


async def test_whoever_leaves_is_withdrawn_and_whoever_fails_gets_the_error() -> None:
    async with headway.Batcher(FakeModel(cost_s=0.010), max_batch_size=1) as batcher:
        busy = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0)
        leaver = asyncio.create_task(batcher.explain(2))
        await asyncio.sleep(0.001)
        assert batcher.statistics().queued_items == 1
        leaver.cancel()
        await asyncio.wait([leaver])
        assert batcher.statistics().queued_items == 0
        await busy
        with pytest.raises(headway.InvalidInput):
            await batcher.explain(1, priority="urgent")  # type: ignore[arg-type]
