"""What observers see: frozen values that explain every batch, and never touch a request."""

import asyncio
import dataclasses
import threading
from typing import Any

import pytest

from headway import Batcher, CostTable, DeadlineExceeded
from headway.events import (
    BatchFinished,
    BatchStarted,
    Cancelled,
    Event,
    ItemTimes,
    Refused,
    Stopped,
)
from headway.testing import FakeModel, Recorder, now


def at(seconds: float) -> Any:
    return pytest.approx(seconds, abs=1e-6)


async def test_every_batch_is_reported_when_it_starts_and_when_it_finishes() -> None:
    recorder = Recorder()
    async with Batcher(FakeModel(cost_s=0.010), name="m", observers=[recorder]) as batcher:
        await batcher.submit(1)
    started, finished, stopped = recorder.events
    assert isinstance(started, BatchStarted)
    assert isinstance(finished, BatchFinished)
    assert started.batch is finished.batch
    assert (finished.model, finished.batch.rows, finished.reruns, finished.failed) == ("m", 1, 0, 0)
    assert (finished.finished_at, finished.ran_s) == (at(0.010), at(0.010))
    assert stopped == Stopped("m", 0)


async def test_events_are_frozen() -> None:
    recorder = Recorder()
    async with Batcher(FakeModel(), observers=[recorder]) as batcher:
        await batcher.submit(1)
    for event in recorder.events:
        for field in dataclasses.fields(event):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(event, field.name, None)


async def test_every_batch_says_why_it_left_and_with_which_caps() -> None:
    recorder = Recorder()
    async with Batcher(
        FakeModel(cost_s=0.010),
        policy="window",
        max_wait_ms=5,
        max_batch_size=3,
        observers=[recorder],
    ) as batcher:
        await asyncio.gather(*(batcher.submit(n) for n in range(3)))
        await batcher.submit(3)
        rest = asyncio.create_task(batcher.submit(4))
        await asyncio.sleep(0.001)
    await rest
    assert [batch.reason for batch in recorder.batches] == ["full", "window", "drain"]
    assert {batch.batch.batch_cap for batch in recorder.batches} == {3}
    assert recorder.batches[1].batch.linger_cap_s == at(0.005)


async def test_an_items_times_add_up_to_what_its_caller_waited() -> None:
    recorder = Recorder()
    waited: list[float] = []

    async def call(delay_s: float, batcher: Batcher[Any, Any]) -> None:
        await asyncio.sleep(delay_s)
        before = now()
        await batcher.submit(1)
        waited.append(now() - before)

    async with Batcher(
        FakeModel(cost_s=0.010), policy="window", max_wait_ms=5, observers=[recorder]
    ) as batcher:
        await asyncio.gather(*(call(n * 0.003, batcher) for n in range(12)))
    items = [item for batch in recorder.batches for item in batch.items]
    assert [item.queued_s + item.lingered_s + item.ran_s for item in items] == [
        at(seconds) for seconds in waited
    ]
    assert any(item.queued_s for item in items)
    assert any(item.lingered_s for item in items)


async def test_waiting_for_a_worker_and_waiting_for_company_are_told_apart() -> None:
    recorder = Recorder()
    async with Batcher(
        FakeModel(cost_s=0.010), policy="window", max_wait_ms=4, observers=[recorder]
    ) as batcher:
        first = asyncio.create_task(batcher.submit(1))  # lingers 4 ms, runs until 14
        await asyncio.sleep(0.012)
        second = asyncio.create_task(batcher.submit(2))  # queued 2 ms, lingers 2 ms
        await asyncio.gather(first, second)
    assert [batch.items for batch in recorder.batches] == [
        (ItemTimes(1, at(0.0), at(0.004), at(0.010)),),
        (ItemTimes(2, at(0.002), at(0.002), at(0.010)),),
    ]


async def test_the_caps_that_auto_has_learned_are_part_of_the_event() -> None:
    recorder = Recorder()
    table = CostTable(rows=(1, 4, 64), sizes=None, seconds=((0.010,), (0.012,), (1.0,)))
    async with Batcher(FakeModel(), costs=table, observers=[recorder]) as batcher:
        await asyncio.gather(*(batcher.submit(n) for n in range(12)))
    assert [batch.batch.rows for batch in recorder.batches] == [4, 4, 4]
    assert {batch.batch.batch_cap for batch in recorder.batches} == {4}
    assert recorder.batches[0].reason == "knee"
    assert recorder.batches[0].batch.predicted_s == at(0.012)


