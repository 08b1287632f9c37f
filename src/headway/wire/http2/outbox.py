"""The parts that wait to be sent on one stream, not joined: copying a large answer would block the
event loop for a millisecond per megabyte."""

from collections import deque


class Outbox:
    __slots__ = ("_at", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._at = 0  # bytes of the first part that have been taken
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, part: bytes) -> None:
        if part:
            self._parts.append(part)
            self._size += len(part)

    def take(self, most: int) -> bytes:
        """The next bytes, at most this many."""
        taken: list[bytes] = []
        while most > 0 and self._parts:
            part = self._parts[0]
            piece = part[self._at : self._at + most]
            taken.append(piece)
            most -= len(piece)
            self._at += len(piece)
            if self._at == len(part):
                self._parts.popleft()
                self._at = 0
        data = taken[0] if len(taken) == 1 else b"".join(taken)
        self._size -= len(data)
        return data
