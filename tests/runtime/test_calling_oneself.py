"""A batched function that calls itself, directly or through others, would wait for its own end: it
is refused by name. Calls of other functions are nobody's business."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import headway
from headway import Batcher, ModelFailed


async def test_one_that_calls_itself_is_told_so() -> None:
    @headway.batched
    async def deep(items: list[int]) -> list[int]:
        return [await deep(item - 1) if item else 0 for item in items]

    assert await deep(0) == 0
    with pytest.raises(ModelFailed, match="deep would wait for itself: deep -> deep"):
        await deep(1)
    assert await deep(0) == 0


async def test_nor_may_it_around_a_corner() -> None:
    @headway.batched
    async def first(items: list[int]) -> list[int]:
        return await second.many(items)

    @headway.batched
    async def second(items: list[int]) -> list[int]:
        return [await first(item - 1) if item else item for item in items]

    with pytest.raises(ModelFailed, match="first would wait for itself: first -> second -> first"):
        await first(1)
    assert await first(0) == 0
    with pytest.raises(ModelFailed, match="second would wait for itself"):
        await second(1)


async def test_nor_where_only_one_caller_of_the_batch_comes_from_there() -> None:
    inner_may_go = asyncio.Event()

    @headway.batched(policy="window", max_wait_ms=5)
    async def inner(items: list[str]) -> list[str]:
        inner_may_go.set()
        return await outer.many(items)

    @headway.batched
    async def outer(items: list[str]) -> list[str]:
        return [await inner(item) if item == "nested" else item for item in items]

    found = await asyncio.gather(outer("nested"), inner("plain"), return_exceptions=True)
    assert [type(each) for each in found] == [ModelFailed, ModelFailed]
    assert "outer -> inner -> outer" in str(found[1])


async def test_a_stream_that_calls_itself_is_told_so() -> None:
    class Talk(headway.Model[int, int]):
        async def stream(self, items: list[int]) -> AsyncIterator[list[int]]:
            async for chunk in batcher.stream(items[0]):
                yield [chunk for _ in items]

    async with Batcher(Talk()) as batcher:
        with pytest.raises(ModelFailed, match="Talk would wait for itself"):
            async for _ in batcher.stream(1):
                pass


async def test_calls_of_others_and_many_levels_of_them_are_served() -> None:
    @headway.batched
    async def length(items: list[str]) -> list[int]:
        return [len(each) for each in items]

    @headway.batched
    async def double(items: list[str]) -> list[int]:
        return [2 * each for each in await length.many(items)]

    @headway.batched
    async def both(items: list[str]) -> list[int]:
        found = await asyncio.gather(double.many(items), length.many(items))
        return [sum(each) for each in zip(*found, strict=True)]

    assert await both.many(["a", "bb"]) == [3, 6]


async def test_a_task_that_outlives_the_batch_may_call_its_model() -> None:
    later: list[asyncio.Task[int]] = []

    @headway.batched
    async def count(items: list[int]) -> list[int]:
        if 0 in items:
            later.append(asyncio.create_task(recount()))
        return items

    async def recount() -> int:
        await asyncio.sleep(1)
        return await count(5)

    assert await count(0) == 0
    assert await later[0] == 5


@pytest.mark.real_time
@pytest.mark.parametrize("is_direct", [True, False])
async def test_from_a_models_thread_it_is_the_same(is_direct: bool) -> None:
    @headway.batched
    def first(items: list[int]) -> list[int]:
        return [(first if is_direct else second).call(item - 1) if item else 0 for item in items]

    @headway.batched
    def second(items: list[int]) -> list[int]:
        return [first.call(item) for item in items]

    async with asyncio.timeout(30):
        with pytest.raises(ModelFailed, match="first would wait for itself: first -> "):
            await first(1)
        assert await first(0) == 0
        assert await second(0) == 0
        with pytest.raises(ModelFailed, match="would wait for itself"):
            await second(1)
