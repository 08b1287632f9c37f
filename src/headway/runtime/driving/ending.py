"""How a driver ends: closed after a drain, or crashed. Whoever still waits is answered.

A part of the driver: it acts on the driver's queue and calls, under the driver's lock.
"""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from headway.errors import Closed
from headway.runtime.driving.calls import Answerable, DirectCall
from headway.runtime.driving.state import State
from headway.runtime.events import Crashed, Stopped

if TYPE_CHECKING:
    from headway.runtime.driving.driver import Driver

_log = logging.getLogger(__name__)


class Ending:
    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._drained: list[asyncio.Future[None]] = []  # whoever waits for the last answer
        self._is_released = False

    async def close(self, drain_s: float) -> None:
        """Refuse, drain for so long, answer the rest with `Closed`, release the workers."""
        driver = self._driver
        drained = asyncio.get_running_loop().create_future()
        with driver.lock:
            if driver.state is State.FORKED:
                return  # there is nothing of it here
            if driver.state in (State.NEW, State.OPENING, State.CLOSED):
                driver.state = State.CLOSED  # whoever is loading finds it so afterwards
                return
            if driver.state is State.OPEN:
                driver.take_in()
                driver.state = State.CLOSING
                driver.scheduler.drain()
            if driver.state is State.CLOSING:
                self._drained.append(drained)
            else:  # crashed: everyone has been answered
                drained.set_result(None)
        driver.in_home(driver.drive)
        try:
            async with asyncio.timeout(drain_s):
                await drained
        except TimeoutError:
            pass
        finally:  # also when closing itself is cancelled
            self._release()

    def check_drained(self) -> None:
        """While closing, after each answer: was it the last?"""
        driver = self._driver
        with driver.lock:
            if driver.calls or not driver.scheduler.is_idle:
                return
            drained, self._drained = self._drained, []
        _wake(drained)

    def _release(self) -> None:
        driver = self._driver
        with driver.lock:
            if self._is_released:
                return
            self._is_released = True
            if driver.state is State.CLOSING:
                driver.state = State.CLOSED
                for item_id in driver.calls:
                    driver.scheduler.cancel(item_id)
            left = self._take_unanswered()
            workers = driver.crew.dismiss()
            drained, self._drained = self._drained, []
        for worker in workers:
            worker.stop()
        driver.in_home(lambda: self._tell_stopped(left))
        _wake(drained)  # whoever else is closing

    def _tell_stopped(self, left: list[Answerable]) -> None:
        driver = self._driver
        driver.disarm()
        for call in left:
            call.fail(Closed(f"{driver.name} stopped before this was answered"))
        driver.observers.emit(Stopped(driver.name, len(left)))
        if driver.floating is not None:
            driver.floating.close()

    def _take_unanswered(self) -> list[Answerable]:
        """Under the lock: everyone who still waits, queued, running or in the inbox."""
        driver = self._driver
        unanswered = [*driver.empty_inbox(), *driver.waiting_calls()]
        driver.calls.clear()
        return unanswered

    def turn_away(self) -> None:
        """The end came between a look at the state and the append in `enqueue_plain`."""
        driver = self._driver
        for call in driver.empty_inbox():
            error = driver.closed()
            if not isinstance(call, DirectCall):
                call.detach()  # its own loop is certain to run; the home may have ended
            call.fail(error)
            driver.report_refusal(error)

    # ---- when we fail ourselves

    def crashed(self, error: Exception) -> None:
        """The batcher is broken: tell every caller, and stay visibly broken."""
        driver = self._driver
        with driver.lock:
            if driver.state is State.CRASHED:
                return
            driver.crash = error
            driver.state = State.CRASHED
            calls = self._take_unanswered()
            drained, self._drained = self._drained, []
        _log.critical(
            "%s crashed; every caller is answered with Closed", driver.name, exc_info=error
        )
        driver.in_home(lambda: self._tell_crashed(calls, error))
        _wake(drained)

    def _tell_crashed(self, calls: list[Answerable], error: Exception) -> None:
        driver = self._driver
        for call in calls:
            failure = Closed(f"{driver.name} crashed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            call.fail(failure)
        driver.observers.emit(Crashed(driver.name, error))


def _wake(futures: "list[asyncio.Future[None]]") -> None:
    for future in futures:
        with suppress(RuntimeError):  # its loop is closed: nobody waits any more
            future.get_loop().call_soon_threadsafe(_set_done, future)


def _set_done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
