"""Tells systemd how it goes (`Type=notify`), where systemd has asked: one datagram each time."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)


def ready() -> None:
    _send("READY=1")


def reloading() -> None:
    """`ready` comes after it."""
    _send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


def stopping() -> None:
    _send("STOPPING=1")


class SystemdWatchdog:
    """Notifies systemd's watchdog (`WatchdogSec=`) as long as work completes. A blocked event loop
    does not notify it either: both end in a restart."""

    def __init__(self, is_live: Callable[[], bool]) -> None:
        self._is_live = is_live
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        every_s = _watchdog_every_s(os.environ)
        if every_s is not None:
            self._tell(asyncio.get_running_loop(), every_s)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self, loop: asyncio.AbstractEventLoop, every_s: float) -> None:
        if self._is_live():
            _send("WATCHDOG=1")
        self._timer = loop.call_later(every_s, self._tell, loop, every_s)


def _watchdog_every_s(environment: Mapping[str, str]) -> float | None:
    """A third of the time that systemd waits; None: it does not ask this process."""
    text, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not text.isdigit() or not int(text) or pid not in ("", str(os.getpid())):
        return None
    return int(text) / 3e6


def _send(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # an abstract one
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
            notifier.sendto(state.encode(), address)
    except OSError as error:
        _log.warning("systemd cannot be notified: %s", error)
