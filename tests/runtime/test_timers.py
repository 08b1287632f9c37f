"""Waits shorter than the event loop can count."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headway import Batcher
from headway.core.batching.scheduler import Scheduler
from headway.core.items import Action

uvloop = pytest.importorskip("uvloop")


def doubled(values: list[int]) -> list[int]:
    return [2 * value for value in values]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_wait_of_less_than_a_millisecond_does_not_spin(
    run: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    next_action = Scheduler.next_action

    def counted(scheduler: Scheduler, now: float) -> Action:
        nonlocal asked
        asked += 1
        return next_action(scheduler, now)

    monkeypatch.setattr(Scheduler, "next_action", counted)

    async def main() -> None:
        async with Batcher(doubled, policy="window", max_wait_ms=0.45) as batcher:
            for value in range(20):
                assert await batcher.submit(value) == 2 * value

    run(main())
    assert asked <= 20 * 8
