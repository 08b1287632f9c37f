"""prepare, size and finish: the user's callbacks around a batch, and what their failures touch."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from headway import (
    Batcher,
    Closed,
    ConfigError,
    DeadlineExceeded,
    InvalidInput,
    Model,
    ModelFailed,
    QueueFull,
)
from headway.events import Refused
from headway.testing import FakeModel, Recorder, now


async def outcomes(batcher: Batcher[Any, Any], values: Any) -> list[Any]:
    return await asyncio.gather(*(batcher.submit(v) for v in values), return_exceptions=True)


def work(seconds: float) -> None:
    """Tokenising takes its time."""
    done_at = time.monotonic() + seconds
    while time.monotonic() < done_at:
        pass


def odd_ones_raise(value: int) -> int:
    if value % 2:
        raise KeyError(value)
    return value


async def test_what_prepare_returns_is_what_is_batched() -> None:
    model = FakeModel()
    async with Batcher(model, prepare=len) as batcher:
        assert await batcher.many(["a", "bbb"]) == [2, 6]
    assert model.batches == [[1, 3]]


async def test_size_sees_the_prepared_item() -> None:
    recorder = Recorder()
    async with Batcher(FakeModel(), prepare=str.split, size=len, observers=[recorder]) as batcher:
        await batcher.submit("three short words")
    assert recorder.batches[0].batch.size == 3


async def test_a_prepare_that_raises_hurts_only_its_caller() -> None:
    model = FakeModel()
    async with Batcher(model, prepare=odd_ones_raise) as batcher:
        results = await outcomes(batcher, range(4))
    assert [results[0], results[2]] == [0, 4]
    assert [type(results[1]), type(results[3])] == [ModelFailed, ModelFailed]
    assert isinstance(results[1].__cause__, KeyError)
    assert str(results[1]) == "prepare raised KeyError: 1"
    assert model.batches == [[0, 2]]


async def test_a_size_that_raises_hurts_only_its_caller() -> None:
    model = FakeModel()
    async with Batcher(model, size=odd_ones_raise) as batcher:
        results = await outcomes(batcher, range(4))
    assert [results[0], results[2]] == [0, 4]
    assert isinstance(results[1], ModelFailed)
    assert str(results[1]) == "size raised KeyError: 1"
    assert sorted(value for batch in model.batches for value in batch) == [0, 2]


@pytest.mark.parametrize("bad", [-1, 1.5, None, "7", float("nan"), [3]])
@pytest.mark.parametrize("prepare", [None, lambda value: value])
async def test_a_bad_size_hurts_only_its_caller(
    bad: Any, prepare: Callable[[Any], Any] | None
) -> None:
    model = FakeModel()
    async with Batcher(
        model, size=lambda value: bad if value == 1 else 5, prepare=prepare
    ) as batcher:
        results = await outcomes(batcher, range(3))
    assert [results[0], results[2]] == [0, 4]
    assert isinstance(results[1], InvalidInput)
    assert "whole number" in str(results[1])


async def test_a_size_may_be_one_of_numpys_integers() -> None:
    recorder = Recorder()
    async with Batcher(
        FakeModel(), size=lambda value: numpy.int64(7), observers=[recorder]
    ) as batcher:
        await batcher.submit(1)
    assert recorder.batches[0].batch.size == 7


async def test_an_error_of_ours_passes_through_prepare_as_it_is() -> None:
    def check(value: str) -> str:
        raise InvalidInput("too long")

    async with Batcher(FakeModel(), prepare=check) as batcher:
        with pytest.raises(InvalidInput, match="too long"):
            await batcher.submit("x")


async def test_a_model_brings_its_own_callbacks_and_arguments_override_them() -> None:
    class Words(Model[int, int]):
        def prepare(self, raw: str) -> int:
            return len(raw.split())

        def predict(self, items: list[int]) -> list[int]:
            return [n * 10 for n in items]

        def finish(self, result: int) -> str:
            return f"{result} points"

    async with Batcher(Words()) as batcher:
        assert await batcher.submit("two words") == "20 points"
    async with Batcher(Words(), prepare=len) as batcher:
        assert await batcher.submit("two words") == "90 points"


async def test_a_finish_that_raises_hurts_only_its_caller() -> None:
    class Odd(Model[int, int]):
        def predict(self, items: list[int]) -> list[int]:
            return items

        def finish(self, result: int) -> int:
            return odd_ones_raise(result)

    async with Batcher(Odd()) as batcher:
        results = await outcomes(batcher, range(4))
    assert [results[0], results[2]] == [0, 2]
    assert isinstance(results[1], ModelFailed)


async def test_finish_is_not_called_for_an_error() -> None:
    class Fails(Model[int, int]):
        def predict(self, items: list[int]) -> list[Any]:
            return [KeyError(n) for n in items]

        def finish(self, result: int) -> int:
            raise AssertionError("there is no result")

    async with Batcher(Fails()) as batcher:
        with pytest.raises(KeyError):
            await batcher.submit(1)


# ---- off the loop, on the real clock


@pytest.mark.real_time
async def test_prepare_and_finish_run_off_the_event_loop_and_size_with_prepare() -> None:
    here = threading.current_thread()
    seen: dict[str, threading.Thread] = {}

    class Where(Model[int, int]):
        def prepare(self, raw: int) -> int:
            seen["prepare"] = threading.current_thread()
            return raw

        def size(self, item: int) -> int:
            seen["size"] = threading.current_thread()
            return item

        def predict(self, items: list[int]) -> list[int]:
            seen["predict"] = threading.current_thread()
            return items

        def finish(self, result: int) -> int:
            seen["finish"] = threading.current_thread()
            return result

    async with Batcher(Where()) as batcher:
        assert await batcher.submit(1) == 1
    assert here not in seen.values()
    assert seen["prepare"] is seen["size"] is seen["finish"] is not seen["predict"]


@pytest.mark.real_time
async def test_the_loop_goes_on_while_prepare_is_busy() -> None:
    busy, let_go = threading.Event(), threading.Event()

    def prepare(value: int) -> int:
        busy.set()
        assert let_go.wait(10)
        return value

    async with Batcher(lambda values: values, prepare=prepare) as batcher:
        call = asyncio.create_task(batcher.submit(1))
        assert await asyncio.to_thread(busy.wait, 10)
        assert not call.done()
        let_go.set()
        assert await call == 1


@pytest.mark.real_time
async def test_the_first_prepared_does_not_wait_until_all_are_prepared() -> None:
    first_is_answered = threading.Event()

    def prepare(value: int) -> int:
        if value == 9:
            assert first_is_answered.wait(10)
        work(0.002)
        return value

    async with Batcher(lambda values: values, prepare=prepare) as batcher:
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(10)]
        await calls[0]
        first_is_answered.set()
        assert await asyncio.gather(*calls) == list(range(10))


@pytest.mark.real_time
@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
async def test_a_prepare_that_tries_to_end_its_thread_hurts_only_its_caller(
    end: type[BaseException],
) -> None:
    def prepare(value: int) -> int:
        if value == 13:
            raise end()
        return value

    async with asyncio.timeout(10), Batcher(lambda values: values, prepare=prepare) as batcher:
        results = await outcomes(batcher, [12, 13, 14])
        assert [results[0], results[2]] == [12, 14]
        assert isinstance(results[1], ModelFailed)
        assert await batcher.submit(15) == 15


@pytest.mark.real_time
async def test_a_call_with_prepare_after_closing_says_closed_instead_of_waiting() -> None:
    batcher = Batcher(lambda values: values, prepare=lambda value: value)
    async with asyncio.timeout(10):
        async with batcher:
            assert await batcher.submit(1) == 1
        with pytest.raises(Closed):
            await batcher.submit(1)


@pytest.mark.real_time
async def test_results_of_the_last_batches_are_finished_though_the_batcher_has_closed() -> None:
    class Slow(Model[int, int]):
        def predict(self, items: list[int]) -> list[int]:
            return items

        def finish(self, result: int) -> int:
            return -result

    def elsewhere(batcher: Batcher[int, int], values: list[int]) -> list[int]:
        return asyncio.run(batcher.many(values))

    async with asyncio.timeout(20):
        for _ in range(20):
            async with Batcher(Slow()) as batcher:
                threads = [
                    asyncio.ensure_future(asyncio.to_thread(elsewhere, batcher, [n]))
                    for n in range(3)
                ]
                await asyncio.sleep(0)
            for n, answer in enumerate(await asyncio.gather(*threads, return_exceptions=True)):
                assert answer == [-n] or isinstance(answer, Closed)


@pytest.mark.real_time
async def test_a_caller_that_leaves_during_prepare_is_not_queued() -> None:
    busy, let_go = threading.Event(), threading.Event()
    seen: list[int] = []

    def prepare(value: int) -> int:
        busy.set()
        assert let_go.wait(10)
        return value

    def predict(values: list[int]) -> list[int]:
        seen.extend(values)
        return values

    async with Batcher(predict, prepare=prepare) as batcher:
        leaving = asyncio.create_task(batcher.submit(1))
        assert await asyncio.to_thread(busy.wait, 10)
        leaving.cancel()
        staying = asyncio.create_task(batcher.submit(2))
        await asyncio.sleep(0)
        let_go.set()
        assert await staying == 2
    assert seen == [2]


class Prepared(Model[int, int]):
    """Prepares one value at a time, when it is told to."""

    def __init__(self) -> None:
        self.busy, self.let_go = threading.Event(), threading.Event()
        self.prepared: list[int] = []
        self.finished: list[int] = []

    def prepare(self, raw: int) -> int:
        self.prepared.append(raw)
        self.busy.set()
        assert self.let_go.wait(10)
        return raw

    def predict(self, items: list[int]) -> list[int]:
        return items

    def finish(self, result: int) -> int:
        self.finished.append(result)
        return result


@pytest.mark.real_time
async def test_callers_that_wait_for_prepare_are_limited_like_the_queue() -> None:
    model, recorder = Prepared(), Recorder()
    async with Batcher(model, max_queue=3, observers=[recorder]) as batcher:
        first = asyncio.create_task(batcher.submit(0))
        assert await asyncio.to_thread(model.busy.wait, 10)
        waiting = [asyncio.create_task(batcher.submit(n)) for n in (1, 2)]
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(QueueFull) as refused:
                await batcher.submit(4)
            assert refused.value.limit == 3
        waiting.pop().cancel()
        await asyncio.sleep(0)
        waiting.append(asyncio.create_task(batcher.submit(5)))  # there is room again
        await asyncio.sleep(0)
        model.let_go.set()
        assert await asyncio.gather(first, *waiting) == [0, 1, 5]
    refusals = [event.reason for event in recorder.events if isinstance(event, Refused)]
    assert refusals == ["queue_full", "queue_full"]


@pytest.mark.real_time
async def test_many_may_be_prepared_with_a_small_queue() -> None:
    model = Prepared()
    model.let_go.set()
    async with Batcher(model, max_queue=3) as batcher:
        assert await batcher.many(range(50)) == list(range(50))


@pytest.mark.real_time
async def test_nothing_is_prepared_for_callers_that_have_left() -> None:
    model = Prepared()
    async with Batcher(model) as batcher:
        first = asyncio.create_task(batcher.submit(0))
        assert await asyncio.to_thread(model.busy.wait, 10)
        leaving = [asyncio.create_task(batcher.submit(n)) for n in range(1, 300)]
        await asyncio.sleep(0)
        for call in leaving:
            call.cancel()
        await asyncio.wait(leaving)
        model.let_go.set()
        assert [await first, await batcher.submit(300)] == [0, 300]
    assert model.prepared == [0, 300]


@pytest.mark.real_time
async def test_answers_are_finished_before_others_are_prepared() -> None:
    order: list[str] = []
    second_is_busy, let_go = threading.Event(), threading.Event()

    class Ordered(Model[int, int]):
        def prepare(self, raw: int) -> int:
            order.append(f"prepare {raw}")
            if raw == 2:
                second_is_busy.set()
                assert let_go.wait(10)
            return raw

        def predict(self, items: list[int]) -> list[int]:
            return items

        def finish(self, result: int) -> int:
            order.append(f"finish {result}")
            return result

    recorder = Recorder()
    async with asyncio.timeout(10), Batcher(Ordered(), observers=[recorder]) as batcher:
        work_ahead = asyncio.create_task(batcher.submit(2))
        assert await asyncio.to_thread(second_is_busy.wait, 10)
        calls = [asyncio.create_task(batcher.submit(n)) for n in (3, 4)]
        await asyncio.sleep(0)
        # an answer that comes in now: past `prepare`, as its caller had prepared it before
        answer = asyncio.create_task(batcher._off_loop("finish", Ordered().finish, 1))
        await asyncio.sleep(0)
        let_go.set()
        await asyncio.gather(work_ahead, answer, *calls)
    assert order[:2] == ["prepare 2", "finish 1"]


@pytest.mark.real_time
async def test_a_slow_finish_alone_closes_the_door_too() -> None:
    busy, let_go = threading.Event(), threading.Event()

    class Slow(Model[int, int]):
        def predict(self, items: list[int]) -> list[int]:
            return items

        def finish(self, result: int) -> int:
            busy.set()
            assert let_go.wait(10)
            return result

    recorder = Recorder()
    async with (
        asyncio.timeout(10),
        Batcher(Slow(), max_queue=2, observers=[recorder]) as batcher,
    ):
        calls = [asyncio.create_task(batcher.submit(0))]
        assert await asyncio.to_thread(busy.wait, 10)
        calls += [asyncio.create_task(batcher.submit(n)) for n in (1, 2)]
        while sum(batch.batch.rows for batch in recorder.batches) < 3:
            await asyncio.wait([*calls], timeout=0.001)
        with pytest.raises(QueueFull, match="`finish`"):
            await batcher.submit(3)
        let_go.set()
        assert await asyncio.gather(*calls) == [0, 1, 2]


@pytest.mark.real_time
async def test_the_front_thread_ends_when_the_batcher_closes() -> None:
    async with Batcher(lambda v: v, prepare=lambda v: v, name="front-ends") as batcher:
        await batcher.submit(1)
        threads = [t for t in threading.enumerate() if t.name.startswith("headway-front-front-")]
        assert len(threads) == 1
    await asyncio.to_thread(threads[0].join, 10)
    assert not threads[0].is_alive()


@pytest.mark.real_time
async def test_a_deadline_counts_the_time_of_prepare() -> None:
    def prepare(value: int) -> int:
        work(0.010)
        return value

    async with Batcher(lambda values: values, prepare=prepare) as batcher:
        with pytest.raises(DeadlineExceeded):
            await batcher.submit(1, deadline_ms=5)


async def test_under_virtual_time_callbacks_run_inline() -> None:
    here = threading.current_thread()

    def prepare(value: int) -> int:
        assert threading.current_thread() is here
        return value

    async with Batcher(FakeModel(cost_s=0.010), prepare=prepare) as batcher:
        assert await batcher.submit(1) == 2
        assert now() == pytest.approx(0.010)


class Words(Model[int, int]):
    """Counts letters, several texts at once; odd ones one by one."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.singles: list[str] = []
        self.may_start = threading.Event()

    def prepare(self, raw: str) -> int:
        self.singles.append(raw)
        self.may_start.wait(20)
        if raw == "odd":
            raise InvalidInput("odd")
        return len(raw)

    def prepare_many(self, raws: list[str]) -> list[int]:
        self.groups.append(raws)
        if "odd" in raws:
            raise ValueError("one is odd")
        return [len(raw) for raw in raws]

    def size(self, item: int) -> int:
        return item

    def predict(self, items: list[int]) -> list[int]:
        return items


