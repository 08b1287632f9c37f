"""Sequences that wait for a slot or for blocks, and who of them is next.

Classes are strict, but for what `Ageing` owes to lower ones. Within a class tenants share by
weight: each is charged for the tokens computed for it, as they come. Within a tenant, first come
first served; a preempted sequence returns to its old place.
"""

import heapq
from collections.abc import Mapping

from headway.core.generation.sequence import Progress
from headway.core.items import Priority
from headway.core.queueing.fairness import Account, Shares, Turns
from headway.core.queueing.priority import Ageing

_Entry = tuple[float, int, Progress]  # arrival, id


class _Tenant(Account):
    """A tenant's account in one class, with its sequences that wait, the first first."""

    __slots__ = ("line",)

    def __init__(self, name: str, weight: float) -> None:
        super().__init__(name, weight)
        self.line: list[_Entry] = []


class _Class:
    def __init__(self, weights: Mapping[str, float]) -> None:
        self.shares = Shares(weights, _Tenant)
        self.turns = Turns(self.shares)
        self.arrivals: list[_Entry] = []


class Waiting:
    def __init__(self, weights: Mapping[str, float], ageing_s: float) -> None:
        self._classes = tuple(_Class(weights) for _ in Priority)
        self._ageing = Ageing(ageing_s, len(Priority))
        self._live: dict[int, Progress] = {}
        self.tenants: dict[str, int] = {}  # their sequences that wait or run; never 0

    def __len__(self) -> int:
        return len(self._live)

    def weight(self, tenant: str) -> float:
        return self._classes[0].shares.weight(tenant)

    # ---- coming and going

    def enter(self, progress: Progress) -> None:
        """A newcomer."""
        tenant = progress.sequence.tenant
        self.tenants[tenant] = self.tenants.get(tenant, 0) + 1
        self.push(progress)

    def leave(self, progress: Progress) -> bool:
        """It has ended. Did it wait until now?"""
        tenant = progress.sequence.tenant
        self.tenants[tenant] -= 1
        if not self.tenants[tenant]:
            del self.tenants[tenant]
        was_waiting = self._remove(progress)
        if not self.tenants:
            for each in self._classes:
                each.shares.forget()
        return was_waiting

    def push(self, progress: Progress) -> None:
        """It waits, for the first time or again."""
        sequence = progress.sequence
        kind = self._classes[sequence.priority]
        account = kind.shares.account(sequence.tenant)
        entry = (sequence.arrived_at, sequence.id, progress)
        self._live[sequence.id] = progress
        heapq.heappush(account.line, entry)
        heapq.heappush(kind.arrivals, entry)
        kind.shares.enter(account, 1)
        kind.turns.add(account)

    def admitted(self, progress: Progress) -> None:
        """It runs."""
        priority = progress.sequence.priority
        shares = self._classes[priority].shares
        shares.advance(shares.place(shares.account(progress.sequence.tenant)))
        self._remove(progress)
        self._ageing.served([int(each is priority) for each in Priority])

    def charge(self, progress: Progress, tokens: int) -> None:
        """So many tokens are computed for it."""
        shares = self._classes[progress.sequence.priority].shares
        shares.charge(shares.account(progress.sequence.tenant), tokens)

    def _remove(self, progress: Progress) -> bool:
        if self._live.pop(progress.sequence.id, None) is None:
            return False
        shares = self._classes[progress.sequence.priority].shares
        shares.leave(shares.account(progress.sequence.tenant), 1)
        return True

    # ---- who is next

    def head(self, now: float) -> tuple[Progress, Priority] | None:
        """Who is next, and the class that it counts as: the aged count as the highest."""
        if not self._live:
            return None
        for priority in reversed(Priority):
            oldest = self._first(self._classes[priority].arrivals)
            if oldest and self._ageing.may_lead(priority, oldest.sequence.arrived_at, now):
                return oldest, Priority.HIGH
        for priority in Priority:
            account = self._classes[priority].turns.first()
            progress = self._first(account.line) if account else None
            if progress is not None:
                return progress, priority
        return None

    def _first(self, line: list[_Entry]) -> Progress | None:
        """The first that still waits; whoever left is forgotten on the way."""
        while line:
            if self._live.get(line[0][1]) is line[0][2]:
                return line[0][2]
            heapq.heappop(line)
        return None
