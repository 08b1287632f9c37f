"""Calls of `prepare`, `size` and `finish` that do not come back, deadlines wherever the time goes,
and threads that cannot be started."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headway import Batcher, DeadlineExceeded, InvalidInput, Model, ModelFailed, batched
from headway.errors import NotReady
from headway.events import Refused
from headway.runtime.calling import callback_thread
from headway.testing import FakeModel, Recorder

pytestmark = pytest.mark.real_time
MOST_S = 20.0


class Gate:
    """Whoever is called with "stuck" stays until it opens."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.entered = threading.Semaphore(0)

    def __call__(self, value: Any) -> Any:
        if value == "stuck":
            self.entered.release()
            assert self.is_open.wait(MOST_S)
        return value

    def size(self, value: Any) -> int:
        self(value)
        return 1


class Finishing(Model[Any, Any]):
    def __init__(self, gate: Gate) -> None:
        self.finish = gate  # type: ignore[method-assign, assignment]

    def predict(self, items: list[Any]) -> list[Any]:
        return items

    def finish(self, result: Any) -> Any:
        raise AssertionError("the gate stands in its place")


def stuck_in(where: str, gate: Gate, **options: Any) -> Batcher[Any, Any]:
    if where == "prepare":
        return Batcher(lambda items: items, prepare=gate, **options)
    if where == "size":
        return Batcher(lambda items: items, size=gate.size, **options)
    return Batcher(Finishing(gate), **options)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.is_open.set()


async def entered(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.entered.acquire, timeout=MOST_S)


WHERE = pytest.mark.parametrize("where", ["prepare", "size", "finish"])


@WHERE
async def test_whoever_has_a_deadline_gets_an_answer_behind_a_stuck_one(
    where: str, gate: Gate
) -> None:
    async with asyncio.timeout(MOST_S), stuck_in(where, gate) as batcher:
        stuck = asyncio.create_task(batcher.submit("stuck"))
        await entered(gate)
        with pytest.raises(DeadlineExceeded):
            await batcher.submit("other", deadline_ms=20)
        gate.is_open.set()
        assert await stuck == "stuck"


@WHERE
async def test_the_stuck_one_has_its_deadline_too(where: str, gate: Gate) -> None:
    async with asyncio.timeout(MOST_S), stuck_in(where, gate) as batcher:
        with pytest.raises(DeadlineExceeded):
            await batcher.submit("stuck", deadline_ms=20)
        gate.is_open.set()


@WHERE
async def test_others_go_on_in_another_thread(
    where: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback_thread, "_LONG_S", 0.05)
    async with asyncio.timeout(MOST_S), stuck_in(where, gate) as batcher:
        stuck = asyncio.create_task(batcher.submit("stuck"))
        await entered(gate)
        assert await batcher.many(["a", "b"]) == ["a", "b"]
        assert not batcher.is_stuck
        assert not stuck.done()  # it may only be slow
        gate.is_open.set()
        assert await stuck == "stuck"
        assert await batcher.submit("c") == "c"


@WHERE
async def test_with_a_limit_the_stuck_one_is_told(where: str, gate: Gate) -> None:
    async with (
        asyncio.timeout(MOST_S),
        stuck_in(where, gate, execute_timeout_ms=500) as batcher,
    ):
        with pytest.raises(ModelFailed, match="did not come back within"):
            await batcher.submit("stuck")
        assert await batcher.submit("a") == "a"


@WHERE
async def test_with_a_long_limit_others_do_not_wait_for_it(
    where: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback_thread, "_LONG_S", 0.02)
    async with (
        asyncio.timeout(MOST_S),
        stuck_in(where, gate, execute_timeout_ms=500) as batcher,
    ):
        stuck = asyncio.create_task(batcher.submit("stuck"))
        await entered(gate)
        assert await batcher.submit("a") == "a"
        with pytest.raises(ModelFailed, match="did not come back within"):
            await stuck


@WHERE
async def test_past_a_number_of_them_nobody_is_let_in_until_one_is_back(
    where: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback_thread, "_LONG_S", 0.05)
    monkeypatch.setattr(callback_thread, "_MOST_STUCK", 2)
    async with asyncio.timeout(MOST_S), stuck_in(where, gate) as batcher:
        stuck = [asyncio.create_task(batcher.submit("stuck")) for _ in range(2)]
        for _ in stuck:
            await entered(gate)
        waiting = asyncio.create_task(batcher.submit("a"))
        with pytest.raises(NotReady):
            await waiting
        assert batcher.is_stuck
        assert "hang" in batcher.trouble
        with pytest.raises(NotReady):
            await batcher.submit("b")
        gate.is_open.set()
        assert await asyncio.gather(*stuck) == ["stuck", "stuck"]
        for thread in threading.enumerate():  # it has handed over, and is about to end
            if thread.name == f"headway-front-{batcher.name}":
                await asyncio.to_thread(thread.join, MOST_S)
        assert not batcher.is_stuck
        assert not batcher.trouble
        assert await batcher.submit("c") == "c"