async def test_reruns_and_failures_are_counted() -> None:
    recorder = Recorder()
    model = FakeModel(cost_s=0.010, poison=lambda value: value == 2)
    async with Batcher(model, observers=[recorder]) as batcher:
        await asyncio.gather(*(batcher.submit(n) for n in range(4)), return_exceptions=True)
    [batch] = recorder.batches
    assert (batch.reruns, batch.failed) == (len(model.batches) - 1, 1)
    assert batch.ran_s == at(0.010 * len(model.batches))


async def test_refusals_are_reported_with_their_code_word() -> None:
    recorder = Recorder()
    async with Batcher(FakeModel(cost_s=0.050), name="m", observers=[recorder]) as batcher:
        running = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.001)
        for deadline_ms in (-1, 10):  # at the door, and in the queue
            with pytest.raises(DeadlineExceeded):
                await batcher.submit(2, deadline_ms=deadline_ms)
        await running
    refused = [event for event in recorder.events if isinstance(event, Refused)]
    assert [event.reason for event in refused] == ["deadline_exceeded"] * 2


async def test_values_that_cannot_be_prepared_are_reported_as_refused() -> None:
    recorder = Recorder()
    async with Batcher(FakeModel(), prepare=int, size=len, observers=[recorder]) as batcher:
        await asyncio.gather(*(batcher.submit(v) for v in ("x", "1")), return_exceptions=True)
    refused = [event.reason for event in recorder.events if isinstance(event, Refused)]
    assert refused == ["model_failed", "model_failed"]


async def test_callers_that_leave_are_reported_with_whether_they_had_started() -> None:
    recorder = Recorder()
    async with Batcher(
        FakeModel(cost_s=0.010), name="m", max_batch_size=1, observers=[recorder]
    ) as batcher:
        running = asyncio.create_task(batcher.submit(1))
        queued = asyncio.create_task(batcher.submit(2))
        await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.sleep(0.001)
        queued.cancel()
        await asyncio.sleep(0.001)
    cancelled = [event for event in recorder.events if isinstance(event, Cancelled)]
    assert cancelled == [Cancelled("m", started=True), Cancelled("m", started=False)]


async def test_an_observer_that_raises_is_logged_once_and_detached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = 0

    def broken(event: Event) -> None:
        nonlocal seen
        seen += 1
        raise RuntimeError("no disk space")

    recorder = Recorder()
    async with Batcher(FakeModel(), observers=[broken, recorder]) as batcher:
        assert await batcher.many(range(10)) == [2 * n for n in range(10)]
        assert await batcher.submit(1) == 2
    assert seen == 1
    assert len(recorder.batches) == 2  # the other one goes on
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "detached" in caplog.text
    assert "no disk space" in caplog.text


async def test_an_observer_may_be_added_while_running() -> None:
    recorder = Recorder()
    async with Batcher(FakeModel()) as batcher:
        await batcher.submit(1)
        batcher.observe(recorder)
        await batcher.submit(2)
    assert len(recorder.batches) == 1


async def test_an_observer_may_call_the_batcher() -> None:
    more: list[asyncio.Task[Any]] = []

    def again(event: Event) -> None:
        batcher.statistics()
        if isinstance(event, BatchFinished) and len(more) < 3:
            more.append(asyncio.ensure_future(batcher.submit(len(more))))

    batcher = Batcher(FakeModel(), observers=[again])
    async with batcher:
        await batcher.submit(7)
        await asyncio.sleep(1.0)
        assert [task.result() for task in more] == [0, 2, 4]


@pytest.mark.real_time
async def test_observers_are_called_in_the_batchers_loop_wherever_the_callers_are() -> None:
    threads = set()

    def observer(event: Event) -> None:
        threads.add((type(event), threading.current_thread()))

    async with Batcher(lambda values: values, observers=[observer]) as batcher:

        def elsewhere() -> None:
            async def main() -> None:
                assert await batcher.submit(1) == 1
                with pytest.raises(DeadlineExceeded):
                    await batcher.submit(1, deadline_ms=-1)

            asyncio.run(main())

        await asyncio.to_thread(elsewhere)
        await batcher.submit(2)
    assert {thread for _, thread in threads} == {threading.current_thread()}
    assert {kind for kind, _ in threads} >= {BatchStarted, BatchFinished, Refused}
