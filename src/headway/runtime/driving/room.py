"""Where requests of many values wait until the queue has room for more of them."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headway.runtime.driving.driver import Driver


class _Waiter(NamedTuple):
    since: int
    future: "asyncio.Future[None]"


class Room:
    """What is left of a driver's queue for such requests. A part of the driver."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._waiters: list[_Waiter] = []
        self.starts = 0  # batches started so far; counted under the driver's lock

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiters)

    @property
    def is_idle(self) -> bool:
        """Nothing is queued and nothing runs: waiting would change nothing."""
        return not self._driver.inbox_items and self._driver.scheduler.is_idle

    def has_some(self, since: int) -> bool:
        """Is it worth trying now? `since`: the number of starts when it last was not.

        A look without the lock: whoever is refused after all waits again.
        """
        driver = self._driver
        rows = driver.scheduler.queued_rows + driver.inbox_items
        if rows < driver.scheduler.policy.fan_out_rows and self.starts != since:
            return True
        return self.is_idle or not driver.takes_calls

    async def wait(self, since: int) -> None:
        """Until `has_some`."""
        waiter = _Waiter(since, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            self.look()  # what has changed before we were in the list told nobody
            await waiter.future
        finally:
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def look(self) -> None:
        """From any thread, after whatever may have made room. First come, first told."""
        for waiter in list(self._waiters):
            if not self.has_some(waiter.since):
                continue
            with suppress(RuntimeError):  # its loop is closed: nobody waits any more
                waiter.future.get_loop().call_soon_threadsafe(_wake, waiter.future)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
