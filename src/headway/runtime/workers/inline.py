"""Runs batches in the batcher's own event loop: `async def` models, all under a virtual clock."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from headway.runtime.driving.event_loop import EventLoop
from headway.runtime.jobs.jobs import Job


class InlineWorker:
    def __init__(self, current_loop: Callable[[], EventLoop]) -> None:
        self._current_loop = current_loop  # called for every job: it may change
        self._task: asyncio.Task[None] | None = None  # the loop itself keeps no reference
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, job: Job) -> None:
        event_loop = self._current_loop()
        self._loop = event_loop.loop
        if event_loop.is_here:
            self._start_here(event_loop, job)
        else:
            with suppress(RuntimeError):  # closed just now: the job is lost
                event_loop.post(lambda: self._start_here(event_loop, job))

    @property
    def is_lost(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def _start_here(self, event_loop: EventLoop, job: Job) -> None:
        self._task = event_loop.loop.create_task(job.work())

    def stop(self) -> None:
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)
