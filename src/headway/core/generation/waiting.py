"""Sequences that wait for a slot or for blocks, and which of them is next.

Classes are strict, except for the share that `Ageing` grants lower ones. Within a class tenants
share by weight: each is charged for its tokens as they are computed. A tenant's adapters share its
weight evenly, so that a burst on one does not hold up the others. Within an adapter, first come
first served, as far as `PrefixOrder` lets them; a preempted sequence returns to its old place.
"""

import bisect
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from headway.core.generation.sequence import Progress
from headway.core.items import Priority
from headway.core.queueing.fairness import Shares, TenantAccount, Turns
from headway.core.queueing.priority import Ageing

_Entry = tuple[float, int, Progress]  # arrival, id
# The next sequence of those that wait in this order, and count as this class; None: none may.
_Choose = Callable[[Iterable[Progress], Priority], Progress | None]
_CHOICE = 16  # sequences to choose from
_BURST = 8  # waiting sequences of one account that count as a burst


class _Line(TenantAccount):
    """The account of a tenant's adapter in one class, with its sequences that wait in order."""

    __slots__ = ("line",)

    def __init__(self, name: str, weight: float) -> None:
        super().__init__(name, weight)
        self.line: list[_Entry] = []  # ascending


class _Class:
    def __init__(self, weights: Mapping[str, float]) -> None:
        self.shares = Shares(weights, _Line)
        self.turns = Turns(self.shares)
        self.arrivals: list[_Entry] = []  # ascending


