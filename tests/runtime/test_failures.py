"""When the model fails: one bad item never hurts a neighbour, and nobody is left waiting."""

import asyncio
import gc
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from compiling import replace_in_scheduler
from headway import END, Batcher, Closed, DeadlineExceeded, InvalidInput, Model, ModelFailed
from headway.events import Crashed
from headway.runtime.workers.thread import ThreadWorker
from headway.testing import FakeModel, Recorder


async def outcomes(batcher: Batcher[Any, Any], values: Any) -> list[Any]:
    return await asyncio.gather(*(batcher.submit(v) for v in values), return_exceptions=True)


# ---- an item's own error


async def test_a_result_that_is_an_exception_is_that_items_own_error() -> None:
    async def halve(values: list[int]) -> list[int | Exception]:
        return [v // 2 if v % 2 == 0 else KeyError(v) for v in values]

    async with Batcher(halve) as batcher:
        results = await outcomes(batcher, range(4))
    assert [results[0], results[2]] == [0, 1]
    assert [type(results[1]), type(results[3])] == [KeyError, KeyError]
    assert results[3].args == (3,)


@pytest.mark.parametrize(
    "of_one", [lambda item: item["x"], lambda item: item**2, lambda item: item.x]
)
async def test_who_writes_predict_for_one_item_is_told_that_it_gets_a_list(
    of_one: Callable[[Any], Any],
) -> None:
    async with Batcher(lambda items: of_one(items), name="mine") as batcher:
        with pytest.raises(
            ModelFailed, match=r"mine raised .*given a list of items; headway\.sing"
        ):
            await batcher.submit({"x": 1})


async def test_an_items_own_error_causes_no_rerun() -> None:
    recorder = Recorder()
    async with Batcher(lambda values: [OSError() for _ in values], observers=[recorder]) as batcher:
        await outcomes(batcher, range(4))
    assert [(batch.reruns, batch.failed) for batch in recorder.batches] == [(0, 4)]


async def test_even_a_stop_iteration_reaches_its_caller_and_nobody_else() -> None:
    # a future refuses to hold one: it would end the generator that awaits it
    async with Batcher(lambda values: [StopIteration(), 1, 2]) as batcher:
        first, *others = await outcomes(batcher, "abc")
    assert isinstance(first, ModelFailed)
    assert isinstance(first.__cause__, StopIteration)
    assert others == [1, 2]


async def test_a_result_that_cannot_even_be_looked_at_is_its_callers_as_it_is() -> None:
    class Hostile:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            raise RuntimeError("do not look at me")

    async with Batcher(lambda values: [0, Hostile(), 2]) as batcher:
        results = await outcomes(batcher, "abc")
    assert [results[0], results[2]] == [0, 2]
    assert type(results[1]) is Hostile


# ---- a batch that raises


async def test_one_culprit_among_64_is_found_and_63_are_answered() -> None:
    for culprit in (0, 31, 32, 63):
        model = FakeModel(poison=lambda value, culprit=culprit: value == culprit)
        recorder = Recorder()
        async with Batcher(model, observers=[recorder]) as batcher:
            results = await outcomes(batcher, range(64))
        error = results.pop(culprit)
        assert isinstance(error, ModelFailed)
        assert isinstance(error.__cause__, ValueError)
        assert "poisoned batch" in str(error)
        assert results == [2 * n for n in range(64) if n != culprit]
        [batch] = recorder.batches
        assert 1 <= batch.reruns <= 12
        assert batch.failed == 1
        assert len(model.batches) == 1 + batch.reruns


async def test_several_culprits_are_found_too() -> None:
    model = FakeModel(poison=lambda value: value in (3, 9))
    async with Batcher(model) as batcher:
        results = await outcomes(batcher, range(16))
    assert [n for n, result in enumerate(results) if isinstance(result, ModelFailed)] == [3, 9]


async def test_every_caller_gets_an_exception_of_its_own() -> None:
    async with Batcher(FakeModel(poison=lambda value: True), max_reruns=0) as batcher:
        errors = await outcomes(batcher, range(8))
    assert len({id(error) for error in errors}) == 8


async def test_reruns_are_bounded_when_everyone_is_bad() -> None:
    model = FakeModel(poison=lambda value: True)
    async with Batcher(model) as batcher:
        results = await outcomes(batcher, range(64))
    assert all(isinstance(result, ModelFailed) for result in results)
    assert len(model.batches) <= 17


async def test_reruns_can_be_limited_and_switched_off() -> None:
    for limit in (0, 3):
        model = FakeModel(poison=lambda value: value == 5)
        async with Batcher(model, max_reruns=limit) as batcher:
            results = await outcomes(batcher, range(64))
        assert len(model.batches) == 1 + limit
        assert isinstance(results[5], ModelFailed)
        assert all(r == 2 * n for n, r in enumerate(results) if not isinstance(r, ModelFailed))


async def test_a_model_may_forbid_reruns() -> None:
    class Charges(Model[int, int]):
        rerun = False
        batches = 0

        def predict(self, items: list[int]) -> list[int]:
            self.batches += 1
            raise ValueError("declined")

    model = Charges()
    async with Batcher(model) as batcher:
        results = await outcomes(batcher, range(8))
    assert model.batches == 1
    assert all(isinstance(result, ModelFailed) for result in results)


async def test_a_lone_item_that_fails_is_not_run_again() -> None:
    model = FakeModel(poison=lambda value: True)
    async with Batcher(model) as batcher:
        await outcomes(batcher, [1])
    assert model.batches == [[1]]


async def test_the_batcher_lives_on_after_a_failure() -> None:
    async with Batcher(FakeModel(poison=lambda value: value == 1)) as batcher:
        assert isinstance((await outcomes(batcher, [1]))[0], ModelFailed)
        assert await batcher.submit(2) == 4
        assert batcher.statistics().crashed is None


async def test_a_caller_that_left_during_the_reruns_is_no_problem() -> None:
    model = FakeModel(poison=lambda value: value == 1, cost_s=0.010)
    async with Batcher(model) as batcher:
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(8)]
        await asyncio.sleep(0.015)
        calls[0].cancel()
        calls[1].cancel()
        assert await asyncio.gather(*calls[2:]) == [2 * n for n in range(2, 8)]


