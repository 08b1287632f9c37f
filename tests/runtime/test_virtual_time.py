"""The testing package itself: a clock that jumps, and a deadlock that is an error."""

import asyncio
from typing import Any

import pytest

from headway import Batcher
from headway.events import Stopped
from headway.testing import (
    Deadlock,
    FakeModel,
    GatedModel,
    Recorder,
    VirtualTimeLoop,
    now,
    run,
)


async def sleepers(*seconds: float) -> list[float]:
    async def sleeper(each: float) -> float:
        await asyncio.sleep(each)
        return now()

    return await asyncio.gather(*(sleeper(each) for each in seconds))


def test_it_starts_at_zero() -> None:
    async def main() -> float:
        return now()

    assert run(main()) == 0.0


def test_hours_pass_in_no_time_and_times_are_exact() -> None:
    assert run(sleepers(3600.0, 0.001, 86_400.0 * 30)) == [
        pytest.approx(3600.0),
        pytest.approx(0.001),
        pytest.approx(86_400.0 * 30),
    ]


def test_timers_fire_in_their_order() -> None:
    order: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for n in (3, 1, 2):
            loop.call_later(n, order.append, n)
        await asyncio.sleep(5)

    run(main())
    assert order == [1, 2, 3]


def test_no_time_passes_while_anything_can_run() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return now()

    assert run(main()) == 0.0


def test_timeouts_are_exact() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25):
                await asyncio.sleep(1.0)
        return now()

    assert run(main()) == pytest.approx(0.25)


def test_a_deadlock_is_an_error_instead_of_a_hang() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="every task is waiting and no timer is set"):
        run(main())


def test_after_a_deadlock_tasks_are_cleaned_up() -> None:
    cleaned = []

    async def stuck() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(1)

    async def main() -> None:
        await asyncio.gather(stuck(), stuck())

    with pytest.raises(Deadlock):
        run(main())
    assert cleaned == [1, 1]


def test_a_caller_that_nobody_answers_is_a_deadlock() -> None:
    async def main() -> None:
        async with Batcher(GatedModel()) as batcher:
            await batcher.submit(1)

    with pytest.raises(Deadlock):
        run(main())


def test_large_times_do_not_stop_the_clock() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1e9)
        for _ in range(1000):
            await asyncio.sleep(0.000_1)
        assert loop.time() > 1e9
        return 1

    assert run(main()) == 1


def test_run_hands_on_results_and_errors() -> None:
    async def fails() -> None:
        raise KeyError("mine")

    async def returns() -> str:
        return "mine"

    assert run(returns()) == "mine"
    with pytest.raises(KeyError, match="mine"):
        run(fails())


def test_a_plain_function_runs_inline_so_that_time_stays_virtual() -> None:
    async def main() -> float:
        async with Batcher(lambda values: values, policy="window", max_wait_ms=250) as batcher:
            await batcher.submit(1)
        return now()

    assert run(main()) == pytest.approx(0.250)


def test_sockets_still_work() -> None:
    async def main() -> bytes:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello\n")
            answer = await reader.readline()
            writer.close()
            await writer.wait_closed()
        return answer

    try:
        assert run(main()) == b"hello\n"
    except Deadlock:
        pytest.skip("the kernel was slower than the loop: real sockets need real time")


# ---- the pytest plugin


async def test_async_tests_run_on_virtual_time() -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


@pytest.mark.real_time
async def test_a_marked_test_runs_on_the_real_clock() -> None:
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


@pytest.fixture
def fixture() -> int:
    return 7


@pytest.mark.parametrize("parameter", ["a", "b"])
async def test_fixtures_and_parameters_reach_async_tests(fixture: int, parameter: str) -> None:
    assert (fixture, parameter in "ab") == (7, True)


# ---- fakes


async def test_the_fake_model_takes_the_time_it_is_told() -> None:
    model = FakeModel(cost_s=0.5, row_s=0.25)
    assert await model([1, 2]) == [2, 4]
    assert now() == pytest.approx(1.0)
    assert (model.batches, model.running, model.most_running) == ([[1, 2]], 0, 1)


async def test_the_fake_model_raises_for_poison_after_its_time() -> None:
    model = FakeModel(cost_s=0.5, poison=lambda value: value == 2)
    with pytest.raises(ValueError, match="poisoned"):
        await model([1, 2])
    assert now() == pytest.approx(0.5)
    assert model.running == 0


async def test_the_gated_model_waits_until_it_is_opened() -> None:
    model = GatedModel()
    task = asyncio.create_task(model([1]))
    await asyncio.sleep(1.0)
    assert not task.done()
    model.open()
    assert await task == [1]


async def test_the_recorder_keeps_what_it_saw() -> None:
    recorder = Recorder()
    events: list[Any] = [Stopped("m", 0), Stopped("m", 1)]
    for event in events:
        recorder(event)
    assert recorder.events == events
    assert recorder.batches == []
