"""The process's signals: the first SIGTERM or SIGINT asks, the second one ends; SIGHUP re-reads."""

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any, Self

_log = logging.getLogger(__name__)
_STOPS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """`with Signals(leave, hang_up) as signals: await signals.stop.wait()`, in the event loop's
    thread. `leave` is called at the first signal: no request after that finds us ready.

    After the first the signals are the system's again: a second one ends the process at once, even
    where the event loop hangs.
    """

    def __init__(
        self, leave: Callable[[], None], hang_up: Callable[[], None] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave = leave
        self.stop = asyncio.Event()
        self._hang_up = hang_up
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for each in _STOPS:  # not the event loop's handlers: it may hang
            self._before[each] = signal.signal(each, self._asked)
        if self._hang_up is not None:
            self._before[signal.SIGHUP] = signal.getsignal(signal.SIGHUP)
            self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        return self

    def __exit__(self, *_: object) -> None:
        for each, before in self._before.items():
            if each is signal.SIGHUP:
                self._loop.remove_signal_handler(each)
            signal.signal(each, before)

    def _asked(self, *_: object) -> None:
        """Runs in the middle of anything this thread does, so it only schedules `_stop`."""
        for each in _STOPS:
            signal.signal(each, signal.SIG_DFL)
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._hang_up is not None:  # too late for another configuration
            self._loop.remove_signal_handler(signal.SIGHUP)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._leave()
        self.stop.set()
        _log.info("stopping when running requests are finished; a second signal ends the process")
