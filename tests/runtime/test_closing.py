"""Stopping: refuse, drain with a deadline, answer the rest, release. Nobody is left waiting."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from headway import Batcher, Closed, Model
from headway.events import Crashed, Refused, Stopped
from headway.testing import FakeModel, GatedModel, Recorder, now


def at(seconds: float) -> Any:
    return pytest.approx(seconds, abs=1e-6)


async def test_closing_finishes_what_is_queued_and_running() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, max_batch_size=2) as batcher:
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(6)]
        await asyncio.sleep(0.005)
    assert now() == at(0.030)
    assert [call.result() for call in calls] == [0, 2, 4, 6, 8, 10]


async def test_closing_does_not_wait_for_a_window() -> None:
    async with Batcher(FakeModel(cost_s=0.010), policy="window", max_wait_ms=5000) as batcher:
        call = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.001)
    assert now() == at(0.011)
    assert await call == 2


async def test_a_closing_batcher_refuses_new_calls() -> None:
    async with Batcher(FakeModel(cost_s=0.010)) as batcher:
        running = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.001)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0.001)
        with pytest.raises(Closed, match="is closing"):
            await batcher.submit(2)
        await closing
        with pytest.raises(Closed, match="is closed"):
            await batcher.submit(2)
        assert await running == 2


async def test_an_idle_batcher_closes_at_once() -> None:
    async with Batcher(FakeModel()):
        pass
    assert now() == 0.0


async def test_past_the_drain_deadline_queued_and_running_callers_get_closed() -> None:
    model, recorder = GatedModel(), Recorder()
    batcher = Batcher(model, max_batch_size=2, observers=[recorder])
    async with batcher:
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(5)]
        await asyncio.sleep(0.001)
        await batcher.close(drain_s=2.0)
        assert now() == at(2.001)
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [Closed] * 5
    assert [e.unanswered for e in recorder.events if isinstance(e, Stopped)] == [5]
    await asyncio.sleep(1.0)  # the cancelled batch comes back: nothing must start after it
    assert not any(isinstance(event, Crashed) for event in recorder.events)
    assert len(model.batches) == 1
    assert batcher.statistics().crashed is None


async def test_an_async_model_is_cancelled_at_the_drain_deadline() -> None:
    ended = asyncio.Event()

    async def endless(values: list[int]) -> list[int]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return values

    async with Batcher(endless) as batcher:
        call = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.001)
        await batcher.close(drain_s=1.0)
        with pytest.raises(Closed):
            await call
        await asyncio.wait_for(ended.wait(), 1.0)


async def test_a_reader_of_a_stream_is_told_too() -> None:
    class Endless(Model[int, int]):
        async def stream(self, items: list[int]) -> AsyncIterator[list[int]]:
            yield items
            await asyncio.Event().wait()

    async with Batcher(Endless()) as batcher:
        stream = batcher.stream(7)
        assert await anext(stream) == 7
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.001)
        await batcher.close(drain_s=1.0)
        with pytest.raises(Closed):
            await waiting


async def test_closing_twice_is_harmless() -> None:
    recorder = Recorder()
    async with Batcher(FakeModel(), observers=[recorder]) as batcher:
        await batcher.submit(1)
        await batcher.close()
        await batcher.close()
    assert [type(e) for e in recorder.events].count(Stopped) == 1


async def test_whoever_closes_second_waits_for_the_drain_too() -> None:
    async with Batcher(FakeModel(cost_s=0.010)) as batcher:
        call = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.001)
        first = asyncio.create_task(batcher.close())
        await asyncio.sleep(0.001)
        await batcher.close()
        assert now() == at(0.010)
        await first
        assert call.result() == 2


async def test_when_closing_is_cancelled_nobody_is_left_waiting() -> None:
    async with Batcher(GatedModel(), max_batch_size=1) as batcher:
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(3)]
        await asyncio.sleep(0.001)
        closing = asyncio.create_task(batcher.close(drain_s=3600))
        await asyncio.sleep(0.001)
        closing.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [Closed] * 3
        assert now() == at(0.002)
        with pytest.raises(asyncio.CancelledError):
            await closing


async def test_a_caller_that_leaves_lets_the_drain_end() -> None:
    async with Batcher(FakeModel(cost_s=0.010), max_batch_size=1) as batcher:
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(3)]
        await asyncio.sleep(0.001)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0.001)
        calls[1].cancel()
        calls[2].cancel()
        await closing
        assert now() == at(0.010)


async def test_a_batcher_is_opened_once() -> None:
    batcher = Batcher(FakeModel())
    async with batcher:
        with pytest.raises(Closed, match="make a new one"):
            await batcher.__aenter__()
    with pytest.raises(Closed, match="make a new one"):
        await batcher.__aenter__()


async def test_one_that_was_never_opened_can_be_closed() -> None:
    batcher = Batcher(FakeModel())
    await batcher.close()
    with pytest.raises(Closed):
        await batcher.submit(1)


async def test_an_error_inside_the_block_is_not_hidden_by_closing() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with Batcher(FakeModel()):
            raise KeyError("mine")


async def test_a_deadline_still_holds_while_draining() -> None:
    async with Batcher(FakeModel(cost_s=0.050)) as batcher:
        running = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.001)
        hurried = asyncio.create_task(batcher.submit(2, deadline_ms=20))
        await asyncio.sleep(0.001)
    assert now() == at(0.050)
    assert running.result() == 2
    assert "deadline" in str(hurried.exception())


def just_before_it_is_noted(batcher: Batcher[Any, Any], act: Callable[[], None]) -> None:
    """Have this happen in another thread while a call has looked at the state and goes on."""
    loop = batcher._shell.event_loop
    assert loop is not None
    here, clock = threading.current_thread(), loop.clock
    left = [act]

    def slow_clock() -> float:
        if left and threading.current_thread() is here:
            thread = threading.Thread(target=left.pop())
            thread.start()
            thread.join()
        return clock()

    loop.clock = slow_clock


@pytest.mark.real_time
async def test_a_call_that_races_with_a_close_in_another_thread_is_answered() -> None:
    recorder = Recorder()
    batcher = Batcher[int, int](lambda values: values, observers=[recorder])
    await batcher.__aenter__()
    just_before_it_is_noted(batcher, lambda: asyncio.run(batcher.close(drain_s=0.0)))
    async with asyncio.timeout(10):
        with pytest.raises(Closed, match="is closed"):
            await batcher.submit(1)
    assert [event.reason for event in recorder.events if isinstance(event, Refused)] == ["closed"]


@pytest.mark.real_time
async def test_a_call_that_races_with_a_crash_is_answered() -> None:
    batcher = Batcher[int, int](lambda values: values)
    await batcher.__aenter__()
    just_before_it_is_noted(batcher, lambda: batcher._shell.crashed(RuntimeError("a bug")))
    async with asyncio.timeout(10):
        with pytest.raises(Closed, match="crashed"):
            await batcher.submit(1)
        with pytest.raises(Closed, match="crashed"):
            await batcher.__aexit__(None, None, None)


@pytest.mark.real_time
async def test_closing_while_it_is_loading_means_that_it_never_opens() -> None:
    loading, let_go = threading.Event(), threading.Event()

    class Slow(Model[int, int]):
        def load(self) -> None:
            loading.set()
            assert let_go.wait(10)

        def predict(self, items: list[int]) -> list[int]:
            return items

    batcher = Batcher(Slow(), name="never-opens")
    entering = asyncio.create_task(batcher.__aenter__())
    assert await asyncio.to_thread(loading.wait, 10)
    await batcher.close()
    await batcher.close()
    let_go.set()
    with pytest.raises(Closed, match="closed while it was loading"):
        await entering
    with pytest.raises(Closed, match="is closed"):
        await batcher.submit(1)
    assert batcher.statistics().crashed is None
    assert not [t for t in threading.enumerate() if t.name.startswith("headway-never-opens")]


@pytest.mark.real_time
async def test_a_thread_that_comes_back_after_the_drain_deadline_hurts_nobody() -> None:
    started, let_go = threading.Event(), threading.Event()

    def hang(values: list[int]) -> list[int]:
        started.set()
        assert let_go.wait(10)
        return values

    recorder = Recorder()
    async with Batcher(hang, max_batch_size=1, name="late", observers=[recorder]) as batcher:
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(3)]
        await asyncio.to_thread(started.wait, 10)
        [thread] = [t for t in threading.enumerate() if t.name == "headway-late-0"]
        await batcher.close(drain_s=0.0)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [Closed] * 3
        let_go.set()
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()
    assert batcher.statistics().crashed is None
    assert not any(isinstance(event, Crashed) for event in recorder.events)
