"""Joins what the streams of a connection send in one turn of the event loop into one write."""

import asyncio
from collections.abc import Iterable
from typing import Any

from headway.wire.writes import write_parts

_MOST_BYTES = 2**16  # that are gathered; then they are written at once


class GatheringTransport(asyncio.Transport):
    """A transport that joins the writes of one event-loop turn. Order is kept."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]
        self.get_write_buffer_size = transport.get_write_buffer_size  # type: ignore[method-assign]
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.resume_reading = transport.resume_reading  # type: ignore[method-assign]
        self.can_write_eof = transport.can_write_eof  # type: ignore[method-assign]

    def gather(self, data: bytes) -> None:
        """Write it with what else comes in this turn."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes > _MOST_BYTES:
            self._flush()

    def write(self, data: Any) -> None:
        if self._gathered:
            self._flush()
        self._transport.write(data)

    def writelines(self, parts: Iterable[Any]) -> None:
        if self._gathered:
            self._flush()
        write_parts(self._transport, parts)

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._gathered = []
        self._transport.abort()

    def _flush(self) -> None:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered and not self._transport.is_closing():
            self._transport.write(b"".join(gathered))
