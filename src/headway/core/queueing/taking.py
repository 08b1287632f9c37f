"""Takes items of one row from the front of several shelves, many at once: the usual case."""

import heapq
from bisect import bisect_right
from typing import Final

from headway.core.items import Item, key_of
from headway.core.queueing.fairness import A, Shares, TenantAccount
from headway.core.queueing.shelves import Shelf, Slot

_AHEAD: Final = 8  # slots of each shelf, beyond twice its part of a batch, that are compared first


def take_singles(
    shelves: list[Shelf], most: int, shares: Shares[TenantAccount], live: dict[int, Item]
) -> list[Item]:
    """Take up to `most` items from several shelves, in the order of their slots."""
    shares.advance(_first_tag(shelves))
    taken = _serve(shelves, most, shares, live)
    while len(taken) < most and (more := [shelf for shelf in shelves if shelf.slots]):
        taken += _serve(more, most - len(taken), shares, live)  # some slots were without an item
    return taken


def _first_tag(shelves: list[Shelf]) -> float:
    first: float = shelves[0].slots[0][2]
    for shelf in shelves:
        tag: float = shelf.slots[0][2]
        if tag < first:
            first = tag
    return first


def _serve(
    shelves: list[Shelf], most: int, shares: Shares[TenantAccount], live: dict[int, Item]
) -> list[Item]:
    """Take the items of the first `most` slots out of their flows."""
    first = shelves[0]
    if len(shelves) > 1 or len(first.flows) > 1 or first.owners[0].has_gaps:
        return _serve_each(shelves, most, shares, live)
    slots, flows = first.cut(most)
    flow = flows[0]
    shares.leave(flow.tenant, len(slots))
    taken: list[Item] = []
    for _ in slots:
        item = flow.pop()
        taken.append(item)
        del live[key_of(item)]
    return taken


def _serve_each(
    shelves: list[Shelf], most: int, shares: Shares[TenantAccount], live: dict[int, Item]
) -> list[Item]:
    """`_serve` for many tenants."""
    taken: list[Item] = []
    emptied = 0.0
    last = _last_slot(shelves, most)
    for shelf in shelves:
        count = most if last is None else bisect_right(shelf.slots, last)
        if not count:
            continue
        slots, flows = shelf.cut(count)
        for index, flow in enumerate(flows):
            item = shelf.serve(slots[index], flow) if flow.has_gaps else flow.pop()
            if item is None:
                continue
            taken.append(item)
            del live[key_of(item)]
            tenant = flow.tenant
            tenant.held = held = tenant.held - 1
            if not held:
                emptied += tenant.weight
            if shelf.is_crowded and flow.is_over:
                del shelf.flows[tenant.name]
    if emptied:
        shares.active_weight -= emptied
        shares.prune()
    return taken


def _last_slot(shelves: list[Shelf], most: int) -> Slot | None:
    """The last of the first `most` slots of all shelves; None: there are no more than `most`."""
    if len(shelves) == 1:
        return None
    in_all = 0
    for shelf in shelves:
        in_all += len(shelf.slots)
    return _slot_at(shelves, most) if in_all > most else None


def _slot_at(shelves: list[Shelf], place: int) -> Slot:
    """The slot at `place` (from 1) in the order of all shelves; there are enough."""
    each = 2 * place // len(shelves) + _AHEAD
    slots: list[Slot] = []
    for shelf in shelves:
        slots += shelf.slots[:each]
    slots.sort()
    if len(slots) >= place:
        last = slots[place - 1]
        if all(len(shelf.slots) <= each or last < shelf.slots[each] for shelf in shelves):
            return last
    return sorted([slot for shelf in shelves for slot in shelf.slots[:place]])[place - 1]


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
