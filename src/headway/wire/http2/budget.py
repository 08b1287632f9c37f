"""Limits what one peer may cost: work without result is paid from a budget that refills with time,
and waiting bytes are counted in the room that all requests share. Pure: time comes in as `now`.

A unit is about ten microseconds of the event loop. A peer has one budget for each connection and
one for its address, so that many connections buy no more than a few. `lifetime.py` charges it.
"""

from headway.wire.body_room import UNCOUNTED_BYTES, BodyRoom

CAPACITY = 4096  # units of one connection, saved up while it is quiet
PER_S = 1024.0
ADDRESS_CAPACITY = 4 * CAPACITY
ADDRESS_PER_S = 8 * PER_S
_SMALL = 64  # units that a connection may owe while others of its address spend too much


class Budget:
    """A bucket of units. It is refilled when it is empty, not before: spending is two additions."""

    __slots__ = ("_at", "_capacity", "_per_s", "left")

    def __init__(self, capacity: int, per_s: float, now: float) -> None:
        self._capacity = capacity
        self._per_s = per_s
        self._at = now
        self.left: float = capacity

    def is_spent(self, cost: int, now: float) -> bool:
        """Pay `cost`. Returns whether it was more than the budget had."""
        self.left -= cost
        if self.left >= 0:
            return False
        self.left = min(self._capacity, self.left + (now - self._at) * self._per_s)
        self._at = now
        if self.left >= 0:
            return False
        self.left = 0  # a debt is not kept: its connection has been closed
        return True


def address_budget(now: float) -> Budget:
    return Budget(ADDRESS_CAPACITY, ADDRESS_PER_S, now)


class PeerAccount:
    """The account of one connection: its own budget, its address's, and the bytes of its
    streams."""

    __slots__ = ("_address", "_counted_bytes", "_own", "_room", "held_bytes")

    def __init__(self, address: Budget, room: BodyRoom, now: float) -> None:
        self._own = Budget(CAPACITY, PER_S, now)
        self._address = address
        self._room = room
        self._counted_bytes = 0  # of the room
        self.held_bytes = 0

    def is_overdrawn(self, cost: int, now: float) -> bool:
        """Pay `cost`. Returns whether the connection must end: it has spent its own budget; or its
        address's is spent, and it had a part in that."""
        own = self._own
        is_spent = own.is_spent(cost, now)
        if self._address.is_spent(cost, now):
            return is_spent or own.left < CAPACITY - _SMALL
        return is_spent

    def earn(self, units: int) -> None:
        """Credit work that was done for the peer: it makes up for frames without any."""
        own, address = self._own, self._address
        if own.left < CAPACITY:
            own.left += units
        if address.left < ADDRESS_CAPACITY:
            address.left += units

    def hold(self, more_bytes: int) -> None:
        """Count bytes that streams hold, more or fewer. The first ones of a connection are free, as
        those of a body over HTTP are. Raises QueueFull."""
        held_bytes = self.held_bytes + more_bytes
        counted = held_bytes - UNCOUNTED_BYTES if held_bytes > UNCOUNTED_BYTES else 0
        change = counted - self._counted_bytes
        if change > 0:
            self._room.take(change)
        elif change < 0:
            self._room.give_back(-change)
        self._counted_bytes = counted
        self.held_bytes = held_bytes
