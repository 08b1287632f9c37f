"""Several event loops and threads share one batcher: nobody waits for ever, no answer crosses."""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

import headway
from headway import BatchedFunction, Batcher
from headway.runtime.driving.event_loop import BackgroundLoop
from headway.testing import run as run_on_virtual_time

T = TypeVar("T")
PATIENCE_S = 10.0


def in_thread(function: Callable[..., T], *arguments: Any) -> "concurrent.futures.Future[T]":
    """Run it in a thread that cannot keep the tests from ending."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def work() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001  the future raises it in its reader
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def in_loop_of_its_own(
    main: Callable[..., Coroutine[Any, Any, T]], *arguments: Any
) -> "concurrent.futures.Future[T]":
    return in_thread(lambda: asyncio.run(main(*arguments)))


def closing(function: BatchedFunction[Any, Any]) -> None:
    in_loop_of_its_own(function.close).result(PATIENCE_S)


class OneAtATime:
    """A model that notices when two batches overlap."""

    def __init__(self) -> None:
        self.overlapped = False
        self.batches = 0
        self._busy = threading.Lock()

    def run(self, values: list[int]) -> list[int]:
        if not self._busy.acquire(blocking=False):
            self.overlapped = True
            return [-1 for _ in values]
        self.batches += 1
        results = [value * 2 for value in values]
        self._busy.release()
        return results

    async def run_async(self, values: list[int]) -> list[int]:
        if not self._busy.acquire(blocking=False):
            self.overlapped = True
            return [-1 for _ in values]
        self.batches += 1
        await asyncio.sleep(0)
        self._busy.release()
        return [value * 2 for value in values]


def _model(kind: str) -> tuple[OneAtATime, BatchedFunction[int, int]]:
    model = OneAtATime()
    function: Any = model.run if kind == "def" else model.run_async
    return model, headway.batched(max_batch_size=16)(function)


kinds = pytest.mark.parametrize("kind", ["def", "async def"])


@kinds
def test_asyncio_run_twice_in_a_row_works(kind: str) -> None:
    _, double = _model(kind)

    async def main(start: int) -> list[int]:
        return await asyncio.gather(*(double(n) for n in range(start, start + 50)))

    for start in (0, 100, 200):
        assert asyncio.run(main(start)) == [2 * n for n in range(start, start + 50)]
    closing(double)


@kinds
def test_two_loops_and_plain_threads_share_one_worker(kind: str) -> None:
    model, double = _model(kind)

    async def loop(start: int) -> bool:
        return all(
            [
                await asyncio.gather(*(double(n) for n in values)) == [2 * n for n in values]
                for values in (range(first, first + 20) for first in range(start, start + 400, 20))
            ]
        )

    def plain(start: int) -> bool:
        return [double.call(n) for n in range(start, start + 100)] == [
            2 * n for n in range(start, start + 100)
        ]

    futures = [in_loop_of_its_own(loop, start) for start in (0, 10_000)]
    futures += [in_thread(plain, start) for start in (20_000, 30_000)]
    assert all(future.result(PATIENCE_S) for future in futures)
    assert not model.overlapped
    closing(double)


def test_many_from_two_loops_at_once() -> None:
    model, double = _model("def")

    async def loop(start: int) -> bool:
        values = range(start, start + 3000)
        return await double.many(values) == [2 * n for n in values]

    futures = [in_loop_of_its_own(loop, start) for start in (0, 10_000)]
    assert all(future.result(PATIENCE_S) for future in futures)
    assert not model.overlapped
    closing(double)


class Gate:
    """A model, plain or async, that answers once it is let go."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.let_go = threading.Event()

    def run(self, values: list[int]) -> list[int]:
        self.started.set()
        assert self.let_go.wait(PATIENCE_S)
        return [value * 2 for value in values]

    async def run_async(self, values: list[int]) -> list[int]:
        return await asyncio.to_thread(self.run, values)


def _gate(kind: str, **options: Any) -> tuple[Gate, BatchedFunction[int, int]]:
    gate = Gate()
    function: Any = gate.run if kind == "def" else gate.run_async
    return gate, headway.batched(**{"max_batch_size": 1, **options})(function)


