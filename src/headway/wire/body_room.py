"""Room for the bodies of requests, over all connections of all front ends together.

One body has its own limit; this one is for a thousand clients that send a large one each. Small
bodies are not counted: connections are, and a plain request pays nothing for this.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headway.errors import QueueFull
from headway.wire.limits import ConnectionLimits

UNCOUNTED_BYTES = 32 * 2**10  # of each body
_JOINED_AT_ONCE = 4 * 2**20  # bytes


class BodyRoom:
    """The memory for bodies: taken as they are received, given back once their requests are
    answered."""

    def __init__(self, config: ConnectionLimits) -> None:
        self.held_bytes = 0
        self.change(config)

    def change(self, config: ConnectionLimits) -> None:
        # A body that is allowed at all must fit in when it is alone.
        self._limit_bytes = max(config.max_held_bytes, config.max_body_bytes)

    def check(self, size_bytes: int) -> None:
        """Raises QueueFull if there is no room for this much more. Nothing is reserved: a client
        that announces much and sends nothing must not keep others out."""
        limit = self._limit_bytes
        if self.held_bytes + size_bytes > limit:
            raise QueueFull(
                f"the requests under way hold {self.held_bytes} bytes, {limit} are allowed",
                limit=limit,
            )

    def take(self, size_bytes: int) -> None:
        """Raises QueueFull."""
        self.check(size_bytes)
        self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0, "more was given back than taken"

    @contextmanager
    def taken(self, size_bytes: int) -> Iterator[None]:
        counted = max(0, size_bytes - UNCOUNTED_BYTES)
        self.take(counted)
        try:
            yield
        finally:
            self.give_back(counted)


async def joined(parts: Sequence[bytes]) -> bytes:
    """A body that came in many parts: to copy a large one takes milliseconds."""
    if sum(map(len, parts)) <= _JOINED_AT_ONCE:
        return b"".join(parts)
    return await asyncio.to_thread(b"".join, parts)
