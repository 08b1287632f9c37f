"""A page that both processes see, for what must not wait for a message: the child's heartbeat, and
which call is no longer wanted. One writer for each number; eight aligned bytes are written at once.
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
        """The call that nobody waits for any more; 0: none."""
        return self._numbers[_CANCELLED]

    def cancel(self, call: int) -> None:
        with suppress(ValueError):  # closed: there is nobody to tell
            self._numbers[_CANCELLED] = call

    def close(self) -> None:
        """At once: the map keeps its file open until the garbage collector comes by."""
        self._numbers.release()
        self._map.close()


def create() -> tuple[ControlPage, int]:
    """A new page with its file, which the caller closes."""
    fd = os.memfd_create("headway-control", os.MFD_CLOEXEC)
    os.ftruncate(fd, mmap.PAGESIZE)
    return ControlPage(fd), fd
