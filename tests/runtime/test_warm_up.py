"""Warm-up: batch times from probes, so that no decision is made blind."""

import asyncio
import sys
import threading
from typing import Any

import numpy
import pytest

import headway
from headway import Batcher, Closed, ConfigError, Model, ModelFailed, TensorModel
from headway.errors import NotReady
from headway.testing import FakeModel, GatedModel, Recorder, now


def ms(table: Any) -> list[Any]:
    return [pytest.approx(cell * 1e3) for row in table.seconds for cell in row]


async def test_the_table_holds_the_models_times_by_batch_size() -> None:
    model = FakeModel(cost_s=0.010, row_s=0.001)
    async with Batcher(model, max_batch_size=8) as batcher:
        table = await batcher.warm_up(1, repeats=2)
    assert table.rows == (1, 2, 3, 4, 5, 6, 7, 8)
    assert table.sizes is None
    assert ms(table) == [11, 12, 13, 14, 15, 16, 17, 18]
    powers = [1, 1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8]
    assert [len(batch) for batch in model.batches[:12]] == powers


async def test_the_first_call_of_a_shape_does_not_count() -> None:
    seen: set[int] = set()

    async def lazy(values: list[int]) -> list[int]:
        await asyncio.sleep(0.010 if len(values) in seen else 5.0)
        seen.add(len(values))
        return values

    async with Batcher(lazy, max_batch_size=2) as batcher:
        assert ms(await batcher.warm_up(1)) == [10, 10]


async def test_samples_of_several_sizes_make_a_table_by_size() -> None:
    async def by_size(values: list[int]) -> list[int]:
        await asyncio.sleep(0.001 * max(values))
        return values

    async with Batcher(by_size, max_batch_size=2, size=lambda value: value) as batcher:
        table = await batcher.warm_up(30, 10)
    assert table.sizes == (10, 30)
    assert ms(table) == [10, 30, 10, 30]


async def test_samples_are_prepared_like_any_value() -> None:
    model = FakeModel()
    async with Batcher(model, max_batch_size=1, prepare=len, size=lambda n: n) as batcher:
        table = await batcher.warm_up("four")
    assert table.sizes == (4,)
    assert model.batches[0] == [4]


async def test_fixed_batch_sizes_are_what_is_probed() -> None:
    model = FakeModel()
    async with Batcher(model, max_batch_size=6, batch_sizes=[3, 6]) as batcher:
        assert (await batcher.warm_up(1, repeats=1)).rows == (3, 6)
    assert [len(batch) for batch in model.batches] == [3, 3, 6, 6]


async def test_what_was_learned_decides_at_once() -> None:
    recorder = Recorder()
    async with Batcher(
        FakeModel(cost_s=0.010, row_s=0.010), max_batch_size=4, slo_ms=50, observers=[recorder]
    ) as batcher:
        await batcher.warm_up(1)
        started = now()
        results = await asyncio.gather(
            *(batcher.submit(n) for n in range(40)), return_exceptions=True
        )
        assert now() - started <= 0.051
        assert any(isinstance(result, Exception) for result in results)  # shed, not late
        assert any(not isinstance(result, Exception) for result in results)
    assert recorder.batches[0].batch.predicted_s is not None


async def test_a_limit_ends_the_warm_up_with_fewer_batch_sizes() -> None:
    async with Batcher(FakeModel(cost_s=1.0), max_batch_size=64) as batcher:
        table = await batcher.warm_up(1, limit_s=10.0)
        assert table.rows == (1, 2, 4)
        assert now() == pytest.approx(12.0)


async def test_a_model_that_fails_says_so_and_serves_all_the_same() -> None:
    async with Batcher(FakeModel(poison=lambda value: value == 1)) as batcher:
        with pytest.raises(ModelFailed, match="poisoned"):
            await batcher.warm_up(1)
        assert await batcher.submit(2) == 4


