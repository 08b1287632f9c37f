"""Shares by weight: start-time fair queueing among tenants, for any kind of work.

Every tenant has an account. The work it uses is charged to the account, divided by its weight, and
the tenant with the smallest charge is next. There are two ways to charge. If the cost of work is
known when it arrives, `enter` charges it and returns its place in the order; `charge` gives back
the part that was not used. If the cost shows only while the work runs (tokens), it enters without a
charge, `charge` adds to it as it runs, and `Turns` finds the next tenant. A tenant that was away
starts at the virtual time of the tenants that were served meanwhile: it has saved up nothing.

Knows neither items nor batches, and reads no clock.
"""

import bisect
import heapq
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

_DEBTORS = 64  # idle tenants that are remembered with their debts


class TenantAccount:
    """The waiting work of one tenant, and its charges."""

    __slots__ = ("finish", "held", "name", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.finish = 0.0  # the virtual time at which all its charges are paid off
        self.held = 0  # its waiting work (rows, tokens)

    @property
    def load(self) -> float:
        """Waiting work for each unit of weight."""
        return self.held / self.weight


A = TypeVar("A", bound=TenantAccount)


class Shares(Generic[A]):
    """The accounts of all tenants that share one resource."""

    def __init__(
        self, weights: Mapping[str, float], open_account: Callable[[str, float], A]
    ) -> None:
        """`open_account`: `TenantAccount`, or a subclass of it."""
        self._weights = weights
        self._open = open_account
        self._prune_at = _DEBTORS
        self.virtual = 0.0  # the tag of the work that was served last
        self.active_weight = 0.0  # of tenants with waiting work
        self.accounts: dict[str, A] = {}

    def weight(self, name: str) -> float:
        return self._weights.get(name, 1.0)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Share by these weights from now on; absent: 1. Tags given out stay as they are."""
        self._weights = weights
        for name, account in self.accounts.items():
            account.weight = self.weight(name)
        self.active_weight = sum(each.weight for each in self.accounts.values() if each.held)

    def account(self, name: str) -> A:
        """The tenant's account, opened if there is none."""
        account = self.accounts.get(name)
        if account is None:
            account = self.accounts[name] = self._open(name, self.weight(name))
        return account

    def enter(self, account: TenantAccount, held: int, charge: float = 0.0) -> float:
        """Add `held` (at least 1) to the tenant's waiting work, and `charge` to its charges.

        Returns the tag of the work: the smallest tag is next; of equal tags, the first to arrive.
        """
        if not account.held:
            self.active_weight += account.weight
        account.held += held
        start = account.finish
        if start < self.virtual:
            start = self.virtual
        account.finish = start + charge / account.weight
        return start

    def leave(self, account: TenantAccount, held: int) -> None:
        """`held` of the tenant's work no longer waits: it runs, or never will."""
        account.held -= held
        if not account.held:
            self.emptied(account)

    def emptied(self, account: TenantAccount) -> None:
        """The tenant has no waiting work any more."""
        self.active_weight -= account.weight
        self.prune()

    def charge(self, account: TenantAccount, amount: float) -> None:
        """The tenant used `amount` more than it was charged; negative: less."""
        account.finish += amount / account.weight

    def place(self, account: TenantAccount) -> float:
        """The tag that the tenant's next work would get: the smallest is next."""
        return max(account.finish, self.virtual)

    def advance(self, tag: float) -> None:
        """Work with this tag is being served: virtual time advances to it."""
        if tag > self.virtual:
            self.virtual = tag

    def forget(self) -> None:
        """Close all accounts: no work waits or runs."""
        if self.accounts:
            self.virtual = self.active_weight = 0.0
            self.accounts.clear()

    def prune(self) -> None:
        """Close idle accounts, if there are many accounts. Those with the largest debts stay."""
        accounts, virtual = self.accounts, self.virtual
        if len(accounts) <= self._prune_at:
            return
        gone = [each for each in accounts.values() if not each.held]
        debts = [each.finish for each in gone if each.finish > virtual]
        if len(debts) <= _DEBTORS:
            closed = [each.name for each in gone if each.finish <= virtual]
        else:
            debts.sort()  # numbers alone: far faster than with the names
            least = debts[-_DEBTORS]
            closed = [each.name for each in gone if each.finish < least]
            tied = sorted([each.name for each in gone if each.finish == least])
            kept = bisect.bisect_right(debts, least) - (len(debts) - _DEBTORS)
            closed += tied[:-kept]  # among equal debts, the last by name are remembered
        for name in closed:
            del accounts[name]
        self._prune_at = 2 * len(accounts) + _DEBTORS


class Turns(Generic[A]):
    """Finds the next tenant, if work is charged after it has started.

    Call `add` when a tenant begins to wait, and `first` for the tenant with the smallest place.
    """

    def __init__(self, shares: Shares[A]) -> None:
        self._shares = shares
        self._heap: list[tuple[float, str]] = []  # places when noted; charges only move them back
        self._noted: set[str] = set()

    def add(self, account: TenantAccount) -> None:
        """The tenant has waiting work. Harmless if it was added before."""
        if account.name not in self._noted:
            self._noted.add(account.name)
            heapq.heappush(self._heap, (self._shares.place(account), account.name))

    def first(self, is_out: Callable[[A], bool] | None = None) -> A | None:
        """The waiting tenant that has used least for its weight.

        Tenants for which `is_out` is true are skipped, and keep their places.
        """
        heap, shares = self._heap, self._shares
        passed: list[tuple[float, str]] = []
        found = None
        while heap and found is None:
            noted, name = heap[0]
            account = shares.accounts.get(name)
            if account is None or not account.held:
                heapq.heappop(heap)
                self._noted.discard(name)
                continue
            place = shares.place(account)
            if place > noted:
                heapq.heapreplace(heap, (place, name))
            elif is_out is not None and is_out(account):
                passed.append(heapq.heappop(heap))
            else:
                found = account
        for entry in passed:
            heapq.heappush(heap, entry)
        return found
