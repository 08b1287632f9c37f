"""Where requests of many values wait until the queue has room for more of them."""

import asyncio
from contextlib import suppress
from typing import NamedTuple

from headway.runtime.batching.call_queue import CallQueue
from headway.runtime.batching.shell import Shell


class _Waiter(NamedTuple):
    since: int
    future: "asyncio.Future[None]"


class Room:
    """The part of a queue that such requests may fill."""

    def __init__(self, shell: Shell, queue: CallQueue) -> None:
        self._shell = shell
        self._queue = queue
        self._waiters: list[_Waiter] = []
        self.starts = 0  # batches started so far; counted under the shell's lock

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiters)

    @property
    def is_idle(self) -> bool:
        """Is no item queued or running? Then waiting would change nothing."""
        return not self._shell.inbox and self._queue.scheduler.is_idle

    def has_some(self, since: int) -> bool:
        """Is a new attempt worth it? `since`: the number of batch starts at the last refusal.

        Read without the lock: a call that is refused after all waits again.
        """
        scheduler = self._queue.scheduler
        rows = scheduler.queued_rows + len(self._shell.inbox)
        if rows < scheduler.policy.fan_out_rows and self.starts != since:
            return True
        return self.is_idle or not self._shell.takes_calls

    async def wait(self, since: int) -> None:
        """Wait until `has_some`."""
        waiter = _Waiter(since, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            self.look()  # earlier changes were not announced to this waiter
            await waiter.future
        finally:
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def look(self) -> None:
        """Wake waiters, first come, first served. From any thread, after any change."""
        for waiter in list(self._waiters):
            if not self.has_some(waiter.since):
                continue
            with suppress(RuntimeError):  # its loop is closed: no caller waits any more
                waiter.future.get_loop().call_soon_threadsafe(_wake, waiter.future)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
