"""Heads of requests that were parsed before.

A client sends nearly the same bytes with each of its requests: only the body varies. If a whole
request has a head that is known, byte for byte, the head is not parsed again: that saves a seventh
of a small request's CPU. Only heads of requests that were answered without a task are kept: such
requests use no optional feature.
"""

from typing import NamedTuple

from headway.wire.application import Start

_END = b"\r\n\r\n"
_MOST_BYTES = 1024  # of a head
_MOST_HEADS = 1024


class Head(NamedTuple):
    url: bytes
    headers: dict[bytes, bytes]
    body_bytes: int
    start: Start


class KnownHeads:
    """Parsed heads, shared by all connections of a server."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}

    def find(self, data: bytes, max_body_bytes: int) -> tuple[Head, bytes] | None:
        """The head and the body, if `data` is one whole request, its head is known and its body is
        not too long."""
        end = data.find(_END) + len(_END)
        head = self._heads.get(data[:end])
        if head is None or not len(data) == end + head.body_bytes <= end + max_body_bytes:
            return None
        return head, data[end:]

    def keep(self, data: bytes, head: Head) -> None:
        """Keep the head if `data` is this request and no more: in other data, what looks like a
        head may be part of a body."""
        end = data.find(_END) + len(_END)
        is_whole = len(data) == end + head.body_bytes and b"transfer-encoding" not in head.headers
        if not is_whole or not len(_END) <= end <= _MOST_BYTES:
            return
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        self._heads[data[:end]] = head
