"""What was used before a fork, in the child: decorated functions work, opened batchers say at once
what to do, and nothing of the parent's is touched."""

import asyncio
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headway import Batcher, Closed, Model, batched
from headway.runtime.workers import HAS_PROCESSES

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork"),
]
MOST_S = 30


def in_child(check: Callable[[], object]) -> None:
    """Runs it in a fork of this process. Who hangs is ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(MOST_S)
            check()
            code = 0
        except BaseException:  # noqa: BLE001  the child must end here
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def double(values: list[int]) -> list[int]:
    return [2 * value for value in values]


async def double_async(values: list[int]) -> list[int]:
    return [2 * value for value in values]


class Doubling(Model[int, int]):
    def prepare(self, raw: int) -> int:
        return raw

    def predict(self, items: list[int]) -> list[int]:
        return double(items)

    def finish(self, result: int) -> int:
        return result


@pytest.mark.parametrize("function", [double, double_async])
def test_a_decorated_function_works_in_the_child_and_in_the_parent(function: Any) -> None:
    doubled = batched(function)
    assert doubled.call(1) == 2
    assert asyncio.run(doubled.many([1, 2])) == [2, 4]

    def check() -> None:
        assert doubled.call(2) == 4
        assert asyncio.run(doubled.many([3, 4])) == [6, 8]
        asyncio.run(doubled.close())

    in_child(check)
    assert doubled.call(5) == 10
    in_child(check)  # once more
    asyncio.run(doubled.close())


def test_so_it_does_with_prepare_and_in_several_threads() -> None:
    doubled = batched(prepare=abs, workers=2)(double)
    assert doubled.call(-1) == 2

    def check() -> None:
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda n=n: answers.append(doubled.call(-n)))  # type: ignore[misc]
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == [2 * n for n in range(8)]

    in_child(check)
    assert doubled.call(-2) == 4
    asyncio.run(doubled.close())


def test_a_fork_while_the_parent_is_in_the_midst_of_it() -> None:
    """Its lock may be held, its worker busy: the child has its own."""
    entered, go_on = threading.Event(), threading.Event()

    def wait(values: list[int]) -> list[int]:
        if 1 in values:
            entered.set()
            assert go_on.wait(MOST_S)
        return double(values)

    waiting = batched(wait)
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(waiting.call(1)))
    caller.start()
    assert entered.wait(MOST_S)
    with waiting.batcher._shell.lock:
        in_child(lambda: waiting.call(2))
    go_on.set()
    caller.join()
    assert answers == [2]
    asyncio.run(waiting.close())


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.mark.parametrize("make", [lambda: Batcher(double), lambda: Batcher(Doubling())])
def test_an_opened_batcher_says_what_to_do(
    make: Callable[[], Batcher[Any, Any]], loop: asyncio.AbstractEventLoop
) -> None:
    batcher = make()
    loop.run_until_complete(batcher.__aenter__())
    assert loop.run_until_complete(batcher.submit(1)) == 2

    def check() -> None:
        with pytest.raises(Closed, match="before this process was forked"):
            asyncio.run(batcher.submit(1))
        with pytest.raises(Closed, match="before this process was forked"):
            batcher.call(1)
        assert not batcher.is_open
        asyncio.run(batcher.close())

        async def anew() -> int:
            async with make() as another:
                return await another.submit(3)  # type: ignore[no-any-return]

        assert asyncio.run(anew()) == 6

    in_child(check)
    assert loop.run_until_complete(batcher.submit(2)) == 4
    loop.run_until_complete(batcher.close())


def test_a_batcher_that_was_only_made_is_opened_in_the_child() -> None:
    batcher: Batcher[int, int] = Batcher(double)

    async def use() -> int:
        async with batcher:
            return await batcher.submit(1)

    in_child(lambda: asyncio.run(use()))
    assert asyncio.run(use()) == 2


def pids(values: list[int]) -> list[int]:
    return [os.getpid() for _ in values]


@pytest.mark.skipif(not HAS_PROCESSES, reason="there are no worker processes here")
def test_worker_processes_are_each_processs_own(loop: asyncio.AbstractEventLoop) -> None:
    here = batched(worker="process")(pids)
    before = here.call(1)
    opened: Batcher[int, int] = Batcher(pids, worker="process")
    loop.run_until_complete(opened.__aenter__())
    opened_before = loop.run_until_complete(opened.submit(1))

    def check() -> None:
        assert here.call(1) not in (before, os.getpid())
        asyncio.run(here.close())
        with pytest.raises(Closed, match="before this process was forked"):
            asyncio.run(opened.submit(1))
        asyncio.run(opened.close())

    in_child(check)
    assert here.call(2) == before  # it still lives
    assert loop.run_until_complete(opened.submit(2)) == opened_before
    loop.run_until_complete(opened.close())
    asyncio.run(here.close())
