"""One class of priority in a queue: its rows, its tenants' shares, and which tenant gives way.

Knows tenants and rows, but not in which lane an item waits, nor the order within a tenant.
"""

import math
from collections.abc import Mapping

from headway.core.items import Item, Priority
from headway.core.queueing.fairness import Shares, TenantAccount
from headway.core.queueing.taking import Crowding


class PriorityClass:
    """The waiting items of one class, in all lanes."""

    __slots__ = ("crowding", "is_crowded", "priority", "rows", "shares")

    def __init__(self, priority: Priority, weights: Mapping[str, float]) -> None:
        self.priority = priority
        self.rows = 0
        self.shares = Shares(weights, TenantAccount)
        self.crowding = Crowding(self.shares)
        self.is_crowded = False  # items may have been evicted lately

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Use these weights of tenants from now on; a tenant that is absent has 1."""
        self.shares.weigh(weights)
        self.crowding.forget()  # their loads have changed

    def pay_back(self, item: Item) -> None:
        """Undo the charge of an item that was taken to run and will not."""
        account = self.shares.accounts.get(item.tenant)
        if account is not None:
            self.shares.charge(account, -item.rows)

    def is_unshared(self, tenant: str) -> bool:
        """Is there no other tenant with an account?"""
        accounts = self.shares.accounts
        return not accounts or (len(accounts) == 1 and tenant in accounts)

    def rows_ahead(self, newcomer: Item, above: int) -> float:
        """How many rows leave before the newcomer.

        All `above` rows of higher classes go first; here, its tenant gets just its share.
        """
        shares = self.shares
        tenant = shares.accounts.get(newcomer.tenant)
        own = (tenant.held if tenant else 0) + newcomer.rows
        weight = shares.weight(newcomer.tenant)
        others = shares.active_weight - (weight if tenant and tenant.held else 0.0)
        return above + own * (others + weight) / weight - newcomer.rows

    # ---- which tenant gives way

    def allowed_load(self, newcomer: Item) -> float:
        """The load (rows per weight) up to which the newcomer may not evict other tenants."""
        shares = self.shares
        tenant = shares.accounts.get(newcomer.tenant)
        rows = (tenant.held if tenant else 0) + newcomer.rows
        load = rows / shares.weight(newcomer.tenant)
        if not shares.active_weight or load >= self.rows / shares.active_weight:
            return math.inf  # it has its fair share already
        return load

    def rows_over(self, allowed: float) -> int:
        """The rows that tenants hold beyond the load `allowed`, at least."""
        if allowed == math.inf:
            return 0
        accounts = self.shares.accounts.values()
        return sum(max(0, each.held - int(allowed * each.weight + 1e-9)) for each in accounts)

    def most_loaded(self, allowed: float) -> str | None:
        """The tenant that holds most for its weight, if that is more than `allowed`."""
        if not self.rows or allowed == math.inf:
            return None
        self.is_crowded = True
        name = self.crowding.most_loaded()
        account = self.shares.accounts.get(name) if name is not None else None
        return name if account is not None and account.load > allowed else None

    def forget(self) -> None:
        """The queue is empty: no tenant owes anything."""
        self.shares.forget()
        self.crowding.forget()
        self.is_crowded = False
