"""One end of the connection between a batcher's process and a model's. Both ends are alike.

A message is one packet on a Unix socket. Small values travel in it; large ones are in shared
memory that is used again and again: a sender keeps up to four regions, and with every message
each side tells which of the other's regions it still holds. Small values are copied out of them,
large ones are read in place, for as long as a reference to them exists.

That needs question and answer. On a line in `both_ways` either side sends whenever it likes: there
a region is used for one message, and neither side waits in `send` or `receive`.
"""

import array
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from headway.runtime.workers.process import codec, regions
from headway.runtime.workers.process.regions import MemoryRegion

INLINE_BYTES = 16 * 2**10  # up to here a packet is as quick as shared memory
_COPY_BYTES = 2**20  # below, a copy costs less than a region that is kept
_SLOTS = 4
_ONCE = _SLOTS  # a region that is used for one message only
_NONE = _SLOTS + 1  # no region: the value is in the packet
_SWEEP = 256  # messages between two looks for memory that is no longer needed
_LARGE = 4  # a region of this many times the needed size is given up
_SHORT_S = 0.0005  # the longest busy wait of an idle worker
_HEAD = struct.Struct("<BBBBIQ")  # kind, slot, busy and dropped slots, call, length
_PACKET_BYTES = _HEAD.size + INLINE_BYTES
_CUT_SHORT = int(socket.MSG_CTRUNC)  # an enum takes 2 µs to compare
_FD_BYTES = array.array("i").itemsize
_FD_SPACE = socket.CMSG_SPACE(_FD_BYTES)


class ProcessMessage(NamedTuple):
    kind: int
    call: int  # which call it belongs to
    value: Any
    beside: bytes


class Unreadable(Exception):
    """A message whose value cannot be made here: its `__cause__` says why. The line is intact."""

    def __init__(self, kind: int, call: int) -> None:
        super().__init__("what the other process sent cannot be read")
        self.kind = kind
        self.call = call


class Unsendable(Exception):
    """A value that cannot be sent: its `__cause__` says why. No part of it was sent."""


