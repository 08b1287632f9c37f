"""Takes items of one row from the front of several shelves, many at once: the usual case."""

import bisect
from collections.abc import Sequence
from operator import attrgetter, itemgetter

from headway.core.items import Item
from headway.core.queueing.fairness import Account, Shares
from headway.core.queueing.shelves import Shelf, Slot

_AHEAD = 8  # slots of each shelf, beside twice its part of a batch, that are looked at first
_id, _flow, _has_gaps = itemgetter(0), itemgetter(4), attrgetter("has_gaps")


def take_singles(
    shelves: Sequence[Shelf], most: int, shares: Shares[Account], live: dict[int, Item]
) -> list[Item]:
    """Up to so many, whose slots come first; from several shelves, in no order."""
    shares.advance(min([shelf.slots[0][2] for shelf in shelves]))
    taken = _serve(_cut(shelves, most), shares)
    while len(taken) < most and (more := [shelf for shelf in shelves if shelf.slots]):
        taken += _serve(_cut(more, most - len(taken)), shares)  # some slots were without an item
    for item_id in map(_id, taken):
        del live[item_id]
    return taken


def _cut(shelves: Sequence[Shelf], most: int) -> list[Slot]:
    """Take the first so many slots off."""
    if len(shelves) == 1:
        return shelves[0].cut(most)
    slots: list[Slot] = []
    if sum([len(shelf.slots) for shelf in shelves]) <= most:
        for shelf in shelves:
            slots += shelf.cut(most)
    else:
        last = _slot_at(shelves, most)
        for shelf in shelves:
            slots += shelf.cut(bisect.bisect_right(shelf.slots, last))
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


def _serve(slots: Sequence[Slot], shares: Shares[Account]) -> list[Item]:
    """The items that go with these slots, out of their flows."""
    flows = list(map(_flow, slots))
    tenant: Account = flows[0].tenant
    if len(shares.accounts) == 1 and not any(map(_has_gaps, flows)):
        tenant.held -= len(slots)
        if not tenant.held:
            shares.emptied(tenant)
        return [flow.items.popleft() for flow in flows]
    taken: list[Item] = []
    emptied = 0.0
    for slot, flow in zip(slots, flows, strict=True):
        item = flow.shelf.serve(slot) if flow.has_gaps else flow.items.popleft()
        if item is None:
            continue
        taken.append(item)
        tenant = flow.tenant
        tenant.held -= 1
        if not tenant.held:
            emptied += tenant.weight
    if emptied:
        shares.active_weight -= emptied
        shares.prune()
    return taken
