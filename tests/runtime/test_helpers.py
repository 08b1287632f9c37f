"""Threads that stay, for short work off the event loop."""

import asyncio
import threading

import pytest

from headway.runtime.calling.threads import ThreadPool

pytestmark = pytest.mark.real_time
MOST_S = 30.0


def threads_of(name: str) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == name]


async def test_work_is_done_by_a_few_threads_that_stay() -> None:
    helpers = ThreadPool(2, "few")
    seen = [await helpers.run(threading.current_thread) for _ in range(5)]
    found = await asyncio.gather(*[helpers.run(divmod, number, 3) for number in range(50)])
    assert found == [divmod(number, 3) for number in range(50)]
    assert {each.name for each in seen} == {"few"}
    threads = threads_of("few")
    assert len(threads) == 2
    helpers.close()
    for thread in threads:
        thread.join(MOST_S)
    assert threads_of("few") == []


async def test_what_work_raises_is_its_callers() -> None:
    helpers = ThreadPool(1, "raising")
    with pytest.raises(ZeroDivisionError):
        await helpers.run(divmod, 1, 0)
    with pytest.raises(RuntimeError, match="SystemExit"):
        await helpers.run(exit, 3)
    assert await helpers.run(divmod, 7, 2) == (3, 1)
    helpers.close()


async def test_work_that_takes_its_time_leaves_the_other_thread_to_others() -> None:
    helpers, gate = ThreadPool(2, "slow"), threading.Event()
    held = asyncio.ensure_future(helpers.run(gate.wait, MOST_S))
    for number in range(10):
        assert await helpers.run(abs, -number) == number
    assert not held.done()
    gate.set()
    assert await held
    helpers.close()


async def test_a_caller_that_leaves_is_not_missed() -> None:
    helpers, gate = ThreadPool(1, "left"), threading.Event()
    held = asyncio.ensure_future(helpers.run(gate.wait, MOST_S))
    await asyncio.sleep(0)
    held.cancel()
    gate.set()
    assert await helpers.run(abs, -1) == 1
    helpers.close()
