"""Runs batches in the batcher's own event loop: `async def` models, and all under a virtual clock."""

import asyncio
from collections.abc import Callable

from headway.runtime.home import Home
from headway.runtime.jobs import Job


class InlineWorker:
    def __init__(self, home: Callable[[], Home]) -> None:
        self._home = home  # asked anew for every job: a decorated function's home may move
        self._task: asyncio.Task[None] | None = None  # a reference, or the loop may drop the task

    def start(self, job: Job) -> None:
        home = self._home()
        if home.is_here:
            self._start_here(home, job)
        else:
            home.post(lambda: self._start_here(home, job))

    def _start_here(self, home: Home, job: Job) -> None:
        self._task = home.loop.create_task(job.run_async())

    def stop(self) -> None:
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)
