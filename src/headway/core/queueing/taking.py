"""Takes items of one row from the front of several shelves, many at once: the usual case."""

import bisect
from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter

from headway.core.items import Item
from headway.core.queueing.fairness import Account, Shares
from headway.core.queueing.shelves import Flow, Shelf, Slot

_AHEAD = 8  # slots of each shelf, beside twice its part of a batch, that are looked at first
_id, _flow, _has_gaps = itemgetter(0), itemgetter(4), attrgetter("has_gaps")
_is_crowded = attrgetter("is_crowded")


def take_singles(
    shelves: Sequence[Shelf], most: int, shares: Shares[Account], live: dict[int, Item]
) -> list[Item]:
    """Up to so many, whose slots come first; from several shelves, in no order."""
    shares.advance(min([shelf.slots[0][2] for shelf in shelves]))
    taken = _serve(shelves, most, shares)
    while len(taken) < most and (more := [shelf for shelf in shelves if shelf.slots]):
        taken += _serve(more, most - len(taken), shares)  # some slots were without an item
    for item_id in map(_id, taken):
        del live[item_id]
    return taken


def _serve(shelves: Sequence[Shelf], most: int, shares: Shares[Account]) -> list[Item]:
    """The items of the first so many slots, out of their flows."""
    first = shelves[0]
    slots = first.cut(most) if len(shelves) == 1 else _cut(shelves, most)
    if len(shelves) == 1 and len(first.flows) == 1 and not slots[0][4].has_gaps:
        return _serve_flow(slots[0][4], len(slots), shares)
    flows = list(map(_flow, slots))
    if any(map(_has_gaps, flows)):
        return _serve_gaps(slots, shares)
    taken = [flow.items.popleft() for flow in flows]
    if len(shares.accounts) == 1:
        shares.leave(flows[0].tenant, len(taken))
    else:
        _leave_each(flows, shares)
        if any(map(_is_crowded, shelves)):
            _close(flows)
    return taken


def _serve_flow(flow: Flow, count: int, shares: Shares[Account]) -> list[Item]:
    """The first so many of one tenant; there are as many."""
    if count == len(flow.items):
        taken = list(flow.items)
        flow.items.clear()
    else:
        items = flow.items
        taken = [items.popleft() for _ in range(count)]
    shares.leave(flow.tenant, count)
    return taken


def _serve_gaps(slots: Sequence[Slot], shares: Shares[Account]) -> list[Item]:
    """Slots may be for other items than those that took them, or for none."""
    taken: list[Item] = []
    served: list[Flow] = []
    for slot in slots:
        flow = slot[4]
        item = flow.shelf.serve(slot) if flow.has_gaps else flow.items.popleft()
        if item is not None:
            taken.append(item)
            served.append(flow)
    _leave_each(served, shares)
    return taken


def _leave_each(flows: Iterable[Flow], shares: Shares[Account]) -> None:
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


def _close(flows: Iterable[Flow]) -> None:
    """Forget those, of flows without gaps, that are over."""
    for flow in flows:
        if not flow.items:
            flow.shelf.flows.pop(flow.tenant.name, None)


def _cut(shelves: Sequence[Shelf], most: int) -> list[Slot]:
    """Take the first so many slots off."""
    slots: list[Slot] = []
    if sum([len(shelf.slots) for shelf in shelves]) <= most:
        for shelf in shelves:
            slots += shelf.cut(most)
    else:
        last = _slot_at(shelves, most)
        for shelf in shelves:
            count = bisect.bisect_right(shelf.slots, last)
            if count:
                slots += shelf.cut(count)
    return slots


def _slot_at(shelves: Sequence[Shelf], place: int) -> Slot:
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
