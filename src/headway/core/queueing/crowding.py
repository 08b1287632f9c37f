"""Finds the tenant that gives way in a full queue: the one that holds most for its weight."""

import heapq

from headway.core.queueing.fairness import A, Shares


class Crowding:
    """Finds the most loaded tenant of one class in O(log tenants), while the queue overflows.

    The heap is built at the first question and dropped when it has grown too long, so that a queue
    that does not overflow pays nothing. It notices loads that fall by itself when they reach the
    top; the caller must report loads that grow.
    """

    __slots__ = ("_heap", "_shares")

    def __init__(self, shares: Shares[A]) -> None:
        self._shares = shares
        self._heap: list[tuple[float, str]] | None = None  # the negative load, and the tenant

    def grew(self, name: str) -> None:
        """The tenant has more waiting work than before."""
        heap, accounts = self._heap, self._shares.accounts
        if heap is None:
            return
        if len(heap) > 4 * len(accounts) + 64:
            self._heap = None
        else:
            heapq.heappush(heap, (-accounts[name].load, name))

    def most_loaded(self) -> str | None:
        accounts = self._shares.accounts
        if self._heap is None:
            self._heap = [(-each.load, name) for name, each in accounts.items() if each.held]
            heapq.heapify(self._heap)
        heap = self._heap
        while heap:
            noted, name = heap[0]
            account = accounts.get(name)
            if account is None or not account.held:
                heapq.heappop(heap)
            elif account.load < -noted:
                heapq.heapreplace(heap, (-account.load, name))
            else:
                return name
        return None

    def forget(self) -> None:
        self._heap = None
