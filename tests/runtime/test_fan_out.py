"""Requests of many values: the first is accepted or refused, the rest follow as there is room."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from headway import (
    Batcher,
    Closed,
    DeadlineExceeded,
    InvalidInput,
    ModelFailed,
    QueueFull,
    Tensor,
    TensorModel,
)
from headway.core.costs import CostTable
from headway.runtime.events import Refused
from headway.testing import FakeModel, GatedModel, Recorder, now


class Negate(TensorModel):
    inputs = (Tensor("x", "float32", (-1, 1)),)  # type: ignore[misc]
    outputs = (Tensor("y", "float32", (-1, 1)),)  # type: ignore[misc]

    def __init__(self) -> None:
        self.rows: list[int] = []

    async def predict(self, batch: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        self.rows.append(len(batch["x"]))
        await asyncio.sleep(0.001)
        if (batch["x"] == 13).any():
            raise ValueError("thirteen")
        return {"y": -batch["x"]}


def numbers(count: int, start: int = 1000) -> dict[str, Any]:
    return {"x": numpy.arange(start, start + count, dtype="float32")[:, None]}


async def test_more_values_than_the_queue_holds_are_all_answered() -> None:
    model = FakeModel()
    async with Batcher(model, max_batch_size=4, max_queue=8) as batcher:
        assert await batcher.many(range(100)) == [2 * number for number in range(100)]
    assert [len(batch) for batch in model.batches] == [4] * 25


async def test_more_rows_than_the_queue_holds_are_one_answer() -> None:
    model, recorder = Negate(), Recorder()
    async with Batcher(model, observers=[recorder], dependent_rows="batch") as batcher:
        answer = await batcher.submit(numbers(40_000))
        assert (answer["y"] == -numbers(40_000)["x"]).all()
    assert model.rows == [64] * 625
    assert not [event for event in recorder.events if isinstance(event, Refused)]


async def test_its_story_names_every_batch() -> None:
    async with Batcher(Negate(), max_batch_size=4) as batcher:
        explained = await batcher.explain(numbers(30))
    assert explained.result["y"].shape == (30, 1)
    assert sum(batch.rows for batch in explained.explanation.batches) == 30
    assert len(explained.explanation.times) == 8


async def test_one_bad_row_fails_the_request_and_withdraws_the_rest() -> None:
    model = Negate()
    async with Batcher(model, max_batch_size=4) as batcher:
        with pytest.raises(ModelFailed, match="thirteen"):
            await batcher.submit(numbers(400, start=0))
        assert sum(model.rows) < 100
        assert batcher.statistics().queued_items == 0


async def test_a_full_queue_refuses_the_whole_request_at_once() -> None:
    model = GatedModel()
    async with Batcher(model, max_batch_size=1, max_queue=4) as batcher:
        waiting = [asyncio.create_task(batcher.submit(0))]
        await asyncio.sleep(0.001)
        waiting += [asyncio.create_task(batcher.submit(number)) for number in range(1, 5)]
        await asyncio.sleep(0.001)
        with pytest.raises(QueueFull):
            await batcher.many(range(100))
        assert now() == pytest.approx(0.002)
        assert batcher.statistics().queued_items == 4
        model.open()
        await asyncio.gather(*waiting)
    assert len(model.batches) == 5


async def test_others_who_fill_the_queue_only_hold_an_accepted_request_up() -> None:
    async with Batcher(FakeModel(), max_batch_size=2, max_queue=8) as batcher:
        many = asyncio.create_task(batcher.many(range(50)))
        await asyncio.sleep(0.001)
        served = 0
        while not many.done():
            rush = [batcher.submit(number) for number in range(8)]
            answers = await asyncio.gather(*rush, return_exceptions=True)
            served += sum(isinstance(answer, int) for answer in answers)
        assert await many == [2 * number for number in range(50)]
        assert served > 50


async def test_others_find_room_while_such_requests_are_under_way() -> None:
    async with Batcher(FakeModel(), max_batch_size=4, max_queue=32) as batcher:
        many = [asyncio.create_task(batcher.many(range(200))) for _ in range(8)]
        await asyncio.sleep(0.001)
        for number in range(50):
            assert await batcher.submit(number) == 2 * number
        assert not any(each.done() for each in many)
        for each in await asyncio.gather(*many):
            assert each == [2 * number for number in range(200)]


async def test_such_requests_share_the_queue() -> None:
    ended: dict[str, float] = {}
    async with Batcher(FakeModel(), max_batch_size=4, max_queue=8) as batcher:

        async def run(name: str, count: int) -> None:
            await batcher.many(range(count))
            ended[name] = now()

        await asyncio.gather(run("long", 400), run("short", 40), run("another", 40))
    assert max(ended["short"], ended["another"]) < ended["long"] / 2


async def test_an_slo_holds_values_back_rather_than_refuse_them() -> None:
    model, recorder = FakeModel(), Recorder()
    table = CostTable((1, 4), None, ((0.010,), (0.010,)))
    async with Batcher(
        model, max_batch_size=4, slo_ms=25, costs=table, observers=[recorder]
    ) as batcher:
        assert await batcher.many(range(100)) == [2 * number for number in range(100)]
        assert now() < 0.5  # in full batches, mostly
    refused = [event for event in recorder.events if isinstance(event, Refused)]
    assert len(refused) <= 100  # each value was not tried again and again


@pytest.mark.parametrize("is_tensor", [False, True])
async def test_one_deadline_holds_for_all_of_a_request(is_tensor: bool) -> None:
    model = Negate() if is_tensor else FakeModel(cost_s=0.001)
    options: Any = {"max_batch_size": 2, "max_queue": 8, "dependent_rows": "batch"}
    async with Batcher(model, **options) as batcher:
        ask = batcher.submit if is_tensor else batcher.many
        with pytest.raises(DeadlineExceeded):
            await ask(numbers(1000) if is_tensor else range(1000), deadline_ms=20)
        assert now() <= 0.0201
        await asyncio.sleep(0.002)  # what runs is not cut short
        assert batcher.statistics().queued_items == 0


@pytest.mark.parametrize("way", ["many", "explain_many", "a long one", "one"])
async def test_a_deadline_of_numpys_float32_does_not_round_the_clock(way: str) -> None:
    """After some days, by which a float32 counts in sixteenths of a second."""
    is_long = way == "a long one"
    model: Any = Negate() if is_long else FakeModel(cost_s=0.001 if "many" in way else 0.1)
    async with Batcher(model, max_batch_size=2, max_queue=8) as batcher:
        ways: Any = {"many": batcher.many, "explain_many": batcher.explain_many}
        await asyncio.sleep(1e6 + 0.03 - now())
        values = numbers(1000) if is_long else range(1000)
        with pytest.raises(DeadlineExceeded):
            await ways.get(way, batcher.submit)(values, deadline_ms=numpy.float32(20))
        assert now() == pytest.approx(1e6 + 0.05, rel=0, abs=0.0015)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("broken")


@pytest.mark.parametrize("values", [10**5000, Unprintable(), numpy.array(5), 3], ids=type)
async def test_values_that_are_none_are_refused_whatever_they_are(values: Any) -> None:
    recorder = Recorder()
    async with Batcher(FakeModel(), observers=[recorder]) as batcher:
        with pytest.raises(InvalidInput, match="values of several calls, not"):
            await batcher.many(values)
        with pytest.raises(InvalidInput, match="values of several calls, not"):
            await batcher.explain_many(values)
    refusals = [event.reason for event in recorder.events if isinstance(event, Refused)]
    assert refusals == ["invalid_input", "invalid_input"]


@pytest.mark.parametrize("deadline_ms", [10**5000, Unprintable(), "9", numpy.zeros(2)], ids=type)
async def test_a_deadline_that_is_none_is_refused_whatever_it_is(deadline_ms: Any) -> None:
    recorder = Recorder()
    async with Batcher(FakeModel(), observers=[recorder]) as batcher:
        for ask in (
            batcher.submit(1, deadline_ms=deadline_ms),
            batcher.many([1], deadline_ms=deadline_ms),
        ):
            with pytest.raises(InvalidInput, match="deadline_ms is"):
                await ask
    refusals = [event.reason for event in recorder.events if isinstance(event, Refused)]
    assert refusals == ["invalid_input", "invalid_input"]


async def test_an_error_of_the_callers_own_generator_is_its_own() -> None:
    def values() -> Iterator[int]:
        yield 1
        raise TypeError("mine")

    async with Batcher(FakeModel()) as batcher:
        with pytest.raises(TypeError, match="mine"):
            await batcher.many(values())


@pytest.mark.parametrize("is_tensor", [False, True])
async def test_a_caller_that_leaves_takes_all_values_along(is_tensor: bool) -> None:
    model = Negate() if is_tensor else FakeModel(cost_s=0.001)
    options: Any = {"max_batch_size": 2, "max_queue": 8, "dependent_rows": "batch"}
    async with Batcher(model, **options) as batcher:
        values = batcher.submit(numbers(1000)) if is_tensor else batcher.many(range(1000))
        leaving = asyncio.create_task(values)
        await asyncio.sleep(0.0105)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await asyncio.sleep(0.002)
        assert batcher.statistics().queued_items == 0
    ran = len(model.rows if isinstance(model, Negate) else model.batches)
    assert ran <= 12


async def test_a_batcher_that_closes_leaves_no_such_request_waiting() -> None:
    model = GatedModel()
    async with Batcher(model, max_batch_size=1, max_queue=4) as batcher:
        many = [asyncio.create_task(batcher.many(range(100))) for _ in range(3)]
        await asyncio.sleep(0.001)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0.001)
        model.open()
        for outcome in await asyncio.gather(*many, return_exceptions=True):
            assert isinstance(outcome, Closed)
        await closing


async def test_no_deadline_that_is_not_one() -> None:
    async with Batcher(FakeModel(), max_batch_size=2) as batcher:
        assert await batcher.many(range(20), deadline_ms=float("inf")) == list(range(0, 40, 2))
        with pytest.raises(DeadlineExceeded):
            await batcher.many(range(20), deadline_ms=-1)


async def test_a_turn_of_the_loop_begins_one_batch_of_it_and_no_more() -> None:
    begun, most = 0, 0

    async def call(value: int, left_ms: float | None) -> int:
        nonlocal begun
        begun += 1
        return value

    async with Batcher(FakeModel(), max_batch_size=8, max_queue=1000) as batcher:
        fan_out = batcher.fan_out()
        gathering = asyncio.ensure_future(fan_out.gather(call, range(100)))
        while not gathering.done():
            before = begun
            await asyncio.sleep(0)
            most = max(most, begun - before)
        assert await gathering == [*range(100)]
        assert 0 < most <= 8


async def test_errors_that_are_kept_keep_nothing_else() -> None:
    async def call(value: int, left_ms: float | None) -> int:
        if value % 2:
            try:
                raise ValueError(value)
            except ValueError as error:
                raise ModelFailed("odd") from error
        return value

    async with Batcher(FakeModel()) as batcher:
        results = await batcher.fan_out().gather(call, range(4), keep_errors=True)
    for failed in (results[1], results[3]):
        assert isinstance(failed, ModelFailed)
        assert (failed.__traceback__, failed.__cause__, failed.__context__) == (None, None, None)
