"""Memory that two processes share, to pass arrays without sending them.

Anonymous files (memfd): they have no name, and they are gone with the last process
that has them open, however it ended. Their size is sealed: no process can cut a mapping short under
another.
"""

import fcntl
import mmap
import os
import sys

import numpy

Bytes = numpy.ndarray[tuple[int], numpy.dtype[numpy.uint8]]

_LEAST_BYTES = 64 * 2**10
_SEALS = 0x0001 | 0x0002 | 0x0004  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
_OWN_REFERENCES = 2  # the region's, and the argument of getrefcount


class MemoryRegion:
    """One mapping. `whole` is all of it; arrays made of its bytes keep a reference to it."""

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self.peak = 0  # the most bytes of it in use since the last look
        self.whole: Bytes = numpy.frombuffer(mmap.mmap(fd, size), numpy.uint8)

    @property
    def is_lent(self) -> bool:
        """Is an array in it still referenced?"""
        return sys.getrefcount(self.whole) > _OWN_REFERENCES


def create(needed_bytes: int) -> tuple[MemoryRegion, int]:
    """A new one with its file, which the caller closes. Raises MemoryError."""
    size = max(_LEAST_BYTES, 1 << (needed_bytes - 1).bit_length())
    fd = os.memfd_create("headway", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # At once, not page by page: without room, this is an error and not a SIGBUS.
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return MemoryRegion(fd, size), fd
    except OSError as error:
        os.close(fd)
        raise MemoryError(f"no room for {size} bytes of shared memory: {error}") from error


def attach(fd: int) -> MemoryRegion:
    """One that the other process made; closes the file. Raises OSError for what is none."""
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise OSError("not sealed: its memory could vanish")
        return MemoryRegion(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)
