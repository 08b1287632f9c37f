"""Takes items of one row from the front of several shelves, many at once: the usual case."""

from bisect import bisect_right

from headway.core.items import Item
from headway.core.queueing.fairness import Account, Shares
from headway.core.queueing.shelves import Flow, Shelf, Slot

_AHEAD = 8  # slots of each shelf, beside twice its part of a batch, that are looked at first


def take_singles(
    shelves: list[Shelf], most: int, shares: Shares[Account], live: dict[int, Item]
) -> list[Item]:
    """Up to so many, whose slots come first; from several shelves, in no order."""
    shares.advance(min([shelf.slots[0][2] for shelf in shelves]))
    taken = _serve(shelves, most, shares)
    while len(taken) < most and (more := [shelf for shelf in shelves if shelf.slots]):
        taken += _serve(more, most - len(taken), shares)  # some slots were without an item
    for item in taken:
        del live[item.id]
    return taken


def _serve(shelves: list[Shelf], most: int, shares: Shares[Account]) -> list[Item]:
    """The items of the first so many slots, out of their flows."""
    first = shelves[0]
    slots = first.cut(most) if len(shelves) == 1 else _cut(shelves, most)
    one: Flow = slots[0][4]
    if len(shelves) == 1 and len(first.flows) == 1 and not one.has_gaps:
        shares.leave(one.tenant, len(slots))
        return one.pop_many(len(slots))
    flows: list[Flow] = []
    for slot in slots:
        flow: Flow = slot[4]
        if flow.has_gaps:
            return _serve_gaps(slots, shares)
        flows.append(flow)
    taken = [flow.pop() for flow in flows]
    if len(shares.accounts) == 1:
        shares.leave(one.tenant, len(taken))
    else:
        _leave_each(flows, shares)
        for shelf in shelves:
            if shelf.is_crowded:
                _close(flows)
                break
    return taken


def _serve_gaps(slots: list[Slot], shares: Shares[Account]) -> list[Item]:
    """Slots may be for other items than those that took them, or for none."""
    taken: list[Item] = []
    served: list[Flow] = []
    for slot in slots:
        flow: Flow = slot[4]
        item = flow.shelf.serve(slot) if flow.has_gaps else flow.pop()
        if item is not None:
            taken.append(item)
            served.append(flow)
    _leave_each(served, shares)
    return taken


def _leave_each(flows: list[Flow], shares: Shares[Account]) -> None:
    """One item of each has left: of many tenants."""
    emptied = 0.0
    for flow in flows:
        tenant = flow.tenant
        tenant.held = held = tenant.held - 1
        if not held:
            emptied += tenant.weight
    if emptied:
        shares.active_weight -= emptied
        shares.prune()


def _close(flows: list[Flow]) -> None:
    """Forget those, of flows without gaps, that are over."""
    for flow in flows:
        if not flow.items:
            flow.shelf.flows.pop(flow.tenant.name, None)


def _cut(shelves: list[Shelf], most: int) -> list[Slot]:
    """Take the first so many slots off."""
    slots: list[Slot] = []
    if sum([len(shelf.slots) for shelf in shelves]) <= most:
        for shelf in shelves:
            slots += shelf.cut(most)
    else:
        last = _slot_at(shelves, most)
        for shelf in shelves:
            count = bisect_right(shelf.slots, last)
            if count:
                slots += shelf.cut(count)
    return slots


def _slot_at(shelves: list[Shelf], place: int) -> Slot:
    """Of all their slots, in order, the one at that place; there are as many."""
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
