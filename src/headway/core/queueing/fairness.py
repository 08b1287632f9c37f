"""Shares by weight: start-time fair queueing among tenants, whatever they wait for.

Every tenant has an account. What it uses is charged to the account, divided by its weight, and
the tenant that has been charged least is next. Charges come in two ways. Work whose cost is known
when it arrives is charged by `enter`, which answers its place in the order; what it did not use in
the end is given back by `charge`. Work whose cost shows only while it runs (tokens) enters with
no charge and is charged by `charge` as it goes; `Turns` then says which tenant is next. A tenant
that was away starts at the virtual time of the tenants that were served meanwhile: it has saved up
nothing.

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
        self.finish = 0.0  # virtual time at which everything charged so far is paid off
        self.held = 0  # what waits (rows, tokens)

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
        """`open_account`: `Account`, or a class of one's own made from it."""
        self._weights = weights
        self._open = open_account
        self._prune_at = _DEBTORS
        self.virtual = 0.0  # the tag of the work that was served last
        self.active_weight = 0.0  # of tenants with something waiting
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
        """The account of that name, opened if there is none."""
        account = self.accounts.get(name)
        if account is None:
            account = self.accounts[name] = self._open(name, self.weight(name))
        return account

    def enter(self, account: TenantAccount, held: int, charge: float = 0.0) -> float:
        """This much more work of the tenant (at least 1) waits, and this much is charged.

        Answers its tag: the smallest of all tenants is next; of equal ones, the first that came.
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
        """This much work of the tenant no longer waits: it runs, or never will."""
        account.held -= held
        if not account.held:
            self.emptied(account)

    def emptied(self, account: TenantAccount) -> None:
        """The tenant has no waiting work any more."""
        self.active_weight -= account.weight
        self.prune()

    def charge(self, account: TenantAccount, amount: float) -> None:
        """The tenant used this much more than it was charged; negative: less."""
        account.finish += amount / account.weight

    def place(self, account: TenantAccount) -> float:
        """Where the tenant's next work would stand: the smallest is next."""
        return max(account.finish, self.virtual)

    def advance(self, tag: float) -> None:
        """Work with this tag is being served: virtual time has come so far."""
        if tag > self.virtual:
            self.virtual = tag

    def forget(self) -> None:
        """Nothing waits and nothing runs: no debts."""
        if self.accounts:
            self.virtual = self.active_weight = 0.0
            self.accounts.clear()

    def prune(self) -> None:
        """Close the accounts of tenants with nothing waiting, but for the largest debts, if there
        are many."""
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
    """Which tenant is next, where work is charged after it has started.

    Call `add` when a tenant begins to wait, and ask `first` for the one whose place comes first.
    """

    def __init__(self, shares: Shares[A]) -> None:
        self._shares = shares
        self._heap: list[tuple[float, str]] = []  # places when noted; charges only move them back
        self._noted: set[str] = set()

    def add(self, account: TenantAccount) -> None:
        """The tenant has something waiting. Harmless if that is known."""
        if account.name not in self._noted:
            self._noted.add(account.name)
            heapq.heappush(self._heap, (self._shares.place(account), account.name))

    def first(self, is_out: Callable[[A], bool] | None = None) -> A | None:
        """The waiting tenant that has used least for its weight; those
        that are out are passed over, and keep their place."""
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
