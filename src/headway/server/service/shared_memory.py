"""System shared memory that a client on this machine has registered, read and written by offset.

Through `pread` and `pwrite`, not a mapping: a client that shortens its region while we read then
gets an error, where a mapping would kill the server with SIGBUS.
"""

import os
import re
import stat
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

from msgspec import Meta

from headway.errors import Forbidden, InvalidInput
from headway.server.service.requests import SharedSlice

MAX_REGIONS = 1024
_FOLDER = Path("/dev/shm")
_KEY = re.compile(r"/?(?!headway)[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}")  # ours are not for clients


class SharedRegion(TypedDict):
    """A region in Triton's format."""

    name: str
    key: str
    offset: Annotated[int, Meta(ge=0)]
    byte_size: Annotated[int, Meta(ge=0)]


class SharedMapping(NamedTuple):
    name: str
    key: str
    offset: int
    byte_size: int
    descriptor: int

    def as_triton(self) -> SharedRegion:
        return {
            "name": self.name,
            "key": self.key,
            "offset": self.offset,
            "byte_size": self.byte_size,
        }


class SharedRegions:
    """Regions by name. `close` releases the files."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._folder = folder
        self._regions: dict[str, SharedMapping] = {}

    def register(self, name: str, key: str, *, offset: int, byte_size: int) -> None:
        if name in self._regions:
            raise InvalidInput(f"shared memory region {name!r} is already registered")
        if len(self._regions) >= MAX_REGIONS:
            raise InvalidInput(
                f"{MAX_REGIONS} shared memory regions are registered; no more are allowed"
            )
        if offset < 0 or byte_size <= 0:
            raise InvalidInput(
                f"region {name!r}: offset must be at least 0 and byte_size at least 1, not "
                f"{offset} and {byte_size}"
            )
        descriptor = self._open(name, key)
        if offset + byte_size > os.fstat(descriptor).st_size:
            held = os.fstat(descriptor).st_size
            os.close(descriptor)
            raise InvalidInput(
                f"region {name!r}: {key!r} has {held} bytes, {offset + byte_size} are asked for"
            )
        self._regions[name] = SharedMapping(name, key, offset, byte_size, descriptor)

    def unregister(self, name: str) -> None:
        """Forget a region; one that is not there is forgotten already."""
        region = self._regions.pop(name, None)
        if region is not None:
            os.close(region.descriptor)

    def close(self) -> None:
        for name in list(self._regions):
            self.unregister(name)

    def list(self, name: str = "") -> list[SharedMapping]:
        return list(self._regions.values()) if not name else [self._get(name)]

    def check(self, where: SharedSlice) -> None:
        self._slice(where)

    def read(self, where: SharedSlice) -> bytes:
        region = self._slice(where)
        data = os.pread(region.descriptor, where.byte_size, region.offset + where.offset)
        if len(data) != where.byte_size:
            raise InvalidInput(
                f"region {where.region!r} has been shortened since it was registered"
            )
        return data

    def write(self, where: SharedSlice, data: bytes) -> None:
        region = self._slice(where)
        try:
            written = os.pwrite(region.descriptor, data, region.offset + where.offset)
        except OSError as error:
            raise InvalidInput(f"region {where.region!r}: {error}") from error
        if written != len(data):  # its pages were promised, and shared memory is full
            raise InvalidInput(
                f"region {where.region!r}: there is room for {written} of {len(data)} bytes"
            )

    def _get(self, name: str) -> SharedMapping:
        region = self._regions.get(name)
        if region is None:
            raise InvalidInput(f"shared memory region {name!r} is not registered")
        return region

    def _slice(self, where: SharedSlice) -> SharedMapping:
        region = self._get(where.region)
        if where.offset + where.byte_size > region.byte_size:
            raise InvalidInput(
                f"region {where.region!r} has {region.byte_size} bytes, "
                f"{where.offset + where.byte_size} are asked for"
            )
        return region

    def _open(self, name: str, key: str) -> int:
        if not _KEY.fullmatch(key):
            raise InvalidInput(f"region {name!r}: {key!r} is not a name that can be registered")
        path = self._folder / key.removeprefix("/")
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags)
        except OSError as error:
            raise InvalidInput(f"region {name!r}: {key!r}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InvalidInput(f"region {name!r}: {key!r} is not shared memory")
        return descriptor


class RefusedRegions:
    """Refuses every region, for a caller that may name none: it may hold another caller's data."""

    def __init__(self, error: Forbidden) -> None:
        self._error = error

    def check(self, where: SharedSlice) -> None:
        raise self._error

    def read(self, where: SharedSlice) -> bytes:
        raise self._error

    def write(self, where: SharedSlice, data: bytes) -> None:
        raise self._error
