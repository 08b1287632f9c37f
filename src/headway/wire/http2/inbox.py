"""gRPC messages from bytes that arrive in any pieces: a flag, a length, the data."""

from typing import NamedTuple

PREFIX_BYTES = 5


class GrpcMessage(NamedTuple):
    is_compressed: bool
    data: bytes


class Broken(Exception):
    """The bytes are no gRPC message."""


class TooLong(Exception):
    """The message is announced as larger than the limit."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"Received message larger than max ({size_bytes} vs. {limit_bytes})")


def framed(data: bytes) -> bytes:
    return prefix_of(data) + data


def prefix_of(*parts: bytes) -> bytes:
    """The prefix of a message that is not compressed."""
    return b"\0" + sum(map(len, parts)).to_bytes(4, "big")


class MessageInbox:
    """The messages of one stream that its handler has not taken yet."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """Raises Broken or TooLong for the message at the head, as soon as it is known."""
        self._data += data
        self._size()

    def clear(self) -> None:
        """Free the bytes now, even if this object is still referred to."""
        self._data = bytearray()

    def take(self) -> GrpcMessage | None:
        """Take the next message; None: it is not complete. Raises as `feed` does, for the next
        one."""
        size = self._size()
        if size is None or len(self._data) < PREFIX_BYTES + size:
            return None
        is_compressed = bool(self._data[0])
        message = bytes(memoryview(self._data)[PREFIX_BYTES : PREFIX_BYTES + size])
        del self._data[: PREFIX_BYTES + size]
        return GrpcMessage(is_compressed, message)

    def _size(self) -> int | None:
        if len(self._data) < PREFIX_BYTES:
            return None
        if self._data[0] > 1:
            raise Broken(f"a message begins with 0 or 1, not {self._data[0]}")
        size = int.from_bytes(self._data[1:PREFIX_BYTES], "big")
        if size > self._limit_bytes:
            raise TooLong(size, self._limit_bytes)
        return size


def whole(data: bytes, limit_bytes: int) -> bytes | None:
    """The one plain message that this is, exactly; None: let a MessageInbox see."""
    if len(data) >= PREFIX_BYTES and not data[0]:
        size = int.from_bytes(data[1:PREFIX_BYTES], "big")
        if size == len(data) - PREFIX_BYTES and size <= limit_bytes:
            return data[PREFIX_BYTES:]
    return None
