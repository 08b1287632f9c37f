"""Work in the background threads: counted in pieces of work, not in time."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from headway.errors import DeadlineExceeded
from headway.runtime.calling.threads import ThreadPool, current_client
from headway.server.bodies.background import Background

pytestmark = pytest.mark.real_time


class Held:
    """Work that occupies a thread until the test says so."""

    def __init__(self) -> None:
        self.is_begun, self.may_end = threading.Event(), threading.Event()

    def work(self) -> None:
        self.is_begun.set()
        assert self.may_end.wait(30)


async def test_work_that_fails_fails_its_own_caller_alone() -> None:
    background = Background(threads=1)

    def broken() -> None:
        raise ValueError("mine")

    results = await asyncio.gather(
        background.run(broken), background.run(lambda: 7), return_exceptions=True
    )
    assert isinstance(results[0], ValueError)
    assert results[1] == 7


async def test_work_whose_caller_has_left_does_not_begin() -> None:
    background, done, held = Background(threads=1), list[str](), Held()
    first = asyncio.ensure_future(background.run(held.work))
    await asyncio.to_thread(held.is_begun.wait, 30)
    left = asyncio.ensure_future(background.run(lambda: done.append("left")))
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(DeadlineExceeded):
        await background.run(lambda: done.append("late"), timeout_s=1e-6)
    stays = asyncio.ensure_future(background.run(lambda: done.append("stays")))
    await asyncio.sleep(0)
    held.may_end.set()
    await asyncio.gather(first, stays)
    assert done == ["stays"]


async def test_helpers_take_turns_as_well() -> None:
    """One client's hundred long texts were tokenised before another's short one."""
    helpers, done, held = ThreadPool(1, "headway-test"), list[str](), Held()

    async def run(client: str, work: Callable[[], None]) -> None:
        current_client.set(client)
        await helpers.run(work)

    first = asyncio.ensure_future(run("busy", held.work))
    await asyncio.to_thread(held.is_begun.wait, 30)
    names = ["busy"] * 100 + ["honest"]
    rest = [asyncio.ensure_future(run(name, lambda name=name: done.append(name))) for name in names]  # type: ignore[misc]
    await asyncio.sleep(0)
    held.may_end.set()
    await asyncio.gather(first, *rest)
    assert done.index("honest") <= 1
    helpers.close()
