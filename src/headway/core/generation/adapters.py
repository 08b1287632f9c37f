"""The adapters in the engine's slots, and which one gives way to another.

Every running sequence holds its adapter's slot. An adapter that no sequence holds stays there until
another one needs the slot: then the one that was idle longest goes. When all slots are held,
sequences of other adapters are passed over. One that was passed over for long makes a claim: the
adapter that has had its slot longest takes no new sequences, and the slot is the claimant's when
the last of them has ended. So adapters in constant demand starve no other.
"""

from collections.abc import Callable, Iterable

from headway.core.generation.step import Placed


class AdapterSlots:
    """`""` is no adapter: it needs no slot."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._slots: dict[str, int] = {}  # by adapter, in the order of placing
        self._users: dict[str, int] = {}  # by adapter: its running sequences; never 0
        self._idle: dict[str, None] = {}  # in a slot, but not held; the longest idle first
        self._victims: dict[str, str] = {}  # by claimant
        self._gone: set[str] = set()  # unloaded, but some of its sequences still run
        self._placed: list[Placed] = []  # for the next step to name

    @property
    def resident(self) -> dict[str, int]:
        """The slot of every adapter that has one."""
        return dict(self._slots)

    def can_take(self, adapter: str) -> bool:
        """May a sequence with this adapter start now?"""
        if not adapter:
            return True
        victims = self._victims
        if adapter in self._slots:
            return adapter not in victims.values()
        if adapter in victims:
            return victims[adapter] in self._idle
        return bool(self._free) or any(each not in victims.values() for each in self._idle)

    def take(self, adapter: str) -> int:
        """A sequence with this adapter starts. Returns the slot; -1: it has no adapter."""
        if not adapter:
            return -1
        self._idle.pop(adapter, None)
        self._users[adapter] = self._users.get(adapter, 0) + 1
        slot = self._slots.get(adapter)
        if slot is None:
            slot = self._slots[adapter] = self._make_room(adapter)
            self._placed.append(Placed(slot, adapter))
        return slot

    def give(self, adapter: str) -> None:
        """A sequence with this adapter no longer runs."""
        if not adapter:
            return
        self._users[adapter] -= 1
        if self._users[adapter]:
            return
        del self._users[adapter]
        self._idle[adapter] = None
        if adapter in self._gone:
            self.forget(adapter)

    def forget(self, adapter: str) -> None:
        """The adapter was unloaded: its slot is free once no sequence holds it."""
        self._victims.pop(adapter, None)
        if adapter in self._users:
            self._gone.add(adapter)
            return
        self._gone.discard(adapter)
        self._idle.pop(adapter, None)
        for claimant in [each for each, victim in self._victims.items() if victim == adapter]:
            del self._victims[claimant]  # there is a free slot now
        slot = self._slots.pop(adapter, None)
        if slot is not None:
            self._free.append(slot)
            self._placed = [each for each in self._placed if each.adapter != adapter]

    def claim(self, waiting: Iterable[str], is_aged: Callable[[str], bool]) -> None:
        """Note the adapters of waiting sequences. Adapters that wait too long claim a slot."""
        asked = set(waiting)
        for adapter in self._victims.keys() - asked:
            del self._victims[adapter]
        for adapter in sorted(asked):
            if adapter in self._slots or adapter in self._victims or self.can_take(adapter):
                continue
            taken = self._victims.values()
            victim = next((each for each in self._slots if each not in taken), None)
            if victim is not None and is_aged(adapter):
                self._victims[adapter] = victim

    def placed(self) -> tuple[Placed, ...]:
        """The adapters placed since the last step."""
        placed, self._placed = tuple(self._placed), []
        return placed

    def lose(self) -> None:
        """The engine was lost. No sequence runs; those that return place their adapters again."""
        assert not self._users, "sequences still hold adapters"
        self._placed.clear()
        for adapter in list(self._slots):
            self.forget(adapter)

    def _make_room(self, adapter: str) -> int:
        victim = self._victims.pop(adapter, None)
        if victim is None:
            if self._free:
                return self._free.pop()
            victim = next(each for each in self._idle if each not in self._victims.values())
        del self._idle[victim]
        return self._slots.pop(victim)
