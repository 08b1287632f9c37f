"""Many answers per item: each step of the model reaches its readers as it comes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import numpy
import pytest

from headway import END, Batcher, Closed, ConfigError, InvalidInput, Model, ModelFailed, Shed
from headway.runtime.driving.streams import (
    AT_ONCE_BYTES,
    MAX_BACKLOG,
    MAX_BACKLOG_BYTES,
    StreamCall,
    wake_all,
)
from headway.testing import now


class Countdown(Model[int, int]):
    """Counts from n to 1, one step each 10 ms; each item ends on its own."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.closed = 0
        self.steps = 0

    async def stream(self, items: list[int]) -> AsyncIterator[list[Any]]:
        self.batches.append(items)
        left = list(items)
        try:
            while True:
                await asyncio.sleep(0.010)
                self.steps += 1
                yield [n if n > 0 else END for n in left]
                left = [n - 1 for n in left]
        finally:
            self.closed += 1


async def read(batcher: Batcher[Any, Any], value: Any, **options: Any) -> list[Any]:
    return [chunk async for chunk in batcher.stream(value, **options)]


async def test_chunks_come_in_order_as_they_are_produced_until_end() -> None:
    async with Batcher(Countdown()) as batcher:
        seen = [(chunk, now()) async for chunk in batcher.stream(3)]
    assert seen == [(n, pytest.approx(t)) for n, t in ((3, 0.010), (2, 0.020), (1, 0.030))]


async def test_streams_share_a_batch_and_each_ends_on_its_own() -> None:
    model = Countdown()
    async with Batcher(model) as batcher:
        assert await asyncio.gather(*(read(batcher, n) for n in (1, 3, 0, 2))) == [
            [1],
            [3, 2, 1],
            [],
            [2, 1],
        ]
    assert model.batches == [[1, 3, 0, 2]]
    assert model.closed == 1
    assert model.steps == 4  # the step in which the last of them ended


async def test_none_is_no_chunk() -> None:
    class Gaps(Model[int, int]):
        def stream(self, items: list[int]) -> Iterator[list[Any]]:
            yield [1 for _ in items]
            yield [None for _ in items]
            yield [0 for _ in items]

    async with Batcher(Gaps()) as batcher:
        assert await read(batcher, 5) == [1, 0]


async def test_a_generator_that_is_exhausted_ends_every_stream() -> None:
    class Once(Model[str, str]):
        def stream(self, items: list[str]) -> Iterator[list[str]]:
            yield items

    async with Batcher(Once()) as batcher:
        assert await asyncio.gather(read(batcher, "a"), read(batcher, "b")) == [["a"], ["b"]]


async def test_an_entry_that_is_an_exception_is_that_items_own_error() -> None:
    class Halfway(Model[int, int]):
        def stream(self, items: list[int]) -> Iterator[list[Any]]:
            yield items
            yield [KeyError(n) if n == 2 else n for n in items]
            yield items

    async with Batcher(Halfway()) as batcher:
        good, bad = await asyncio.gather(read(batcher, 1), read(batcher, 2), return_exceptions=True)
    assert good == [1, 1, 1]
    assert isinstance(bad, KeyError)


async def test_chunks_before_an_error_are_still_read() -> None:
    class Breaks(Model[int, int]):
        def stream(self, items: list[int]) -> Iterator[list[int]]:
            yield items
            yield items
            raise ValueError("broken")

    async with Batcher(Breaks()) as batcher:
        seen = []
        with pytest.raises(ModelFailed, match="ValueError: broken") as failed:  # noqa: PT012
            async for chunk in batcher.stream(1):
                seen.append(chunk)
        assert seen == [1, 1]
        assert isinstance(failed.value.__cause__, ValueError)


@pytest.mark.parametrize("entries", [0, 1, 3])
async def test_a_step_of_the_wrong_length_fails_that_batch_and_closes_the_generator(
    entries: int,
) -> None:
    closed = []

    class Wrong(Model[int, int]):
        def stream(self, items: list[int]) -> Iterator[list[int]]:
            try:
                yield [0] * entries
                yield items
            finally:
                closed.append(1)

    async with Batcher(Wrong()) as batcher:
        results = await asyncio.gather(read(batcher, 1), read(batcher, 2), return_exceptions=True)
    assert all(isinstance(result, ModelFailed) for result in results)
    assert f"yielded {entries} entries for 2 items" in str(results[0])
    assert closed == [1]


