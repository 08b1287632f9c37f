"""Models and observers with behaviour you can steer, for tests on a virtual clock."""

import asyncio
from collections.abc import Callable
from typing import Any

from headway.runtime.events import BatchFinished, Event


class FakeModel:
    """Doubles numbers, taking `cost_s + row_s × items` of virtual time for each batch.

    `poison` values make the whole batch raise, as one bad input does with a real model.
    """

    def __init__(
        self,
        *,
        cost_s: float = 0.010,
        row_s: float = 0.0,
        poison: Callable[[Any], bool] | None = None,
    ) -> None:
        self.batches: list[list[Any]] = []  # every batch it was called with, reruns included
        self.running = 0
        self.most_running = 0
        self._cost_s = cost_s
        self._row_s = row_s
        self._poison = poison or (lambda value: False)

    async def __call__(self, values: list[Any]) -> list[Any]:
        self.batches.append(list(values))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self._cost_s + self._row_s * len(values))
        finally:
            self.running -= 1
        if any(self._poison(value) for value in values):
            raise ValueError("poisoned batch")
        return [value * 2 for value in values]


class GatedModel:
    """Answers nothing until `open()`: to look at what happens meanwhile."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self._gate = asyncio.Event()

    def open(self) -> None:
        self._gate.set()

    async def __call__(self, values: list[Any]) -> list[Any]:
        self.batches.append(list(values))
        await self._gate.wait()
        return values


class Recorder:
    """An observer that keeps what it saw."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def batches(self) -> list[BatchFinished]:
        return [event for event in self.events if isinstance(event, BatchFinished)]
