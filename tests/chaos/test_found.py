"""What chaos has found, each as small as it can be shown."""

import asyncio
import gc
import os
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from benchmarks.chaos.models import Texts, digest_of

import headway
from headway.errors import Poison

PATIENCE_S = 60.0


def run(main: Coroutine[Any, Any, None]) -> None:
    """In real time, and never for ever."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await main

    asyncio.run(bounded())


def texts(**options: Any) -> "headway.Batcher[str, str]":
    return headway.Batcher(Texts, worker="process", **options)


async def all_of(batcher: "headway.Batcher[str, str]", *values: str) -> list[Any]:
    return await asyncio.gather(*map(batcher.submit, values), return_exceptions=True)


def test_an_input_that_hangs_does_not_fail_those_who_came_with_it() -> None:
    async def main() -> None:
        async with texts(execute_timeout_ms=500, policy="static", max_batch_size=4) as batcher:
            values = ["fine:1", "hang:2", "fine:3", "fine:4"]
            answers = await all_of(batcher, *values)
            assert type(answers.pop(1)) is Poison
            assert answers == [digest_of(each.encode()) for each in values if "hang" not in each]

    run(main())


def test_a_model_that_has_met_poison_is_still_open() -> None:
    async def main() -> None:
        async with texts() as batcher:
            with pytest.raises(Poison):
                await batcher.submit("exit:1")
            assert batcher.is_open
            assert await batcher.submit("fine:2") == digest_of(b"fine:2")

    run(main())


def test_a_worker_that_has_leaked_all_of_its_memory_is_replaced() -> None:
    async def main() -> None:
        async with texts(worker_memory_mb=384) as batcher:
            await all_of(batcher, *(f"leak:{number}" for number in range(16)))
            assert await batcher.submit("big:1") == digest_of(b"big:1")

    run(main())


def control_pages() -> int:
    """Those that this process has open, one for each worker process."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # what listed them
            count += "headway-control" in os.readlink(f"/proc/self/fd/{name}")
    return count


def test_lost_workers_leave_no_file_descriptors() -> None:
    async def main() -> None:
        async with texts() as batcher:
            await batcher.submit("fine:0")
            before = control_pages()
            for number in range(8):
                os.kill(batcher.worker_processes[0].pid or 0, signal.SIGKILL)
                await batcher.submit(f"fine:{number}")
            assert control_pages() <= before + 1  # a spare process may have come

    gc.disable()  # it may take a server minutes to get there
    try:
        run(main())
    finally:
        gc.enable()