def until(condition: Callable[[], bool]) -> None:
    """Other threads are on their way: give them the processor until they are there."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "it never came true"
        time.sleep(0)  # yields to the other threads; waits for no time


async def until_in_loop(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "it never came true"
        await asyncio.sleep(0)


@kinds
def test_a_loop_that_only_waits_is_woken_though_the_batcher_has_moved(kind: str) -> None:
    """The first loop's call is pending when a second loop calls, which then drives the batcher."""
    gate, double = _gate(kind)
    first = in_loop_of_its_own(double, 1)
    assert gate.started.wait(PATIENCE_S)
    second = in_loop_of_its_own(double, 2)
    until(lambda: double.batcher.statistics().queued_items == 1)
    gate.let_go.set()
    assert second.result(PATIENCE_S) == 4
    assert first.result(PATIENCE_S) == 2
    closing(double)


@kinds
def test_queued_calls_of_the_first_loop_are_answered_after_the_batcher_has_moved(
    kind: str,
) -> None:
    gate, double = _gate(kind)

    async def several() -> list[int]:
        return await asyncio.gather(*(double(n) for n in range(10)))

    first = in_loop_of_its_own(several)
    assert gate.started.wait(PATIENCE_S)
    second = in_thread(double.call, 100)
    until(lambda: double.batcher.statistics().queued_items == 10)
    gate.let_go.set()
    assert first.result(PATIENCE_S) == [2 * n for n in range(10)]
    assert second.result(PATIENCE_S) == 200
    closing(double)


@kinds
def test_when_the_first_loop_ends_another_loops_pending_calls_are_still_answered(
    kind: str,
) -> None:
    gate, double = _gate(kind)
    leave = threading.Event()

    async def impatient() -> None:
        task = asyncio.create_task(double(1))
        await asyncio.to_thread(leave.wait, PATIENCE_S)
        task.cancel()

    async def several() -> list[int]:
        return await asyncio.gather(*(double(n) for n in (2, 3, 4)))

    first = in_loop_of_its_own(impatient)
    assert gate.started.wait(PATIENCE_S)
    others = in_loop_of_its_own(several)
    plain = in_thread(double.call, 5)
    until(lambda: double.batcher.statistics().queued_items == 4)
    leave.set()
    if kind == "async def":  # its batch lives in its loop, whose end waits for threads of its own
        gate.let_go.set()
    first.result(PATIENCE_S)
    gate.let_go.set()
    assert others.result(PATIENCE_S) == [4, 6, 8]
    assert plain.result(PATIENCE_S) == 10
    closing(double)


def test_a_window_that_is_running_survives_the_end_of_the_first_loop() -> None:
    double: BatchedFunction[int, int] = headway.batched(policy="window", max_wait_ms=50)(
        lambda values: [value * 2 for value in values]
    )
    leave = threading.Event()

    async def impatient() -> None:
        task = asyncio.create_task(double(1))
        await asyncio.to_thread(leave.wait, PATIENCE_S)
        task.cancel()

    first = in_loop_of_its_own(impatient)
    until(lambda: double.batcher.statistics().queued_items == 1)
    second = in_loop_of_its_own(double, 2)
    leave.set()
    first.result(PATIENCE_S)
    assert second.result(PATIENCE_S) == 4
    closing(double)


@kinds
def test_a_run_that_ends_with_calls_pending_does_not_block_the_next_run(kind: str) -> None:
    """asyncio.run cancels callers and the batch's own task, in any order."""

    async def slow(values: list[int]) -> list[int]:
        await asyncio.sleep(0 if values == [0] else 3600)
        return values

    gate = Gate()
    echo: BatchedFunction[int, int] = headway.batched(max_batch_size=1)(
        gate.run if kind == "def" else slow
    )

    async def abandon() -> None:
        tasks = [asyncio.create_task(echo(n)) for n in range(1, 9)]
        await until_in_loop(lambda: echo.batcher.statistics().running_batches > 0)
        del tasks

    for _ in range(5):
        in_loop_of_its_own(abandon).result(PATIENCE_S)
        gate.let_go.set()
        assert in_loop_of_its_own(echo, 0).result(PATIENCE_S) == 0
        gate.let_go.clear()
    gate.let_go.set()
    closing(echo)


