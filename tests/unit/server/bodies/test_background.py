"""Work in the background threads: clients take turns. Counted in pieces of work, not in time."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from headway.runtime.calling.threads import ThreadPool, whose
from headway.server.bodies import background as module
from headway.server.bodies.background import Background, Steps

pytestmark = pytest.mark.real_time


async def of(client: str, background: Background, work: Callable[[Steps], None]) -> None:
    whose.set(client)
    await background.run(work)


class Held:
    """Work that occupies a thread until the test says so."""

    def __init__(self) -> None:
        self.is_begun, self.may_end = threading.Event(), threading.Event()

    def work(self, steps: Steps) -> None:
        self.is_begun.set()
        assert self.may_end.wait(30)


async def test_one_body_waits_for_one_of_another_client_and_not_for_its_hundred() -> None:
    background, done, held = Background(threads=1), list[str](), Held()
    first = asyncio.ensure_future(of("busy", background, held.work))
    await asyncio.to_thread(held.is_begun.wait, 30)
    many = [
        asyncio.ensure_future(of("busy", background, lambda _: done.append("busy")))
        for _ in range(100)
    ]
    await asyncio.sleep(0)
    honest = asyncio.ensure_future(of("honest", background, lambda _: done.append("honest")))
    await asyncio.sleep(0)
    held.may_end.set()
    await asyncio.gather(first, honest, *many)
    assert done.index("honest") <= 1
    assert len(done) == 101


async def test_a_long_piece_of_work_lets_one_of_others_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both threads were busy for seconds with one client's bodies of 60 MiB."""
    monkeypatch.setattr(module, "_TURN_S", 0.0)
    background, done, held = Background(threads=1), list[str](), Held()

    def long(steps: Steps) -> None:
        held.work(steps)
        for number in range(5):
            done.append(f"long{number}")
            steps.rest()

    first = asyncio.ensure_future(of("busy", background, long))
    await asyncio.to_thread(held.is_begun.wait, 30)
    rest = [
        asyncio.ensure_future(of(client, background, lambda _, client=client: done.append(client)))  # type: ignore[misc]
        for client in ("busy", "honest")
    ]
    await asyncio.sleep(0)
    held.may_end.set()
    await asyncio.gather(first, *rest)
    assert done == ["long0", "honest", "long1", "long2", "long3", "long4", "busy"]


async def test_work_that_fails_fails_its_own_caller_alone() -> None:
    background = Background(threads=1)

    def broken(steps: Steps) -> None:
        raise ValueError("mine")

    results = await asyncio.gather(
        of("a", background, broken), of("b", background, lambda _: None), return_exceptions=True
    )
    assert isinstance(results[0], ValueError)
    assert results[1] is None


async def test_work_whose_caller_has_left_does_not_begin() -> None:
    background, done, held = Background(threads=1), list[str](), Held()
    first = asyncio.ensure_future(of("a", background, held.work))
    await asyncio.to_thread(held.is_begun.wait, 30)
    left = asyncio.ensure_future(of("b", background, lambda _: done.append("left")))
    await asyncio.sleep(0)
    left.cancel()
    stays = asyncio.ensure_future(of("c", background, lambda _: done.append("stays")))
    await asyncio.sleep(0)
    held.may_end.set()
    await asyncio.gather(first, stays)
    assert done == ["stays"]


async def test_helpers_take_turns_as_well() -> None:
    """One client's hundred long texts were tokenised before another's short one."""
    helpers, done, held = ThreadPool(1, "headway-test"), list[str](), Held()

    async def run(client: str, work: Callable[[], None]) -> None:
        whose.set(client)
        await helpers.run(work)

    first = asyncio.ensure_future(run("busy", lambda: held.work(module.AT_ONCE)))
    await asyncio.to_thread(held.is_begun.wait, 30)
    names = ["busy"] * 100 + ["honest"]
    rest = [asyncio.ensure_future(run(name, lambda name=name: done.append(name))) for name in names]  # type: ignore[misc]
    await asyncio.sleep(0)
    held.may_end.set()
    await asyncio.gather(first, *rest)
    assert done.index("honest") <= 1
    helpers.close()