async def test_without_a_sample_there_is_nothing_to_time() -> None:
    async with Batcher(FakeModel()) as batcher:
        with pytest.raises(ConfigError, match="samples"):
            await batcher.warm_up()


async def test_warm_up_comes_before_traffic() -> None:
    model = GatedModel()
    async with Batcher(model) as batcher:
        call = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.001)
        with pytest.raises(NotReady, match="busy: warm up before traffic"):
            await batcher.warm_up(1)
        model.open()
        await call


async def test_closing_ends_a_warm_up_that_is_under_way() -> None:
    async with Batcher(FakeModel(cost_s=1.0)) as batcher:
        warming = asyncio.create_task(batcher.warm_up(1))
        await asyncio.sleep(1.5)
        await batcher.close()
        with pytest.raises(Closed):
            await warming
        assert now() == pytest.approx(1.5)


async def test_a_tensor_sample_of_several_rows_is_cut_to_fit() -> None:
    shapes = []

    class Double(TensorModel):
        def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
            shapes.append(batch["x"].shape[0])
            return {"y": batch["x"] * 2}

    async with Batcher(Double(), max_batch_size=8) as batcher:
        table = await batcher.warm_up({"x": numpy.ones((3, 2))}, repeats=1)
    assert table.rows == (1, 2, 4, 8)
    assert shapes == [1, 1, 2, 2, 4, 4, 8, 8]


async def test_a_model_that_empties_its_list_is_timed_all_the_same() -> None:
    async def empties(values: list[int]) -> list[int]:
        results = list(values)
        values.clear()
        return results

    async with Batcher(empties, max_batch_size=4) as batcher:
        assert (await batcher.warm_up(1)).rows == (1, 2, 3, 4)


async def test_a_model_whose_own_work_is_cancelled_during_its_warm_up_has_failed() -> None:
    async def shaky(values: list[int]) -> list[int]:
        raise asyncio.CancelledError

    async with Batcher(shaky) as batcher:
        with pytest.raises(ModelFailed, match="CancelledError"):
            await batcher.warm_up(1)


def test_a_warm_up_whose_loop_has_ended_leaves_the_worker_fit_for_work() -> None:
    started, let_go = threading.Event(), threading.Event()

    @headway.batched
    def echo(values: list[int]) -> list[int]:
        started.set()
        assert let_go.wait(10)
        return values

    async def give_up() -> None:
        warming = asyncio.create_task(echo.batcher.warm_up(1))
        assert await asyncio.to_thread(started.wait, 10)
        warming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await warming

    async def use() -> int:
        async with asyncio.timeout(10):
            let_go.set()
            answer = await echo(7)
            await echo.close()
            return answer

    asyncio.run(give_up())
    assert asyncio.run(use()) == 7


@pytest.mark.real_time
async def test_a_plain_model_is_timed_in_its_thread() -> None:
    class Plain(Model[int, int]):
        def predict(self, items: list[int]) -> list[int]:
            return items

    async with Batcher(Plain(), max_batch_size=4) as batcher:
        table = await batcher.warm_up(1)
        assert table.rows == (1, 2, 3, 4)
        assert all(0 < cell < 1.0 for row in table.seconds for cell in row)
        assert await batcher.submit(3) == 3


@pytest.mark.real_time
async def test_closing_ends_a_warm_up_in_a_thread() -> None:
    async with asyncio.timeout(10), Batcher(lambda values: values) as batcher:
        warming = asyncio.create_task(batcher.warm_up(1, repeats=10**9))
        await asyncio.sleep(0)
        await batcher.close()
        with pytest.raises(Closed):
            await warming


@pytest.mark.real_time
async def test_a_model_that_exits_during_its_warm_up_does_not_hang_it() -> None:
    async with asyncio.timeout(10), Batcher(lambda values: sys.exit()) as batcher:
        with pytest.raises(ModelFailed, match="SystemExit"):
            await batcher.warm_up(1)
