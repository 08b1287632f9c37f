"""Processes that tests wait for."""

import os
import select


def wait_gone(pid: int, *, patience_s: float = 60.0) -> None:
    """Until the process is no more: its pidfd says when."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], patience_s)[0], f"{pid} still runs"
    finally:
        os.close(fd)
