"""When a worker dies: what it held runs again, whoever is at fault is told, nobody else notices."""

import asyncio
from typing import Any

import pytest
from fragile import FragileBatcher, FragileWorker

from headway.errors import Closed, DeadlineExceeded, ModelFailed, NotReady, Poison, QueueFull
from headway.events import BatchLost, FireReason, Refused
from headway.testing import Recorder, now


async def double(worker: FragileWorker, values: list[Any]) -> list[Any]:
    """Doubles, 10 ms a batch. "kill" takes the worker down, "hang" never ends, "raise" raises."""
    seconds = 1e9 if "hang" in values else 0.010
    if "kill" in values:
        asyncio.get_running_loop().call_later(0.005, worker.die, "exited with SIGSEGV")
    await worker.work(values, seconds)
    if "raise" in values:
        raise ValueError("a bad one")
    return [value * 2 for value in values]


async def outcomes(batcher: FragileBatcher, values: Any, **options: Any) -> list[Any]:
    calls = (batcher.submit(value, **options) for value in values)
    return await asyncio.gather(*calls, return_exceptions=True)


def nothing_is_left(batcher: FragileBatcher) -> bool:
    decider, queue = batcher.decider, batcher.decider.queue
    return queue.is_idle and not (decider.jobs or decider.shell.inbox)


# ---- killed


async def test_a_worker_killed_under_its_batch_loses_nothing() -> None:
    recorder = Recorder()
    async with FragileBatcher(double, observers=[recorder]) as batcher:
        asyncio.get_running_loop().call_later(0.005, batcher.fragile_workers[0].die)
        assert await outcomes(batcher, range(8)) == [2 * n for n in range(8)]
        assert now() == pytest.approx(0.005 + 0.050 + 0.010)  # killed, restarted, run again
    [lost] = [event for event in recorder.events if isinstance(event, BatchLost)]
    assert (lost.reason, lost.out_of_memory, lost.failed) == ("killed by SIGKILL", False, 0)
    assert [batch.reason for batch in recorder.batches] == [FireReason.RETRY]
    assert nothing_is_left(batcher)


async def test_a_worker_killed_while_idle_is_waited_for() -> None:
    async with FragileBatcher(double, restart_s=0.5) as batcher:
        batcher.fragile_workers[0].die()
        assert await batcher.submit(1) == 2
        assert now() == pytest.approx(0.510)


async def test_another_worker_takes_over_at_once() -> None:
    async with FragileBatcher(double, workers=2, restart_s=60.0) as batcher:
        asyncio.get_running_loop().call_later(0.005, batcher.fragile_workers[0].die)
        assert await outcomes(batcher, range(8)) == [2 * n for n in range(8)]
        assert now() == pytest.approx(0.015)


async def test_what_was_lost_runs_before_what_came_later_and_with_nobody_else() -> None:
    ran: list[list[Any]] = []

    async def noting(worker: FragileWorker, values: list[Any]) -> list[Any]:
        ran.append(list(values))
        return await double(worker, values)

    async with FragileBatcher(noting, max_batch_size=4) as batcher:
        asyncio.get_running_loop().call_later(0.005, batcher.fragile_workers[0].die)
        assert await outcomes(batcher, range(8)) == [2 * n for n in range(8)]
    assert ran == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]


async def test_a_higher_class_goes_before_what_was_lost() -> None:
    ran: list[list[Any]] = []

    async def noting(worker: FragileWorker, values: list[Any]) -> list[Any]:
        ran.append(list(values))
        return await double(worker, values)

    async with FragileBatcher(noting) as batcher:
        first = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.005)
        batcher.fragile_workers[0].die()
        urgent = asyncio.create_task(batcher.submit(2, priority="high"))
        assert [await first, await urgent] == [2, 4]
    assert ran == [[1], [2], [1]]


# ---- at fault


@pytest.mark.parametrize("bad", ["kill", "hang"])
@pytest.mark.parametrize("culprit", [0, 1, 31, 32, 40, 62, 63])
async def test_one_poisoned_item_among_64_costs_63_nothing(bad: str, culprit: int) -> None:
    recorder = Recorder()
    values: list[Any] = list(range(64))
    values[culprit] = bad
    async with FragileBatcher(double, observers=[recorder]) as batcher:
        results = await outcomes(batcher, values)
    error = results.pop(culprit)
    assert type(error) is Poison
    assert error.code == "poison"
    assert results == [2 * n for n in range(64) if n != culprit]
    runs = [e for e in recorder.events if isinstance(e, BatchLost)] + recorder.batches
    assert len(runs) - 1 <= 12
    assert nothing_is_left(batcher)