async def prepared_together(model: Words, texts: list[str]) -> list[Any]:
    """The first keeps the thread until all the others wait for it."""
    async with Batcher[Any, Any](model) as batcher:
        first = asyncio.create_task(batcher.submit("first"))
        while not model.singles:  # noqa: ASYNC110  the thread tells nobody
            await asyncio.sleep(0)
        others = [asyncio.create_task(batcher.submit(text)) for text in texts]
        await asyncio.sleep(0)
        model.may_start.set()
        assert await first == 5
        return await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.real_time
async def test_those_who_wait_are_prepared_together() -> None:
    model = Words()
    assert await prepared_together(model, ["a", "bb", "ccc"]) == [1, 2, 3]
    assert model.groups == [["a", "bb", "ccc"]]
    assert model.singles == ["first"]


@pytest.mark.real_time
async def test_one_that_breaks_the_group_is_found_one_by_one() -> None:
    model = Words()
    results = await prepared_together(model, ["a", "odd", "ccc"])
    assert [results[0], results[2]] == [1, 3]
    assert isinstance(results[1], InvalidInput)
    assert model.singles == ["first", "a", "odd", "ccc"]


@pytest.mark.real_time
async def test_a_prepare_of_its_own_is_not_passed_over() -> None:
    class Shouting(Words):
        def prepare(self, raw: str) -> int:
            return super().prepare(raw + "!")

    model = Shouting()
    async with Batcher[Any, Any](model) as batcher:
        model.may_start.set()
        assert await batcher.many(["a", "bb"]) == [2, 3]
    assert model.groups == []


