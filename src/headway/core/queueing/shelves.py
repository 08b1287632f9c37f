"""One class of sizes in a line: which item is next, by its tenant's share.

An item takes a *slot* when it comes: its tenant's place in the order, charged to the tenant. The
slot belongs to the tenant, not to the item: if an item is cancelled, pushed out or dropped, its
slot serves the tenant's next one, so only what runs is paid for. A slot that comes up with nothing
left to serve is paid back.
"""

import bisect
from collections import deque
from typing import TypeAlias

from headway.core.items import Item
from headway.core.queueing.fairness import Account, Shares

SLACK = 64  # traces of the departed that are tolerated


class Flow:
    """One tenant's items on one shelf, oldest first; some may have left.

    A deque itself, and not an object that has one: a batch of as many tenants reads as many flows.
    """

    __slots__ = ("gone", "has_gaps", "items", "shelf", "spent", "tenant", "unused")

    def __init__(self, tenant: Account, shelf: "Shelf") -> None:
        self.tenant = tenant
        self.shelf = shelf
        self.items: deque[Item] = deque()
        self.gone = 0  # items that have left
        self.unused = 0  # slots of items that left without running
        self.spent = 0  # slots whose right was used for an item that went out of turn
        self.has_gaps = False  # a slot may have no item, or an item no slot

    @property
    def is_over(self) -> bool:
        """Nothing waits, and no slot is left."""
        return not self.unused and not self.spent and len(self.items) == self.gone


# Key, id of the item that took it, tag, rows that were charged, flow. Ordered by key, then arrival.
# The key is the tag, plus a penalty for being long where the shortest go first.
Slot: TypeAlias = tuple[float, int, float, int, Flow]


class Shelf:
    """The items of one class of sizes."""

    __slots__ = (
        "_live",
        "_shares",
        "flows",
        "is_crowded",
        "items",
        "largest",
        "rows",
        "size",
        "slots",
    )

    def __init__(self, size: int, shares: Shares[Account], live: dict[int, Item]) -> None:
        """`live`: the waiting items, by id."""
        self.size = size  # up to this
        self.largest = 0  # of the items that came
        self._shares = shares
        self._live = live
        self.items = 0
        self.rows = 0
        self.flows: dict[str, Flow] = {}
        self.slots: list[Slot] = []
        # A flow that is over is left for its tenant, who is often back soon; where there are many,
        # each is closed when it ends.
        self.is_crowded = False

    def push(self, item: Item, tenant: Account, penalty: float) -> None:
        """`penalty`: for being long, where the shortest go first."""
        shares = self._shares
        flow = self.flows.get(tenant.name)
        if flow is None:
            flow = self.flows[tenant.name] = Flow(tenant, self)
        elif flow.tenant is not tenant:  # its account was closed and opened again meanwhile
            flow.tenant = tenant
        rows = item.rows
        flow.items.append(item)
        self.items += 1
        self.rows += rows
        if item.size > self.largest:
            self.largest = item.size
        if flow.unused:
            flow.unused -= 1
            shares.enter(tenant, rows)
            return
        tag = shares.enter(tenant, rows, rows)
        slot = (tag + penalty, item.id, tag, rows, flow)
        slots = self.slots
        if not slots or slots[-1] < slot:
            slots.append(slot)
        else:
            bisect.insort(slots, slot)

    def first(self) -> tuple[Slot, Item] | None:
        """The slot whose turn it is, and its item. Slots without an item are cleared."""
        slots, live, gone = self.slots, self._live, 0
        found: tuple[Slot, Item] | None = None
        for slot in slots:
            item = None if slot[4].spent else _oldest(slot[4], live)
            if item is not None:
                found = slot, item
                break
            self._clear(slot)
            gone += 1
        if gone:
            del slots[:gone]
        return found

    def take(self, most: int) -> list[Item]:
        """Up to so many rows from the front; the first item that does not fit stops."""
        shares, live = self._shares, self._live
        taken: list[Item] = []
        rows = used = 0
        for slot in self.slots:
            if rows >= most:
                break
            flow = slot[4]
            item = None if flow.spent else _oldest(flow, live)
            if item is None:
                self._clear(slot)
                used += 1
                continue
            if item.rows > most - rows:
                break
            if not rows:
                shares.advance(slot[2])
            flow.items.popleft()
            del live[item.id]
            taken.append(item)
            rows += item.rows
            used += 1
            tenant = flow.tenant
            if item.rows != slot[3]:
                shares.charge(tenant, item.rows - slot[3])
            if flow.is_over:
                del self.flows[tenant.name]
            shares.leave(tenant, item.rows)
        del self.slots[:used]
        self.items -= len(taken)
        self.rows -= rows
        return taken

    def cut(self, most: int) -> list[Slot]:
        """Take the first slots off, up to so many. Each is for one item of one row; where it turns
        out to be for none, `serve` says so."""
        slots = self.slots[:most]
        del self.slots[:most]
        self.items -= len(slots)
        self.rows -= len(slots)
        return slots

    def serve(self, slot: Slot) -> Item | None:
        """The item for a slot that was cut off, of a flow with gaps; None: there is none."""
        flow = slot[4]
        item = None if flow.spent else _oldest(flow, self._live)
        if item is None:
            self.items += 1
            self.rows += 1
            self._clear(slot)
        else:
            flow.items.popleft()
            if slot[3] != 1:
                self._shares.charge(flow.tenant, 1 - slot[3])
        flow.has_gaps = bool(flow.gone or flow.unused or flow.spent)
        return item

    def newest(self, name: str) -> Item | None:
        """That tenant's newest item on this shelf."""
        flow = self.flows.get(name)
        if flow is None:
            return None
        live = self._live
        while flow.items and flow.items[-1].id not in live:
            flow.items.pop()
            flow.gone -= 1
        return flow.items[-1] if flow.items else None

    def remove(self, item: Item, *, ran: bool) -> None:
        """Out of turn: to run, or never to. It is not `live` any more."""
        flow = self.flows[item.tenant]
        flow.has_gaps = True
        flow.gone += 1
        if flow.gone > len(flow.items) // 2 + SLACK:
            _clean(flow, self._live)
        if ran:
            flow.spent += 1
        else:
            flow.unused += 1
        self.items -= 1
        self.rows -= item.rows
        self._shares.leave(flow.tenant, item.rows)

    def forget(self) -> None:
        """Clear away what the departed have left, where that is much."""
        items = self.items
        if len(self.slots) > 2 * items + SLACK or (self.slots and not items):
            self.compact()
        if len(self.flows) > 4 * items + 4 * SLACK:
            self.flows = {name: flow for name, flow in self.flows.items() if not flow.is_over}

    def compact(self) -> None:
        """Clear away the slots without an item."""
        slots, self.slots = self.slots, []
        for slot in slots:
            if _oldest(slot[4], self._live) is not None:
                self.slots.append(slot)
            else:
                self._clear(slot)

    def _clear(self, slot: Slot) -> None:
        flow = slot[4]
        if flow.spent:
            flow.spent -= 1
        else:
            flow.unused -= 1
            self._shares.charge(flow.tenant, -slot[3])
        if flow.is_over:
            self.flows.pop(flow.tenant.name, None)


def _clean(flow: Flow, live: dict[int, Item]) -> None:
    waiting = [each for each in flow.items if each.id in live]
    flow.items.clear()
    flow.items.extend(waiting)
    flow.gone = 0


def _oldest(flow: Flow, live: dict[int, Item]) -> Item | None:
    while flow.items and flow.items[0].id not in live:
        flow.items.popleft()
        flow.gone -= 1
    return flow.items[0] if flow.items else None