async def test_what_is_no_iterator_fails_its_batch() -> None:
    class NoStream(Model[int, int]):
        def stream(self, items: list[int]) -> Any:
            return 42

    async with Batcher(NoStream()) as batcher:
        with pytest.raises(ModelFailed):
            await read(batcher, 1)


async def test_a_reader_that_leaves_does_not_disturb_its_neighbours() -> None:
    model = Countdown()
    async with Batcher(model) as batcher:
        neighbour = asyncio.create_task(read(batcher, 4))
        async with aclosing(batcher.stream(100)) as stream:
            async for _ in stream:
                break
        assert await neighbour == [4, 3, 2, 1]
    assert [sorted(batch) for batch in model.batches] == [[4, 100]]


async def test_when_every_reader_has_left_the_generator_is_closed() -> None:
    model = Countdown()
    async with Batcher(model) as batcher:
        for _ in range(2):
            async with aclosing(batcher.stream(100)) as stream:
                assert await anext(stream) == 100
        await asyncio.sleep(0.1)
        assert model.closed == 2
        assert model.steps <= 4
        assert batcher.statistics().running_batches == 0


async def test_a_plain_generator_is_closed_too_when_every_reader_has_left() -> None:
    closed = []

    class Endless(Model[int, int]):
        def stream(self, items: list[int]) -> Iterator[list[int]]:
            try:
                while True:
                    yield items
            finally:
                closed.append(1)

    async with Batcher(Endless()) as batcher, aclosing(batcher.stream(1)) as stream:
        assert await anext(stream) == 1
    assert closed == [1]


async def test_a_reader_cancelled_in_the_queue_never_runs() -> None:
    model = Countdown()
    async with Batcher(model, max_batch_size=1) as batcher:
        running = asyncio.create_task(read(batcher, 2))
        await asyncio.sleep(0.001)
        queued = asyncio.create_task(read(batcher, 5))
        await asyncio.sleep(0.001)
        queued.cancel()
        assert await running == [2, 1]
    assert model.batches == [[2]]


async def test_a_reader_that_falls_too_far_behind_is_cut_off() -> None:
    produced = 0

    class Fast(Model[int, int]):
        async def stream(self, items: list[int]) -> AsyncIterator[list[int]]:
            nonlocal produced
            while True:
                await asyncio.sleep(0.001)
                produced += 1
                yield items

    async with Batcher(Fast()) as batcher:
        slow = batcher.stream(1)
        assert await anext(slow) == 1
        quick = batcher.stream(2)
        await asyncio.sleep(3600)
        with pytest.raises(Shed, match=str(MAX_BACKLOG)):  # noqa: PT012
            while True:
                await anext(slow)
        assert produced <= MAX_BACKLOG + 2
        assert await anext(quick) == 2  # the worker is free again
        await quick.aclose()


@pytest.mark.parametrize("chunk", ["a" * 2**20, b"a" * 2**20, numpy.zeros(2**20, numpy.uint8)])
async def test_so_is_one_that_is_behind_by_few_large_chunks(chunk: Any) -> None:
    produced = 0

    class Large(Model[int, Any]):
        async def stream(self, items: list[int]) -> AsyncIterator[list[Any]]:
            nonlocal produced
            while True:
                await asyncio.sleep(0.001)
                produced += 1
                yield [chunk for _ in items]

    async with Batcher(Large()) as batcher:
        slow = batcher.stream(1)
        for _ in range(20):  # a reader that keeps reading is never behind
            assert len(await anext(slow)) == 2**20
        await asyncio.sleep(3600)
        with pytest.raises(Shed, match=str(MAX_BACKLOG_BYTES)):  # noqa: PT012
            while True:
                await anext(slow)
        assert produced <= 20 + MAX_BACKLOG_BYTES // 2**20 + 2