async def test_one_raising_item_among_64_costs_63_nothing() -> None:
    for culprit in range(64):
        recorder = Recorder()
        values: list[Any] = list(range(64))
        values[culprit] = "raise"
        async with FragileBatcher(double, observers=[recorder]) as batcher:
            results = await outcomes(batcher, values)
        assert type(results.pop(culprit)) is ModelFailed
        assert results == [2 * n for n in range(64) if n != culprit]
        assert sum(batch.reruns for batch in recorder.batches) <= 12


async def test_an_item_that_raises_beside_one_that_kills_is_told_apart() -> None:
    async with FragileBatcher(double) as batcher:
        values = [1, "raise", 2, "kill", 3]
        results = await outcomes(batcher, values)
    assert [results[0], results[2], results[4]] == [2, 4, 6]
    assert [type(results[1]), type(results[3])] == [ModelFailed, Poison]


async def test_poison_is_refused_at_the_door_from_then_on_and_costs_no_worker() -> None:
    recorder = Recorder()
    async with FragileBatcher(double, observers=[recorder]) as batcher:
        assert [type(each) for each in await outcomes(batcher, ["kill"])] == [Poison]
        deaths = batcher.fragile_workers[0].deaths
        assert deaths == 2
        assert [type(each) for each in await outcomes(batcher, ["kill"] * 3)] == [Poison] * 3
        assert await batcher.submit("x") == "xx"
        assert batcher.fragile_workers[0].deaths == deaths
    refused = [event.reason for event in recorder.events if isinstance(event, Refused)]
    assert refused == ["poison"] * 4


async def test_poison_is_forgotten_after_a_while() -> None:
    async with FragileBatcher(double) as batcher:
        await outcomes(batcher, ["kill"])
        await asyncio.sleep(601)
        assert [type(each) for each in await outcomes(batcher, ["kill"])] == [Poison]
        assert batcher.fragile_workers[0].deaths == 4  # it was tried again
        await asyncio.sleep(601)
        assert await batcher.submit(1) == 2
        assert batcher.decider.takes_plain  # the short way is open again


async def test_equals_of_a_poison_that_wait_already_take_no_worker_down() -> None:
    async with FragileBatcher(double, max_batch_size=4) as batcher:
        results = await outcomes(batcher, ["kill", *range(3), *["kill"] * 20, 7])
        assert batcher.fragile_workers[0].deaths <= 5
    assert [type(each) for each in results] == [Poison, *[int] * 3, *[Poison] * 20, int]


async def test_the_same_content_with_other_company_is_not_poison() -> None:
    async with FragileBatcher(double) as batcher:
        await outcomes(batcher, ["kill"], partition="a")
        assert [type(each) for each in await outcomes(batcher, ["kill"], partition="b")] == [Poison]
        assert batcher.fragile_workers[0].deaths == 4


async def test_a_model_that_must_not_run_twice_fails_as_one() -> None:
    async with FragileBatcher(double, max_reruns=0) as batcher:
        asyncio.get_running_loop().call_later(0.005, batcher.fragile_workers[0].die)
        results = await outcomes(batcher, range(4))
        assert [type(each) for each in results] == [ModelFailed] * 4
        assert "killed by SIGKILL" in str(results[0])
        assert await batcher.submit(1) == 2


# ---- callers that leave, deadlines, closing


async def test_a_caller_that_left_before_its_worker_died_does_not_run_again() -> None:
    ran: list[list[Any]] = []

    async def noting(worker: FragileWorker, values: list[Any]) -> list[Any]:
        ran.append(list(values))
        return await double(worker, values)

    async with FragileBatcher(noting) as batcher:
        leaving, staying = (asyncio.create_task(batcher.submit(n)) for n in (1, 2))
        await asyncio.sleep(0.004)
        leaving.cancel()
        await asyncio.sleep(0.001)
        batcher.fragile_workers[0].die()
        assert await staying == 4
        assert leaving.cancelled()
    assert ran == [[1, 2], [2]]


async def test_a_caller_that_leaves_while_it_waits_to_run_again_is_forgotten() -> None:
    async with FragileBatcher(double, restart_s=5.0) as batcher:
        task = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.005)
        batcher.fragile_workers[0].die()
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.sleep(0)
        assert batcher.statistics().queued_items == 0
        assert nothing_is_left(batcher)


async def test_a_deadline_ends_the_wait_for_a_worker() -> None:
    async with FragileBatcher(double, restart_s=5.0) as batcher:
        task = asyncio.create_task(batcher.submit(1, deadline_ms=500))
        await asyncio.sleep(0.005)
        batcher.fragile_workers[0].die()
        with pytest.raises(DeadlineExceeded):
            await task
        assert now() == pytest.approx(0.5)
        assert nothing_is_left(batcher)


