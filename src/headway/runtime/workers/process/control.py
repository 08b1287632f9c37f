"""A page of memory shared by both processes, for what must not wait for a message: the child's
heartbeat, and the cancelled call. One writer for each number; eight aligned bytes are written at
once.
"""

import mmap
import os
from contextlib import suppress
from typing import Final

_BEATS: Final = 0
_CANCELLED: Final = 1


class ControlPage:
    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, mmap.PAGESIZE)
        self._numbers = memoryview(self._map).cast("Q")

    @property
    def beats(self) -> int:
        return self._numbers[_BEATS]

    def beat(self) -> None:
        self._numbers[_BEATS] += 1

    @property
    def cancelled(self) -> int:
        """The call without a waiting caller, to be cancelled; 0: none."""
        return self._numbers[_CANCELLED]

    def cancel(self, call: int) -> None:
        with suppress(ValueError):  # closed: the process is gone
            self._numbers[_CANCELLED] = call

    def close(self) -> None:
        """Close it now: else its file stays open until it is garbage collected."""
        self._numbers.release()
        self._map.close()


def create() -> tuple[ControlPage, int]:
    """A new page with its file, which the caller closes."""
    fd = os.memfd_create("headway-control", os.MFD_CLOEXEC)
    os.ftruncate(fd, mmap.PAGESIZE)
    return ControlPage(fd), fd