@kinds
def test_a_loop_closed_under_its_callers_does_not_block_the_next_one(kind: str) -> None:
    """Not asyncio.run: nothing is cancelled, tasks just never continue."""

    async def slow(values: list[int]) -> list[int]:
        await asyncio.sleep(3600 if values == [1] else 0)
        return values

    gate = Gate()
    echo: BatchedFunction[int, int] = headway.batched(
        max_batch_size=1, policy="window", max_wait_ms=1
    )(gate.run if kind == "def" else slow)
    tasks = []

    async def abandon() -> None:
        tasks.extend(asyncio.ensure_future(echo(n)) for n in range(1, 4))
        await until_in_loop(lambda: echo.batcher.statistics().running_batches > 0)

    def brutally() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(abandon())
        loop.close()

    in_thread(brutally).result(PATIENCE_S)
    gate.let_go.set()
    assert in_loop_of_its_own(echo, 0).result(PATIENCE_S) == 0
    closing(echo)
    for task in tasks:  # nothing will: keep the interpreter from mentioning it
        task._log_destroy_pending = False


# ---- call()


def test_call_works_from_any_thread() -> None:
    _, double = _model("def")
    futures = [in_thread(double.call, n) for n in range(20)]
    assert [future.result(PATIENCE_S) for future in futures] == [2 * n for n in range(20)]
    closing(double)


def test_call_works_without_any_loop_in_the_main_thread() -> None:
    for kind in ("def", "async def"):
        _, double = _model(kind)
        assert [double.call(n) for n in range(5)] == [0, 2, 4, 6, 8]
        closing(double)


@pytest.mark.real_time
async def test_call_in_the_loops_own_thread_raises_instead_of_blocking_it() -> None:
    _, double = _model("def")
    with pytest.raises(RuntimeError, match="await"):
        double.call(1)
    assert await double(1) == 2
    with pytest.raises(RuntimeError, match="await"):
        double.call(1)
    await double.close()


@pytest.mark.real_time
async def test_call_passes_errors_and_options_on() -> None:
    async with Batcher(lambda values: [KeyError(v) for v in values]) as batcher:
        with pytest.raises(KeyError):
            await asyncio.to_thread(batcher.call, 1)
        with pytest.raises(headway.DeadlineExceeded):
            await asyncio.to_thread(lambda: batcher.call(1, deadline_ms=0))


@pytest.mark.real_time
async def test_a_batcher_in_one_loop_serves_other_loops_and_threads() -> None:
    model = OneAtATime()
    async with Batcher(model.run) as batcher:

        async def elsewhere(start: int) -> list[int]:
            return await asyncio.gather(*(batcher.submit(n) for n in range(start, start + 100)))

        others = [in_loop_of_its_own(elsewhere, start) for start in (1000, 2000)]
        plain = in_thread(batcher.call, 5)
        here = await elsewhere(3000)
        assert here == [2 * n for n in range(3000, 3100)]
        for start, other in zip((1000, 2000), others, strict=True):
            assert await asyncio.wrap_future(other) == [2 * n for n in range(start, start + 100)]
        assert await asyncio.wrap_future(plain) == 10
    assert not model.overlapped


