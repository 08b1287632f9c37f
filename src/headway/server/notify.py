"""Tells systemd how it goes (`Type=notify`), where systemd has asked: one datagram each time."""

import logging
import os
import socket
import time

_log = logging.getLogger(__name__)


def ready() -> None:
    _send("READY=1")


def reloading() -> None:
    """`ready` comes after it."""
    _send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


def stopping() -> None:
    _send("STOPPING=1")


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
        _log.warning("systemd cannot be told: %s", error)