def reverse(values: list[int]) -> None:
    values.reverse()


def drop_the_first(values: list[int]) -> None:
    values.pop(0)


mutations = pytest.mark.parametrize("mutate", [reverse, drop_the_first, list.clear])


@mutations
async def test_a_model_that_changes_its_list_and_raises_gets_the_callers_values_again(
    mutate: Callable[[list[int]], None],
) -> None:
    async def model(values: list[int]) -> list[int]:
        given = list(values)
        mutate(values)
        if 3 in given:
            raise ValueError("three")
        return [value * 2 for value in given]

    async with Batcher(model) as batcher:
        results = await outcomes(batcher, range(8))
    assert isinstance(results.pop(3), ModelFailed)
    assert results == [0, 2, 4, 8, 10, 12, 14]


@pytest.mark.real_time
@mutations
async def test_so_does_one_in_a_thread(mutate: Callable[[list[int]], None]) -> None:
    def model(values: list[int]) -> list[int]:
        given = list(values)
        mutate(values)
        if 3 in given:
            raise ValueError("three")
        return [value * 2 for value in given]

    async with Batcher(model) as batcher:
        results = await outcomes(batcher, range(8))
    assert isinstance(results.pop(3), ModelFailed)
    assert results == [0, 2, 4, 8, 10, 12, 14]


async def test_a_model_whose_own_work_is_cancelled_fails_like_any_other() -> None:
    async def shaky(values: list[int]) -> list[int]:
        if 1 in values:
            raise asyncio.CancelledError("a task of the model's own")
        return values

    async with Batcher(shaky) as batcher:
        first, second = await outcomes(batcher, [1, 2])
        assert await batcher.submit(3) == 3
    assert isinstance(first, ModelFailed)
    assert isinstance(first.__cause__, asyncio.CancelledError)
    assert second == 2


async def test_when_a_models_own_work_is_cancelled_every_caller_gets_its_own_exception() -> None:
    async def shaky(values: list[int]) -> list[int]:
        raise asyncio.CancelledError

    async with Batcher(shaky, max_reruns=0) as batcher:
        errors = await outcomes(batcher, range(8))
    assert {type(error) for error in errors} == {ModelFailed}
    assert len({id(error) for error in errors}) == 8


