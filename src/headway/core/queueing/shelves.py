"""One class of sizes in a line: which item is next, by its tenant's share.

An item takes a *slot* when it comes: its tenant's place in the order, charged to the tenant. The
slot belongs to the tenant, not to the item: if an item is cancelled, pushed out or dropped, its
slot serves the tenant's next one, so only what runs is paid for. A slot that comes up with nothing
left to serve is paid back.
"""

import bisect
from typing import Any, Final, TypeAlias

from headway.core.items import Item, key_of
from headway.core.queueing.fairness import Account, Shares

SLACK: Final = 64  # traces of the departed that are tolerated


class Flow:
    """One tenant's items on one shelf, oldest first; some may have left.

    A list and where it starts: most flows hold an item or two, for which a deque is large and slow.
    A list of one stays when that was served: the tenant's next item takes its place.
    """

    __slots__ = ("gone", "has_gaps", "items", "shelf", "spent", "start", "tenant", "unused")

    def __init__(self, tenant: Account, shelf: "Shelf") -> None:
        self.tenant = tenant
        self.shelf = shelf
        self.items: list[Item] = []
        self.start = 0  # of those that wait; earlier ones were served
        self.gone = 0  # items that have left, from there on
        self.unused = 0  # slots of items that left without running
        self.spent = 0  # slots whose right was used for an item that went out of turn
        self.has_gaps = False  # a slot may have no item, or an item no slot

    @property
    def is_over(self) -> bool:
        """Nothing waits, and no slot is left."""
        return not self.unused and not self.spent and len(self.items) - self.start == self.gone

    def append(self, item: Item) -> None:
        items = self.items
        if self.start < len(items) or not items:
            items.append(item)
        elif len(items) == 1:
            items[0] = item
            self.start = 0
        else:
            self.items = [item]
            self.start = 0

    def pop(self) -> Item:
        """Take the first out."""
        items, start = self.items, self.start
        item = items[start]
        start += 1
        if start == len(items):
            if start > 1:
                items.clear()
                start = 0
        elif start >= SLACK and 2 * start >= len(items):
            del items[:start]
            start = 0
        self.start = start
        return item

    def pop_many(self, count: int) -> list[Item]:
        """Take the first so many out; there are as many."""
        taken = self.items[self.start : self.start + count]
        self.start += count - 1
        self.pop()  # the last, and what is to be cleared away
        return taken

    def oldest(self, live: dict[int, Item]) -> Item | None:
        """The first that waits; those before it that have left are cleared."""
        while self.start < len(self.items):
            item = self.items[self.start]
            if key_of(item) in live:
                return item
            self.pop()
            self.gone -= 1
        return None

    def newest(self, live: dict[int, Item]) -> Item | None:
        items = self.items
        while len(items) > self.start:
            if items[-1].id in live:
                return items[-1]
            items.pop()
            self.gone -= 1
        return None

    def clean(self, live: dict[int, Item]) -> None:
        """Forget the items that have left."""
        self.items = [each for each in self.items[self.start :] if each.id in live]
        self.start = self.gone = 0


# Key, id of the item that took it, tag, rows that were charged, flow. Ordered by key, then arrival.
# The key is the tag, plus a penalty for being long where the shortest go first. (Were the types of
# its fields given, compiled code would take it apart and build it anew wherever it is passed on.)
Slot: TypeAlias = tuple[Any, ...]


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
        flow.append(item)
        self.items += 1
        self.rows += rows
        if item.size > self.largest:
            self.largest = item.size
        if flow.unused:
            flow.unused -= 1
            shares.enter(tenant, rows)
            return
        tag: Any = shares.enter(tenant, rows, rows)  # as an object: one for both of its places
        slot = (tag + penalty if penalty else tag, key_of(item), tag, rows, flow)
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
            flow: Flow = slot[4]
            item = None if flow.spent else flow.oldest(live)
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
            flow: Flow = slot[4]
            item = None if flow.spent else flow.oldest(live)
            if item is None:
                self._clear(slot)
                used += 1
                continue
            if item.rows > most - rows:
                break
            if not rows:
                shares.advance(slot[2])
            flow.pop()
            del live[key_of(item)]
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
        slots = self.slots
        if len(slots) <= most:
            self.slots = []
        else:
            slots = slots[:most]
            del self.slots[:most]
        self.items -= len(slots)
        self.rows -= len(slots)
        return slots

    def serve(self, slot: Slot) -> Item | None:
        """The item for a slot that was cut off, of a flow with gaps; None: there is none."""
        flow: Flow = slot[4]
        item = None if flow.spent else flow.oldest(self._live)
        if item is None:
            self.items += 1
            self.rows += 1
            self._clear(slot)
        else:
            flow.pop()
            if slot[3] != 1:
                self._shares.charge(flow.tenant, 1 - slot[3])
        flow.has_gaps = bool(flow.gone or flow.unused or flow.spent)
        return item

    def newest(self, name: str) -> Item | None:
        """That tenant's newest item on this shelf."""
        flow = self.flows.get(name)
        return None if flow is None else flow.newest(self._live)

    def remove(self, item: Item, *, ran: bool) -> None:
        """Out of turn: to run, or never to. It is not `live` any more."""
        flow = self.flows[item.tenant]
        flow.has_gaps = True
        flow.gone += 1
        if flow.gone > (len(flow.items) - flow.start) // 2 + SLACK:
            flow.clean(self._live)
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
            flow: Flow = slot[4]
            if flow.oldest(self._live) is not None:
                self.slots.append(slot)
            else:
                self._clear(slot)

    def _clear(self, slot: Slot) -> None:
        flow: Flow = slot[4]
        if flow.spent:
            flow.spent -= 1
        else:
            flow.unused -= 1
            self._shares.charge(flow.tenant, -slot[3])
        if flow.is_over:
            self.flows.pop(flow.tenant.name, None)
