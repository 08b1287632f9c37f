"""Heads of requests that were parsed before.

A client sends nearly the same bytes with each of its requests: only the length of the body varies.
Where the whole head is one that we have parsed, nothing in it has to be parsed again. Only heads of
requests that took the direct way are kept: those that ask for nothing special.
"""

from typing import NamedTuple

_END = b"\r\n\r\n"
_MOST_BYTES = 1024  # of a head
_MOST_HEADS = 1024


class Head(NamedTuple):
    url: bytes
    headers: dict[bytes, bytes]
    body_bytes: int


class Heads:
    """Parsed heads, shared by all connections of a server."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def find(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the body, if `data` is a whole request, and its head is known."""
        end = data.find(_END) + len(_END)
        head = self._known.get(data[:end])
        if head is None or len(data) != end + head.body_bytes:
            return None
        return head, data[end:]

    def keep(self, data: bytes, url: bytes, headers: dict[bytes, bytes], body: bytes) -> None:
        """`data` begins with this request. If it is not all of it, nothing is kept: what looks
        like a head there may be part of another."""
        end = data.find(_END) + len(_END)
        is_whole = len(data) == end + len(body) and b"transfer-encoding" not in headers
        if not is_whole or not len(_END) <= end <= _MOST_BYTES:
            return
        if len(self._known) >= _MOST_HEADS:
            self._known.clear()
        self._known[data[:end]] = Head(url, headers, len(body))