@pytest.mark.real_time
async def test_a_caller_in_another_loop_may_leave() -> None:
    gate = Gate()
    async with Batcher(gate.run, max_batch_size=1) as batcher:

        async def impatient() -> None:
            task = asyncio.create_task(batcher.submit(2))
            await until_in_loop(lambda: batcher.statistics().queued_items > 0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        running = asyncio.create_task(batcher.submit(1))
        await asyncio.to_thread(gate.started.wait, PATIENCE_S)
        await asyncio.wrap_future(in_loop_of_its_own(impatient))
        assert batcher.statistics().queued_items == 0
        gate.let_go.set()
        assert await running == 2


# ---- closing


@pytest.mark.parametrize("drain_s", [0.0, PATIENCE_S])
@kinds
def test_closing_answers_threads_that_wait_in_call(kind: str, drain_s: float) -> None:
    gate, double = _gate(kind)
    threads = [in_thread(double.call, n) for n in range(5)]
    assert gate.started.wait(PATIENCE_S)
    until(lambda: double.batcher.statistics().queued_items == 4)
    if drain_s:
        gate.let_go.set()
    in_thread(lambda: asyncio.run(double.close(drain_s=drain_s))).result(PATIENCE_S)
    for n, thread in enumerate(threads):
        error = thread.exception(PATIENCE_S)
        assert isinstance(error, headway.Closed) if error else thread.result() == 2 * n
        assert error is None or not drain_s
    gate.let_go.set()


@kinds
def test_after_close_every_way_in_says_closed(kind: str) -> None:
    _, double = _model(kind)
    assert double.call(1) == 2
    closing(double)
    with pytest.raises(headway.Closed):
        double.call(1)
    with pytest.raises(headway.Closed):
        asyncio.run(double(1))
    with pytest.raises(headway.Closed):
        asyncio.run(double.many([1]))
    closing(double)


def test_a_closed_batchers_call_says_closed_though_its_loop_is_gone() -> None:
    async def main() -> Batcher[int, int]:
        async with Batcher(lambda values: values) as batcher:
            return batcher

    batcher = asyncio.run(main())
    with pytest.raises(headway.Closed):
        batcher.call(1)


def test_a_batcher_whose_loop_is_gone_says_so_every_time() -> None:
    batcher = Batcher[int, int](lambda values: values)
    asyncio.run(batcher.__aenter__())

    async def use() -> list[str]:
        said = []
        for n in range(2):
            with pytest.raises(headway.Closed) as closed:
                async with asyncio.timeout(PATIENCE_S):
                    await batcher.submit(n)
            said.append(str(closed.value))
        return said

    assert asyncio.run(use()) == ["<lambda>: its event loop has ended"] * 2
    with pytest.raises(headway.Closed, match="its event loop has ended"):
        batcher.call(1)
    asyncio.run(batcher.close())


def test_a_batcher_whose_loop_ends_at_the_last_moment_says_so_too() -> None:
    batcher = Batcher[int, int](lambda values: values)
    asyncio.run(batcher.__aenter__())
    loop = batcher._shell.event_loop
    assert loop is not None

    class StillOpen(type(loop)):  # type: ignore[misc]
        is_closed = False  # as far as one could see

    loop.__class__ = StillOpen
    for _ in range(2):
        with pytest.raises(headway.Closed, match="its event loop has ended"):
            asyncio.run(batcher.submit(1))
    assert batcher.statistics().queued_items == 0
    asyncio.run(batcher.close())


def test_a_background_loop_that_is_stopped_again_finishes_its_tasks_all_the_same() -> None:
    async def ends_slowly() -> int:
        await asyncio.sleep(0.05)
        return 7

    background = BackgroundLoop("headway-stopped-twice")
    task = asyncio.run_coroutine_threadsafe(ends_slowly(), background.loop)
    stopping = [in_thread(background.stop) for _ in range(3)]
    for each in stopping:
        each.result(PATIENCE_S)
    assert task.result(PATIENCE_S) == 7


# ---- virtual and real loops with one decorated function


def test_one_function_may_be_used_on_virtual_and_on_real_time() -> None:
    for _ in range(2):
        _, double = _model("def")
        for _ in range(2):
            assert run_on_virtual_time(double.many(range(5))) == [0, 2, 4, 6, 8]
            assert asyncio.run(double.many(range(5))) == [0, 2, 4, 6, 8]
        closing(double)


def test_one_function_may_be_used_in_many_virtual_worlds() -> None:
    async def slow(values: list[int]) -> list[int]:
        await asyncio.sleep(1.0)
        return values

    echo: BatchedFunction[int, int] = headway.batched(max_batch_size=2)(slow)
    for _ in range(30):
        assert run_on_virtual_time(echo.many(range(5), deadline_ms=60_000)) == list(range(5))