@pytest.mark.real_time
async def test_who_leaves_before_the_group_is_prepared_hurts_nobody() -> None:
    model = Words()
    async with Batcher[Any, Any](model) as batcher:
        first = asyncio.create_task(batcher.submit("first"))
        while not model.singles:  # noqa: ASYNC110  the thread tells nobody
            await asyncio.sleep(0)
        others = [asyncio.create_task(batcher.submit(text)) for text in ("a", "bb")]
        await asyncio.sleep(0)
        for task in others:
            task.cancel()
        await asyncio.sleep(0)
        model.may_start.set()
        assert await first == 5
        assert await batcher.submit("later") == 5


async def _wait(value: Any) -> Any:
    return value


@pytest.mark.parametrize("method", ["setup", "load", "prepare", "prepare_many", "size", "finish"])
def test_an_async_callback_is_refused_by_name(method: str) -> None:
    async def awaited(self: Any, *_: Any) -> Any:
        return 1

    members = {"predict": lambda self, items: items, "prepare": lambda self, raw: raw}
    kind = type("Mine", (Model,), {**members, method: awaited})
    with pytest.raises(ConfigError, match=rf"{method}: {method} of Mine is `async def`; only"):
        Batcher(kind())


@pytest.mark.parametrize("method", ["setup", "load"])
def test_so_is_one_that_wants_what_nobody_has(method: str) -> None:
    def wants(self: Any, device: str) -> None: ...

    kind = type("Mine", (Model,), {"predict": lambda self, items: items, method: wants})
    with pytest.raises(ConfigError, match=rf"{method} of Mine wants 'device'.*compat\.litserve"):
        Batcher(kind())


@pytest.mark.parametrize("method", ["prepare", "size"])
def test_so_is_one_of_the_decorators(method: str) -> None:
    with pytest.raises(ConfigError, match=rf"{method} of echo is `async def`"):
        Batcher(lambda items: items, name="echo", **{method: _wait})  # type: ignore[arg-type]
