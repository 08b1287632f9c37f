"""Runs batches in the batcher's own event loop: `async def` models, all under a virtual clock."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from headway.runtime.driving.event_loop import Home
from headway.runtime.jobs.jobs import Job


class InlineWorker:
    def __init__(self, home: Callable[[], Home]) -> None:
        self._home = home  # asked anew for every job: a decorated function's home may move
        self._task: asyncio.Task[None] | None = None  # a reference, or the loop may drop the task
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, job: Job) -> None:
        home = self._home()
        self._loop = home.loop
        if home.is_here:
            self._start_here(home, job)
        else:
            with suppress(RuntimeError):  # closed just now: the job is lost
                home.post(lambda: self._start_here(home, job))

    @property
    def is_lost(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def _start_here(self, home: Home, job: Job) -> None:
        self._task = home.loop.create_task(job.run_async())

    def stop(self) -> None:
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)