async def test_callers_of_a_batch_that_was_cancelled_get_an_exception_each() -> None:
    async def model(values: list[int]) -> list[int]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # as the end of its event loop does
        await asyncio.sleep(1.0)
        return values

    async with Batcher(model) as batcher:
        errors = await outcomes(batcher, range(8))
    assert {type(error) for error in errors} == {Closed}
    assert len({id(error) for error in errors}) == 8


# ---- broken contracts


def answers_with(result: Any) -> Callable[[list[Any]], Any]:
    calls = 0

    def predict(values: list[Any]) -> Any:
        nonlocal calls
        calls += 1
        return result if calls == 1 else values

    return predict


@pytest.mark.parametrize(
    "result",
    [[], [1], [1, 2, 3], None, {1: 1, 2: 2}, "ab", b"ab", 7, (n for n in range(2)), {1, 2}],
    ids=lambda result: type(result).__name__,
)
async def test_a_result_of_the_wrong_kind_fails_that_batch_only_and_without_reruns(
    result: Any,
) -> None:
    recorder = Recorder()
    async with Batcher(answers_with(result), name="wrong", observers=[recorder]) as batcher:
        errors = await outcomes(batcher, [1, 2])
        assert [type(error) for error in errors] == [ModelFailed, ModelFailed]
        assert all("wrong returned" in str(error) for error in errors)
        assert errors[0] is not errors[1]
        assert await batcher.submit(3) == 3
    assert [(batch.reruns, batch.failed) for batch in recorder.batches] == [(0, 2), (0, 0)]


@pytest.mark.parametrize("result", [(1, 2), range(1, 3), {1: 1, 2: 2}.values()])
async def test_any_ordered_collection_of_the_right_length_will_do(result: Any) -> None:
    async with Batcher(answers_with(result)) as batcher:
        assert await outcomes(batcher, [1, 2]) == [1, 2]


async def test_an_array_of_results_is_split_by_rows() -> None:
    import numpy

    async with Batcher(lambda values: numpy.array(values) * 2) as batcher:
        assert await outcomes(batcher, [1, 2]) == [2, 4]


# ---- what would end a thread


@pytest.mark.real_time
@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError])
async def test_a_model_that_tries_to_end_its_thread_is_answered_for_and_the_thread_survives(
    end: type[BaseException],
) -> None:
    def predict(values: list[int]) -> list[threading.Thread]:
        if 13 in values:
            raise end()
        return [threading.current_thread() for _ in values]

    async with asyncio.timeout(10), Batcher(predict) as batcher:
        thread = await batcher.submit(1)
        results = await outcomes(batcher, [12, 13, 14])
        assert results[0] is results[2] is thread
        assert isinstance(results[1], ModelFailed)
        assert isinstance(results[1].__cause__, end)
        assert await batcher.submit(2) is thread


@pytest.mark.real_time
async def test_a_model_that_calls_sys_exit_does_not_end_the_process() -> None:
    def predict(values: list[int]) -> list[int]:
        sys.exit("bye")

    async with asyncio.timeout(10), Batcher(predict) as batcher:
        with pytest.raises(ModelFailed, match="SystemExit: bye"):
            await batcher.submit(1)


# ---- when we fail ourselves


class TurnsHostile:
    """A partition whose hash works a few times, then raises: a bug right inside the scheduler."""

    def __init__(self, works: int) -> None:
        self.works = works

    def __hash__(self) -> int:
        self.works -= 1
        if self.works < 0:
            raise RuntimeError("no more hashes")
        return 1