class Waiting:
    def __init__(self, weights: Mapping[str, float], ageing_s: float) -> None:
        self._weights = weights
        self._shares: dict[str, float] = {}  # weights of accounts
        self._classes = tuple(_Class(self._shares) for _ in Priority)
        self._ageing = Ageing(ageing_s, len(Priority))
        self._live: set[int] = set()
        self.tenants: dict[str, int] = {}  # by tenant: its sequences that wait or run; never 0
        self._accounts: dict[str, dict[str, int]] = {}  # by tenant and account: the same
        self._of_adapter: dict[str, set[str]] = {}  # by adapter: its accounts, of any tenant
        self.adapters: dict[str, int] = {}  # by adapter: sequences that wait for it; never 0

    def __len__(self) -> int:
        return len(self._live)

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    # ---- sequences arrive and leave

    def enter(self, progress: Progress) -> None:
        """Add a new sequence."""
        tenant = progress.sequence.tenant
        self.tenants[tenant] = self.tenants.get(tenant, 0) + 1
        accounts = self._accounts.setdefault(tenant, {})
        name = progress.account
        accounts[name] = accounts.get(name, 0) + 1
        if accounts[name] == 1:
            self._reweigh(tenant)
            self._of_adapter.setdefault(progress.sequence.adapter, set()).add(name)
        self.push(progress)

    def leave(self, progress: Progress) -> bool:
        """The sequence has ended. Did it wait until now?"""
        tenant = progress.sequence.tenant
        self.tenants[tenant] -= 1
        if not self.tenants[tenant]:
            del self.tenants[tenant]
        was_waiting = self._remove(progress)
        accounts = self._accounts[tenant]
        accounts[progress.account] -= 1
        if not accounts[progress.account]:
            self._close(progress)
        if not self.tenants:
            for each in self._classes:
                each.shares.forget()
        return was_waiting

    def push(self, progress: Progress) -> None:
        """The sequence waits, for the first time or again."""
        sequence = progress.sequence
        kind = self._classes[sequence.priority]
        account = kind.shares.account(progress.account)
        entry = (sequence.arrived_at, sequence.id, progress)
        self._live.add(sequence.id)
        bisect.insort(account.line, entry)
        bisect.insort(kind.arrivals, entry)
        kind.shares.enter(account, 1)
        kind.turns.add(account)
        if sequence.adapter:
            self.adapters[sequence.adapter] = self.adapters.get(sequence.adapter, 0) + 1

    def admitted(self, progress: Progress) -> None:
        """The sequence runs."""
        priority = progress.sequence.priority
        shares = self._classes[priority].shares
        account = shares.account(progress.account)
        for _, _, other in account.line:
            if other is progress:
                break
            other.passed += 1
        shares.advance(shares.place(account))
        self._remove(progress)
        self._ageing.served([int(each is priority) for each in Priority])

    def charge(self, progress: Progress, tokens: int) -> None:
        """Charge the sequence for its last `tokens` computed tokens, except those that it has
        paid for before it was preempted: that was not its own choice."""
        new = min(tokens, progress.computed - progress.charged)
        if new <= 0:
            return
        progress.charged = progress.computed
        shares = self._classes[progress.sequence.priority].shares
        shares.charge(shares.account(progress.account), new)

    def _remove(self, progress: Progress) -> bool:
        sequence = progress.sequence
        if sequence.id not in self._live:
            return False
        self._live.remove(sequence.id)
        kind = self._classes[sequence.priority]
        account = kind.shares.account(progress.account)
        for entries in (account.line, kind.arrivals):
            del entries[bisect.bisect_left(entries, (sequence.arrived_at, sequence.id, progress))]
        kind.shares.leave(account, 1)
        adapter = sequence.adapter
        if adapter:
            self.adapters[adapter] -= 1
            if not self.adapters[adapter]:
                del self.adapters[adapter]
        return True

    def _close(self, progress: Progress) -> None:
        """The last sequence of this account has left."""
        name, tenant, adapter = (
            progress.account,
            progress.sequence.tenant,
            progress.sequence.adapter,
        )
        del self._accounts[tenant][name], self._shares[name]
        self._reweigh(tenant)
        self._of_adapter[adapter].discard(name)
        if not self._of_adapter[adapter]:
            del self._of_adapter[adapter]

    def _reweigh(self, tenant: str) -> None:
        """Share the tenant's weight among its accounts anew: their number has changed."""
        names = self._accounts[tenant]
        if not names:
            del self._accounts[tenant]
        for name in names:
            weight = self._shares[name] = self.weight(tenant) / len(names)
            for each in self._classes:
                account = each.shares.accounts.get(name)
                if account is not None:
                    each.shares.active_weight += (weight - account.weight) * bool(account.held)
                    account.weight = weight

    # ---- the next sequence

    def bursts(self) -> frozenset[str]:
        """Accounts with many waiting sequences, if there are other accounts."""
        if len(self._live) <= _BURST or len(self._shares) < 2:
            return frozenset()
        return frozenset(
            account.name
            for each in self._classes
            for account in each.shares.accounts.values()
            if account.held > _BURST
        )

    def head(
        self, now: float, choose: _Choose, may_start: Callable[[str], bool] | None = None
    ) -> tuple[Progress, Priority] | None:
        """The next sequence, and the class that it counts as: aged ones count as the highest.

        Sequences with an adapter that may not start are skipped, and accounts of which none is
        chosen.
        """
        if not self._live:
            return None
        for priority in reversed(Priority):
            oldest = self._oldest(self._classes[priority].arrivals, may_start)
            if oldest and self._ageing.may_lead(priority, oldest.sequence.arrived_at, now):
                chosen = choose((oldest,), Priority.HIGH)
                if chosen is not None:
                    return chosen, Priority.HIGH
        for priority in Priority:
            chosen = self._next_of(priority, choose, may_start)
            if chosen is not None:
                return chosen, priority
        return None

    def _next_of(
        self, priority: Priority, choose: _Choose, may_start: Callable[[str], bool] | None
    ) -> Progress | None:
        chosen: Progress | None = None

        def is_out(account: _Line) -> bool:
            nonlocal chosen
            line = account.line
            if may_start is None or may_start(line[0][2].sequence.adapter):
                chosen = choose((each[2] for each in islice(line, _CHOICE)), priority)
            return chosen is None

        return None if self._classes[priority].turns.first(is_out) is None else chosen

    def oldest(self, adapter: str) -> float:
        """When the longest waiting sequence of the adapter arrived."""
        found = math.inf
        for name in self._of_adapter.get(adapter, ()):
            for each in self._classes:
                account = each.shares.accounts.get(name)
                if account is not None and account.line:
                    found = min(found, account.line[0][0])
        return found

    def _oldest(
        self, arrivals: list[_Entry], may_start: Callable[[str], bool] | None
    ) -> Progress | None:
        for _, _, progress in arrivals:
            if may_start is None or may_start(progress.sequence.adapter):
                return progress
        return None