async def test_without_a_worker_the_queue_fills_up_and_no_further() -> None:
    async with FragileBatcher(double, restart_s=5.0, max_queue=4) as batcher:
        batcher.fragile_workers[0].die()
        results = await outcomes(batcher, range(6))
    assert results[:4] == [0, 2, 4, 6]
    assert [type(each) for each in results[4:]] == [QueueFull] * 2


async def test_closing_waits_for_what_was_lost_and_for_no_longer_than_told() -> None:
    for drain_s, expected in ((30.0, int), (0.1, Closed)):
        async with FragileBatcher(double, restart_s=1.0) as batcher:
            task = asyncio.create_task(batcher.submit(1))
            await asyncio.sleep(0.005)
            batcher.fragile_workers[0].die()
            await batcher.close(drain_s=drain_s)
            [result] = await asyncio.gather(task, return_exceptions=True)
            assert type(result) is expected
            assert batcher.decider.queue.calls == {}


async def test_a_worker_that_dies_while_its_batcher_is_released_leaves_nothing() -> None:
    async with FragileBatcher(double) as batcher:
        task = asyncio.create_task(batcher.submit("hang"))
        await asyncio.sleep(0.005)
        [worker] = batcher.fragile_workers
        await batcher.close(drain_s=0.0)
        worker.die()
        [result] = await asyncio.gather(task, return_exceptions=True)
    assert type(result) is Closed
    await asyncio.sleep(10)
    assert (batcher.decider.queue.calls, batcher.decider.jobs) == ({}, {})


# ---- streams


async def test_a_stream_that_had_not_begun_runs_again() -> None:
    async with FragileBatcher(double) as batcher:
        asyncio.get_running_loop().call_later(0.005, batcher.fragile_workers[0].die)
        assert [chunk async for chunk in batcher.stream(1)] == [(0, 2), (1, 2), (2, 2)]


async def test_a_stream_that_has_begun_ends_with_its_worker() -> None:
    """Nobody reads a chunk twice."""
    async with FragileBatcher(double) as batcher:
        asyncio.get_running_loop().call_later(0.015, batcher.fragile_workers[0].die)
        stream = batcher.stream(1)
        assert await anext(stream) == (0, 2)
        with pytest.raises(ModelFailed, match="broke off"):
            await anext(stream)
        assert now() == pytest.approx(0.015)
    assert nothing_is_left(batcher)


async def test_a_stream_without_a_chunk_runs_again() -> None:
    async with FragileBatcher(double) as batcher:
        asyncio.get_running_loop().call_later(0.005, batcher.fragile_workers[0].die)
        assert await _read(batcher, 1) == [(0, 2), (1, 2), (2, 2)]
        assert now() == pytest.approx(0.005 + 0.050 + 0.030)
    assert nothing_is_left(batcher)


async def test_one_stream_that_raises_leaves_its_neighbours_theirs() -> None:
    async with FragileBatcher(double) as batcher:
        readers = [_read(batcher, value) for value in (1, "raise", 2, 3)]
        first, second, *others = await asyncio.gather(*readers, return_exceptions=True)
    assert first == [(0, 2), (1, 2), (2, 2)]
    assert type(second) is ModelFailed
    assert others == [[(n, 4) for n in range(3)], [(n, 6) for n in range(3)]]


async def _read(batcher: FragileBatcher, value: Any) -> list[Any]:
    return [chunk async for chunk in batcher.stream(value)]


# ---- given up


async def test_a_model_that_is_given_up_refuses_until_a_worker_is_back() -> None:
    async with FragileBatcher(double, restart_s=60.0) as batcher:
        [worker] = batcher.fragile_workers
        worker.die()
        waiting = [asyncio.create_task(batcher.submit(n)) for n in range(3)]
        await asyncio.sleep(1.0)
        batcher.decider.losses.give_up(NotReady("its worker died too often", retry_after_s=30.0))
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert type(result) is NotReady
            assert result.retry_after_s == 30.0
        with pytest.raises(NotReady, match="too often"):
            await batcher.submit(4)
        assert nothing_is_left(batcher)
        await asyncio.sleep(60)
        assert await batcher.submit(4) == 8


async def test_closing_a_model_that_was_given_up_takes_no_time() -> None:
    async with FragileBatcher(double, restart_s=60.0) as batcher:
        batcher.fragile_workers[0].die()
        task = asyncio.create_task(batcher.submit(1))
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(1.0)
        batcher.decider.losses.give_up(NotReady("its worker died too often"))
        await closing
        assert now() == pytest.approx(1.0)
        assert isinstance(task.exception(), NotReady)