async def test_a_crash_answers_everyone_and_stays_visible(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    batcher = Batcher(FakeModel(cost_s=0.010), max_batch_size=1, observers=[recorder])
    await batcher.__aenter__()
    calls = [asyncio.create_task(batcher.submit(1))]
    await asyncio.sleep(0.001)
    calls += [asyncio.create_task(batcher.submit(n)) for n in (2, 3)]
    calls += [asyncio.create_task(batcher.submit(4, partition=TurnsHostile(4)))]
    async with asyncio.timeout(1.0):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert any(isinstance(result, Closed) for result in results)
    assert all(isinstance(r, Exception) or r == 2 * n for n, r in enumerate(results, start=1))
    crash = batcher.statistics().crashed
    assert isinstance(crash, Exception)
    assert not batcher.statistics().is_open
    with pytest.raises(Closed, match="crashed") as refused:
        await batcher.submit(5)
    assert refused.value.__cause__ is crash
    await asyncio.sleep(1.0)  # whatever was running has come back
    with pytest.raises(Closed, match="crashed") as left:
        await batcher.__aexit__(None, None, None)
    assert left.value.__cause__ is crash
    assert [event.error for event in recorder.events if isinstance(event, Crashed)] == [crash]
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


@pytest.mark.parametrize("good_decisions", range(8))
async def test_wherever_the_scheduler_breaks_nobody_is_left_waiting(good_decisions: int) -> None:
    model = FakeModel(cost_s=0.010)
    batcher = Batcher(model, max_batch_size=1, workers=2)
    scheduler = batcher._decider.queue.scheduler
    decide, left = scheduler.next_action, good_decisions

    def breaks(now: float) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("broken")
        return decide(now)

    await batcher.__aenter__()
    replace_in_scheduler(batcher, next_action=breaks)
    calls = [asyncio.create_task(batcher.submit(n)) for n in range(3)]
    calls.append(asyncio.create_task(batcher.submit(3, deadline_ms=10)))
    _, pending = await asyncio.wait(calls, timeout=1.0)
    assert not pending
    for n, call in enumerate(calls):
        error = call.exception()
        assert isinstance(error, Closed | DeadlineExceeded) if error else call.result() == 2 * n
    with pytest.raises(Closed, match="crashed"):
        await batcher.__aexit__(None, None, None)


@pytest.mark.parametrize("good_jobs", range(3))
async def test_when_a_job_cannot_be_made_nobody_is_left_waiting(
    good_jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = Batcher(FakeModel(cost_s=0.010), max_batch_size=2, workers=2)
    make, left = batcher._parts.maker.make_job, good_jobs

    def breaks(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("broken")
        return make(*arguments)

    await batcher.__aenter__()
    monkeypatch.setattr(batcher._parts.maker, "make_job", breaks)
    calls = [asyncio.create_task(batcher.submit(n)) for n in range(8)]
    _, pending = await asyncio.wait(calls, timeout=1.0)
    assert not pending
    for n, call in enumerate(calls):
        assert isinstance(call.exception(), Closed) or call.result() == 2 * n
    with pytest.raises(Closed, match="crashed"):
        await batcher.__aexit__(None, None, None)


async def test_a_call_that_breaks_the_scheduler_while_somebody_else_looks_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batcher = Batcher(FakeModel())
    await batcher.__aenter__()

    def breaks(items: Any) -> Any:
        raise RuntimeError("broken")

    replace_in_scheduler(batcher, submit_alike=breaks)
    call = asyncio.create_task(batcher.submit(1))
    await asyncio.sleep(0)  # noted, not yet queued
    with pytest.raises(RuntimeError, match="broken"):
        batcher.statistics()
    with pytest.raises(Closed, match="crashed"):
        async with asyncio.timeout(1.0):
            await call
    with pytest.raises(Closed, match="crashed"):
        await batcher.__aexit__(None, None, None)


@pytest.mark.real_time
async def test_a_job_that_raises_does_not_end_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        async def work(self) -> None:
            raise RuntimeError("a bug of ours")

    class Sets(Broken):
        def __init__(self) -> None:
            self.is_run = threading.Event()

        async def work(self) -> None:
            self.is_run.set()

    worker, second = ThreadWorker("headway-survivor"), Sets()
    worker.start(Broken())
    worker.start(second)
    assert await asyncio.to_thread(second.is_run.wait, 10)
    worker.stop()
    assert "a bug of ours" in caplog.text


@pytest.mark.real_time
async def test_a_crashed_batcher_releases_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = Batcher(lambda values: values, name="crashing")
    await batcher.__aenter__()
    [thread] = [t for t in threading.enumerate() if t.name.startswith("headway-crashing")]

    def breaks(now: float) -> Any:
        raise RuntimeError("broken")

    replace_in_scheduler(batcher, next_action=breaks)
    with pytest.raises(Closed):
        await batcher.submit(1)
    with pytest.raises(Closed, match="crashed"):
        await batcher.__aexit__(None, None, None)
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")


@pytest.mark.real_time
async def test_an_error_that_cannot_be_told_is_told_all_the_same() -> None:
    def predict(items: list[int]) -> list[int]:
        if 1 in items:
            raise Unspeakable
        return items

    async with Batcher(predict) as batcher:
        for _ in range(2):  # and its worker is there for the next
            results = await asyncio.gather(
                *(batcher.submit(n) for n in range(3)), return_exceptions=True
            )
            assert [results[0], results[2]] == [0, 2]
            assert isinstance(results[1], ModelFailed)
            assert "Unspeakable" in str(results[1])


# ---- models that would end the process


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_model_that_would_end_the_process_hurts_only_its_caller(
    error: type[BaseException], is_async: bool
) -> None:
    def predict(items: list[int]) -> list[int]:
        if 1 in items:
            raise error("enough")
        return items

    async def predict_async(items: list[int]) -> list[int]:
        return predict(items)

    async with Batcher(predict_async if is_async else predict) as batcher:
        results = await outcomes(batcher, [0, 1, 2, 3])
        assert await batcher.submit(4) == 4
    assert [results[0], *results[2:]] == [0, 2, 3]
    assert isinstance(results[1], ModelFailed)
    assert f"{error.__name__}: enough" in str(results[1])


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_stream_that_would_end_the_process_hurts_only_its_reader(
    error: type[BaseException], is_async: bool
) -> None:
    class Streams(Model[int, int]):
        def stream(self, items: list[int]) -> Any:
            if 1 in items:
                raise error("enough")
            yield items
            yield [END for _ in items]

    class StreamsAsync(Model[int, int]):
        async def stream(self, items: list[int]) -> Any:
            for step in Streams().stream(items):
                yield step

    async def read(batcher: Batcher[int, int], item: int) -> list[int]:
        return [chunk async for chunk in batcher.stream(item)]

    async with Batcher(StreamsAsync() if is_async else Streams()) as batcher:
        results = await asyncio.gather(
            *(read(batcher, item) for item in range(4)), return_exceptions=True
        )
    assert [results[0], *results[2:]] == [[0], [2], [3]]
    assert isinstance(results[1], ModelFailed)


async def test_a_warm_up_that_would_end_the_process_is_an_error() -> None:
    async def leave(items: list[int]) -> list[int]:
        raise SystemExit(3)

    async with Batcher(leave) as batcher:
        with pytest.raises(ModelFailed, match="SystemExit"):
            await batcher.warm_up(1)


@pytest.mark.real_time
def test_an_async_model_is_cut_short_with_its_event_loop() -> None:
    """A loop that is closed under it throws GeneratorExit into it: that is not the model's."""

    async def wait(items: list[int]) -> list[int]:
        await asyncio.Event().wait()
        return items

    async def open_and_leave() -> None:
        batcher: Batcher[int, int] = await Batcher(wait).__aenter__()
        calls.append(asyncio.ensure_future(batcher.submit(1)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    calls: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(open_and_leave())
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tasks that were left behind
        calls.clear()
        gc.collect()


@pytest.mark.parametrize("company", [0, 1, 5])
async def test_an_error_of_ours_that_the_model_raises_is_its_callers_own(company: int) -> None:
    """Alone or found among others; the others get their answers."""

    async def picky(items: list[int]) -> list[int]:
        if 13 in items:
            raise InvalidInput("13 is not taken")
        return items

    async with Batcher(picky, max_wait_ms=5, policy="window") as batcher:
        results = await asyncio.gather(
            *(batcher.submit(value) for value in (13, *range(company))), return_exceptions=True
        )
    assert isinstance(results[0], InvalidInput)
    assert str(results[0]) == "13 is not taken"
    assert results[1:] == list(range(company))


async def test_where_a_batch_is_not_run_again_nobody_is_told_that_it_was_his_fault() -> None:
    async def picky(items: list[int]) -> list[int]:
        raise InvalidInput("one of you")

    async with Batcher(picky, max_wait_ms=5, policy="window", max_reruns=0) as batcher:
        results = await asyncio.gather(*map(batcher.submit, range(3)), return_exceptions=True)
    assert [type(each) for each in results] == [ModelFailed] * 3