async def test_a_backlog_holds_no_more_than_it_may_but_for_one_large_chunk() -> None:
    """The chunk that came when almost all was used went on top."""
    call = StreamCall(0, None, asyncio.get_running_loop())
    chunk = b"a" * (MAX_BACKLOG_BYTES // 4 + 1)
    for _ in range(5):
        call.put(chunk)
    assert call.has_ended
    assert call.take() == [chunk] * 3
    other = StreamCall(0, None, asyncio.get_running_loop())
    other.put(b"a" * (MAX_BACKLOG_BYTES + 1))
    assert not other.has_ended
    other.put(b"a")
    assert other.has_ended


async def test_a_deadline_holds_in_the_queue_of_streams_too() -> None:
    async with Batcher(Countdown(), max_batch_size=1) as batcher:
        running = asyncio.create_task(read(batcher, 9))
        await asyncio.sleep(0.001)
        with pytest.raises(Exception, match="deadline"):
            await read(batcher, 1, deadline_ms=20)
        assert now() == pytest.approx(0.021)
        await running


async def test_one_model_may_predict_and_stream_and_the_two_never_share_a_batch() -> None:
    class Both(Model[int, int]):
        def predict(self, items: list[int]) -> list[int]:
            return [n * 2 for n in items]

        def stream(self, items: list[int]) -> Iterator[list[int]]:
            yield items
            yield [n * 2 for n in items]

    async with Batcher(Both()) as batcher:
        assert await asyncio.gather(batcher.submit(1), read(batcher, 1)) == [2, [1, 2]]


@pytest.mark.parametrize("streams_async", [True, False])
def test_a_model_that_is_half_async_is_refused(streams_async: bool) -> None:
    class Plain(Model[int, int]):
        def predict(self, items: list[int]) -> list[int]:
            return items

        async def stream(self, items: list[int]) -> AsyncIterator[list[int]]:
            yield items

    class Async(Model[int, int]):
        async def predict(self, items: list[int]) -> list[int]:  # type: ignore[override]
            return items

        def stream(self, items: list[int]) -> Iterator[list[int]]:
            yield items

    with pytest.raises(ConfigError, match=r"model: predict and stream of .* must both be `def`"):
        Batcher(Plain() if streams_async else Async())


async def test_a_stream_whose_own_work_is_cancelled_fails_like_any_other() -> None:
    class Shaky(Model[int, int]):
        async def stream(self, items: list[int]) -> AsyncIterator[list[int]]:
            yield items
            raise asyncio.CancelledError("a task of the model's own")

    async with Batcher(Shaky()) as batcher:
        errors = await asyncio.gather(*(read(batcher, n) for n in (1, 2)), return_exceptions=True)
    assert [type(error) for error in errors] == [ModelFailed, ModelFailed]
    assert errors[0] is not errors[1]


async def test_a_stream_that_was_cut_off_does_not_look_complete() -> None:
    class Ends(Model[int, int]):
        async def stream(self, items: list[int]) -> AsyncIterator[list[int]]:
            yield items
            task = asyncio.current_task()
            assert task is not None
            task.cancel()  # as the end of its event loop does
            await asyncio.sleep(1.0)

    async with Batcher(Ends()) as batcher:
        with pytest.raises(Closed):
            await read(batcher, 1)


async def test_a_model_that_does_not_stream_says_so() -> None:
    class Plain(Model[int, int]):
        def predict(self, items: list[int]) -> list[int]:
            return items

    async with Batcher(Plain()) as batcher:
        with pytest.raises(InvalidInput, match="does not stream"):
            await read(batcher, 1)
    async with Batcher(lambda values: values, name="f") as batcher:
        with pytest.raises(InvalidInput, match="does not stream"):
            await read(batcher, 1)


async def test_prepare_and_size_come_before_a_stream() -> None:
    class Words(Model[list[str], str]):
        def prepare(self, raw: str) -> list[str]:
            return raw.split()

        def size(self, item: list[str]) -> int:
            return len(item)

        def stream(self, items: list[list[str]]) -> Iterator[list[Any]]:
            for step in range(max(map(len, items))):
                yield [item[step] if step < len(item) else END for item in items]

    async with Batcher(Words()) as batcher:
        assert await asyncio.gather(read(batcher, "a b c"), read(batcher, "d")) == [
            ["a", "b", "c"],
            ["d"],
        ]


@pytest.mark.real_time
async def test_a_stream_from_a_worker_thread_keeps_its_order() -> None:
    class Many(Model[int, int]):
        def stream(self, items: list[int]) -> Iterator[list[Any]]:
            for step in range(1000):
                yield [item * 1000 + step for item in items]
            yield [END for _ in items]
            raise AssertionError("everyone has ended")

    async with asyncio.timeout(20), Batcher(Many()) as batcher:
        results = await asyncio.gather(*(read(batcher, n) for n in range(5)))
    assert results == [[n * 1000 + step for step in range(1000)] for n in range(5)]


@pytest.mark.real_time
async def test_a_stream_ends_when_its_readers_loop_is_closed_under_it() -> None:
    ended = threading.Event()

    class Endless(Model[int, int]):
        def stream(self, items: list[int]) -> Iterator[list[int]]:
            try:
                while True:
                    yield items
            finally:
                ended.set()

    async with asyncio.timeout(10), Batcher(Endless()) as batcher:
        stream = batcher.stream(1)

        def elsewhere() -> None:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(anext(stream))
            loop.close()

        await asyncio.to_thread(elsewhere)
        assert await asyncio.to_thread(ended.wait, 10)
        await stream.aclose()


@pytest.mark.real_time
async def test_a_stream_that_calls_sys_exit_fails_its_batch_and_its_thread_survives() -> None:
    class Exits(Model[int, int]):
        def stream(self, items: list[int]) -> Iterator[list[int]]:
            yield items
            if 13 in items:
                raise SystemExit
            yield items

    async with asyncio.timeout(10), Batcher(Exits()) as batcher:
        with pytest.raises(ModelFailed, match="SystemExit"):
            await read(batcher, 13)
        assert await read(batcher, 1) == [1, 1]


class _CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often another thread has something for it."""

    calls = 0

    def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        return super().call_soon_threadsafe(*arguments, **options)


def test_a_step_of_many_streams_is_one_hand_over() -> None:
    steps, streams = 40, 32

    class Steps(Model[int, int]):
        def stream(self, items: list[int]) -> Iterator[list[int]]:
            for number in range(steps):
                yield [number for _ in items]

    async def read_all() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _CountingLoop)
        async with Batcher(Steps(), max_batch_size=streams, policy="static") as batcher:
            before = loop.calls
            for chunks in await asyncio.gather(*(read(batcher, n) for n in range(streams))):
                assert chunks == list(range(steps))
            return loop.calls - before

    with asyncio.Runner(loop_factory=_CountingLoop) as runner:
        assert runner.run(read_all()) <= steps + 8  # a step is one; and starting, ending


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_stream_that_has_begun_ends_with_the_error_of_its_batch(is_async: bool) -> None:
    """And no chunk is read twice; a neighbour that has none yet starts over."""

    class Breaking(Model[str, str]):
        def stream(self, items: list[str]) -> Iterator[list[str | None]]:
            yield [None if item == "slow" else "a" for item in items]
            if "bad" in items:
                raise RuntimeError("a bad item")
            yield ["b" for _ in items]

    class AsyncBreaking(Breaking):
        async def stream(self, items: list[str]) -> AsyncIterator[list[str | None]]:  # type: ignore[override]
            for step in super().stream(items):
                yield step

    chunks: dict[str, list[Any]] = {"good": [], "bad": [], "slow": []}

    async def read_all(batcher: Batcher[str, str], value: str) -> None:
        async for chunk in batcher.stream(value):
            chunks[value].append(chunk)

    model = AsyncBreaking() if is_async else Breaking()
    async with Batcher(model, max_batch_size=3, policy="static") as batcher:
        good, bad, slow = await asyncio.gather(
            *(read_all(batcher, value) for value in chunks), return_exceptions=True
        )
    for error in (good, bad):
        assert isinstance(error, ModelFailed)
        assert "a bad item" in str(error)
    assert slow is None
    assert chunks == {"good": ["a"], "bad": ["a"], "slow": ["b"]}


@pytest.mark.parametrize(("size", "a_turn"), [(1, 8), (AT_ONCE_BYTES // 2, 3), (2**20, 1)])
async def test_readers_of_much_are_told_a_few_in_a_turn(size: int, a_turn: int) -> None:
    """Eight readers of a megabyte each encoded and wrote it in the same turn of the loop."""
    loop, told = asyncio.get_running_loop(), list[int]()
    calls = [StreamCall(number, None, loop) for number in range(8)]
    for number, call in enumerate(calls):
        call.reader = lambda number=number: told.append(number)  # type: ignore[misc]
    assert all(call.put("a" * size) for call in calls)
    wake_all(calls)
    for turn in range(8 // a_turn + 1):
        assert told == list(range(min(8, a_turn * (turn + 1))))
        await asyncio.sleep(0)
    assert told == list(range(8))


async def test_a_backlog_is_taken_in_parts() -> None:
    call = StreamCall(1, None, asyncio.get_running_loop())
    chunks = ["a" * 100, "b" * AT_ONCE_BYTES, "c", "d"]
    assert all(call.put(chunk) for chunk in chunks)
    assert call.take(AT_ONCE_BYTES) == chunks[:2]
    assert not call.is_waiting()
    assert call.take(AT_ONCE_BYTES) == chunks[2:]
    assert call.is_waiting()