async def test_what_was_done_before_the_stuck_one_is_handed_over(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback_thread, "_LONG_S", 0.05)
    monkeypatch.setattr(
        callback_thread, "_HAND_OVER_S", MOST_S
    )  # together, if it ever comes to that
    async with asyncio.timeout(MOST_S), stuck_in("prepare", gate) as batcher:
        first = asyncio.create_task(batcher.submit("first"))
        stuck = asyncio.create_task(batcher.submit("stuck"))
        assert await first == "first"
        gate.is_open.set()
        assert await stuck == "stuck"


async def test_a_running_batch_is_answered_at_its_callers_deadline(gate: Gate) -> None:
    recorder = Recorder()
    batcher: Batcher[Any, Any] = Batcher(
        lambda items: [gate(item) for item in items], observers=[recorder]
    )
    async with asyncio.timeout(MOST_S), batcher:
        with pytest.raises(DeadlineExceeded):
            await batcher.submit("stuck", deadline_ms=20)
        assert [each.reason for each in recorder.events if isinstance(each, Refused)] == [
            DeadlineExceeded.code
        ]
        queued = asyncio.create_task(batcher.submit("queued", deadline_ms=20))
        with pytest.raises(DeadlineExceeded):
            await queued
        gate.is_open.set()
        assert await batcher.submit("next") == "next"


async def test_a_stream_ends_at_its_readers_deadline() -> None:
    class Streaming(Model[Any, Any]):
        async def stream(self, items: list[Any]) -> AsyncIterator[list[Any]]:  # type: ignore[override]
            yield ["first" for _ in items]
            await asyncio.Event().wait()

    chunks = []

    async def read(batcher: Batcher[Any, Any]) -> None:
        async for chunk in batcher.stream("a", deadline_ms=50):
            chunks.append(chunk)

    async with asyncio.timeout(MOST_S):
        batcher: Batcher[Any, Any] = await Batcher(Streaming()).__aenter__()
        with pytest.raises(DeadlineExceeded):
            await read(batcher)
        await batcher.close(drain_s=0)
    assert chunks == ["first"]


# ---- threads that cannot be started


@contextmanager
def no_threads(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    """As where a container's limit is reached."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(names):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        yield


@pytest.mark.parametrize("where", ["prepare", "finish"])
async def test_without_a_thread_a_caller_is_told_and_the_next_is_served(
    where: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(MOST_S), stuck_in(where, gate) as batcher:
        with no_threads(monkeypatch, "headway-front"):
            for _ in range(2):
                with pytest.raises(NotReady, match="can't start new thread"):
                    await batcher.submit("a")
        assert await batcher.submit("b") == "b"


async def test_a_batcher_without_worker_threads_says_so_and_works_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @batched(workers=2)
    def double(values: list[int]) -> list[int]:
        return [2 * value for value in values]

    async with asyncio.timeout(MOST_S):
        with no_threads(monkeypatch, "headway-double-1"):
            for _ in range(2):
                with pytest.raises(NotReady, match="can't start new thread"):
                    await double(1)
        assert await double(1) == 2
        await double.close()


def test_calling_from_a_thread_without_a_background_loop_says_so_and_works_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @batched
    def double(values: list[int]) -> list[int]:
        return [2 * value for value in values]

    with no_threads(monkeypatch, "headway-double"):
        for _ in range(2):
            with pytest.raises(NotReady, match="can't start new thread"):
                double.call(1)
    assert double.call(1) == 2
    asyncio.run(double.close())


async def test_a_batcher_that_could_not_be_opened_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batcher: Batcher[Any, Any] = Batcher(lambda items: items, name="thing")
    with no_threads(monkeypatch, "headway-thing"), pytest.raises(NotReady):
        await batcher.__aenter__()
    assert not batcher.is_open


# ---- sizes that nobody can reckon with


class Huge:
    def __index__(self) -> int:
        raise ValueError("no idea")


@pytest.mark.parametrize(
    "size",
    [10**400, 10**5000, 2**64, Huge(), -(10**5000)],
    ids=["400 digits", "5000 digits", "2**64", "raises", "5000 digits below 0"],
)
@pytest.mark.parametrize("prepare", [None, lambda value: value])
async def test_a_size_beyond_reckoning_hurts_only_its_caller(
    size: Any, prepare: Callable[[Any], Any] | None
) -> None:
    async with Batcher(
        FakeModel(), prepare=prepare, size=lambda value: size if value else 1
    ) as batcher:
        results = await asyncio.gather(
            *(batcher.submit(value) for value in (0, 1, 0)), return_exceptions=True
        )
    assert [results[0], results[2]] == [0, 0]
    assert isinstance(results[1], InvalidInput)
    assert len(str(results[1])) < 200


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("where", ["prepare", "size"])
async def test_a_callback_that_would_end_the_process_hurts_only_its_caller(
    where: str, error: type[BaseException]
) -> None:
    def leave(value: int) -> int:
        if value:
            raise error
        return value

    options: Any = {where: leave}
    async with Batcher(FakeModel(), **options) as batcher:
        results = await asyncio.gather(
            *(batcher.submit(value) for value in (0, 1, 0)), return_exceptions=True
        )
    assert [results[0], results[2]] == [0, 0]
    assert isinstance(results[1], ModelFailed)