class Channel:
    """`send` and `receive` by one thread at a time, never both sides at once for one call.

    Both raise OSError or EOFError when the other process is gone, TimeoutError when it takes longer
    than `set_timeout` allows.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._arrivals = select.poll()
        self._arrivals.register(end, select.POLLIN)
        self._looks_out = False
        # With one core, a busy wait would keep the other side from working.
        self._has_cores = len(os.sched_getaffinity(0)) > 1
        self._is_both_ways = False
        self._mine: list[MemoryRegion | None] = [None] * _SLOTS
        self._theirs: list[MemoryRegion | None] = [None] * _SLOTS
        self._pending = 0  # my slots that the other side has not reported free yet
        self._busy = 0  # slots of mine that the other side holds
        self._dropped = 0  # my slots that I have given up, to be reported
        self._sent = 0

    def both_ways(self) -> "Channel":
        """A second object for this end, by which it is used from now on: `send` and `receive` in
        one thread, and neither waits (BlockingIOError). Closing one does not close the other."""
        end = self._socket.dup()
        end.setblocking(False)
        channel = Channel(end)
        channel._is_both_ways = True
        return channel

    def fileno(self) -> int:
        return self._socket.fileno()

    def set_timeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def shut_down(self) -> None:
        """From any thread: a thread in `receive` gets what has come, and then EOFError. (What
        a process leaves behind may hold its end of the line.)"""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
        self._mine = [None] * _SLOTS
        self._theirs = [None] * _SLOTS

    @property
    def shared_bytes(self) -> int:
        return sum(each.size for each in (*self._mine, *self._theirs) if each is not None)

    # ---- sending

    def send(self, kind: int, call: int, value: Any, beside: bytes = b"") -> None:
        """Raises Unsendable, or MemoryError, before anything is sent."""
        try:
            layout = codec.layout_of(value, beside)
        except Exception as error:  # pickling runs code of the user's
            raise Unsendable("this value cannot be sent to another process") from error
        self._sent += 1
        if self._sent % _SWEEP == 0:
            self._sweep()
        if layout.length <= INLINE_BYTES:
            packet = bytearray(_HEAD.size + layout.length)
            codec.write(layout, memoryview(packet)[_HEAD.size :])
            self._pack(packet, kind, _NONE, call, layout.length)
            self._socket.send(packet)
            return
        slot, region, fd = self._room(layout.length)
        try:
            codec.write(layout, region.whole)
            region.peak = max(region.peak, layout.length)
            packet = bytearray(_HEAD.size)
            self._pack(packet, kind, slot, call, layout.length)
            self._send_with(packet, fd)
        finally:
            if fd is not None:
                os.close(fd)
        if slot != _ONCE:  # only now does the other side know of it
            self._mine[slot] = region
            self._pending |= 1 << slot

    def _pack(self, packet: bytearray, kind: int, slot: int, call: int, length: int) -> None:
        _HEAD.pack_into(packet, 0, kind, slot, self._held(), self._dropped, call, length)
        self._dropped = 0

    def _send_with(self, packet: bytearray, fd: int | None) -> None:
        if fd is None:
            self._socket.send(packet)
        else:
            socket.send_fds(self._socket, [packet], [fd])

    def _held(self) -> int:
        """The other side's slots in which a value is still in use here."""
        held = 0
        for slot, region in enumerate(self._theirs):
            if region is not None and region.is_lent:
                held |= 1 << slot
        return held

    def _room(self, length: int) -> tuple[int, MemoryRegion, int | None]:
        """Where to write this many bytes; with the file, if the other side does not have it yet."""
        if self._is_both_ways:
            return _ONCE, *regions.create(length)
        taken = self._busy | self._pending
        free = [slot for slot in range(_SLOTS) if not taken & 1 << slot]
        fitting = [
            (region.size, slot)
            for slot in free
            if (region := self._mine[slot]) is not None and region.size >= length
        ]
        if fitting:
            slot = min(fitting)[1]
            found = self._mine[slot]
            assert found is not None
            return slot, found, None
        region, fd = regions.create(length)
        if not free:
            return _ONCE, region, fd
        return min(free, key=self._size_of), region, fd  # in place of none, or of the smallest

    def _size_of(self, slot: int) -> int:
        region = self._mine[slot]
        return 0 if region is None else region.size

    def _sweep(self) -> None:
        """Give up regions that are much larger than needed lately."""
        for slot, region in enumerate(self._mine):
            if region is None or (self._busy | self._pending) & 1 << slot:
                continue
            if region.size > _LARGE * region.peak:
                self._mine[slot] = None
                self._dropped |= 1 << slot
            region.peak = 0

    # ---- receiving

    def receive(self) -> ProcessMessage:
        packet, ancillary, flags = self._next_packet()
        fds = _fds(ancillary) if ancillary else ()
        if flags & _CUT_SHORT:  # the slot holds the data of another call
            raise OSError("a region did not come through: too many open files")
        if not packet:
            raise EOFError("the other process is gone")
        kind, slot, self._busy, dropped, call, length = _HEAD.unpack_from(packet)
        self._pending = 0
        if dropped:
            self._forget(dropped)
        inline = slot == _NONE
        source = bytearray(packet[_HEAD.size :]) if inline else self._source(slot, length, fds)
        try:
            return ProcessMessage(kind, call, *codec.read(source))
        except Exception as error:  # unpickling runs code of the user's
            raise Unreadable(kind, call) from error

    def _next_packet(self) -> tuple[bytes, Any, int]:
        """If the last wait was short, the next one probably is, so wait busily: a sleeping thread
        takes 50 µs to wake up, and as long to be woken."""
        if self._is_both_ways:
            return self._socket.recvmsg(_PACKET_BYTES, _FD_SPACE)[:3]
        started = time.monotonic()
        while self._looks_out and not self._arrivals.poll(0):
            self._looks_out = time.monotonic() - started < _SHORT_S
            os.sched_yield()
        packet, ancillary, flags, _ = self._socket.recvmsg(_PACKET_BYTES, _FD_SPACE)
        self._looks_out = self._has_cores and time.monotonic() - started < _SHORT_S
        return packet, ancillary, flags

    def _source(self, slot: int, length: int, fds: Sequence[int]) -> Any:
        region = regions.attach(fds[0]) if fds else self._theirs[slot]
        assert region is not None, "a region that was never sent"
        source = region.whole[:length]
        if slot == _ONCE:
            return source.copy()
        self._theirs[slot] = region
        return source.copy() if length < _COPY_BYTES else source

    def _forget(self, dropped: int) -> None:
        for slot in range(_SLOTS):
            if dropped & 1 << slot:
                self._theirs[slot] = None


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _fds(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    return list(found)
