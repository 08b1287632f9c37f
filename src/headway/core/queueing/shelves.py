"""One class of sizes in a line: which item is next, by its tenant's share.

An item takes a *slot* when it arrives: its tenant's place in the order, charged to the tenant. The
slot belongs to the tenant, not to the item: if an item is cancelled, pushed out or dropped, its
slot serves the tenant's next item, so a tenant pays only for items that run. If the tenant has no
item when the turn of a slot comes, the charge is given back.
"""

import bisect
from typing import Any, Final, TypeAlias

from headway.core.items import Item, key_of
from headway.core.queueing.fairness import Shares, TenantAccount

SLACK: Final = 64  # slots and items of left callers that are kept before cleaning up


class Flow:
    """One tenant's items on one shelf, oldest first; some may have left.

    The first has a place of its own: with many tenants, most flows are of one item.
    """

    __slots__ = ("_rest", "_start", "first", "gone", "has_gaps", "spent", "tenant", "unused")

    def __init__(self, tenant: TenantAccount) -> None:
        self.tenant = tenant
        self.first: Item | None = None
        self._rest: list[Item] | None = None  # the items after it, …
        self._start = 0  # … from this index on
        self.gone = 0  # items that have left
        self.unused = 0  # slots of items that left without running
        self.spent = 0  # slots used up by an item that ran out of turn
        self.has_gaps = False  # a slot may have no item, or an item no slot

    def __len__(self) -> int:
        """How many items there are, with those that have left."""
        if self.first is None:
            return 0
        return 1 if self._rest is None else 1 + len(self._rest) - self._start

    @property
    def is_over(self) -> bool:
        """No item waits, and no slot is left."""
        return len(self) == self.gone and not self.unused and not self.spent

    def append(self, item: Item) -> None:
        if self.first is None:
            self.first = item
        elif self._rest is None:
            self._rest = [item]
        else:
            self._rest.append(item)

    def pop(self) -> Item:
        """Remove and return the first item."""
        item, rest = self.first, self._rest
        assert item is not None, "the flow is empty"
        if rest is None:
            self.first = None
            return item
        self.first = rest[self._start]
        self._start += 1
        if self._start == len(rest):
            self._rest, self._start = None, 0
        elif self._start > SLACK and 2 * self._start > len(rest):
            del rest[: self._start]
            self._start = 0
        return item

    def oldest(self, live: dict[int, Item]) -> Item | None:
        """The first waiting item; items before it that have left are cleared."""
        while (first := self.first) is not None and key_of(first) not in live:
            self.pop()
            self.gone -= 1
        return first

    def newest(self, live: dict[int, Item]) -> Item | None:
        """The last waiting item; items after it that have left are cleared."""
        while self._rest is not None:
            if key_of(self._rest[-1]) in live:
                return self._rest[-1]
            self._rest.pop()
            self.gone -= 1
            if len(self._rest) == self._start:
                self._rest, self._start = None, 0
        return self.oldest(live)

    def clean(self, live: dict[int, Item]) -> None:
        """Forget the items that have left, if they are many."""
        if self.gone > len(self) // 2 + SLACK:
            for item in [self.pop() for _ in range(len(self))]:
                if key_of(item) in live:
                    self.append(item)
            self.gone = 0


# A slot: key, id of the item that took it, tag, charged rows. Slots are ordered by key, then by
# arrival. The key is the tag, plus a penalty for size if the shortest go first. (With the types of
# its fields, compiled code would unpack and rebuild the tuple wherever it is passed on. It does not
# contain its flow, because Python's garbage collector does not track tuples of numbers.)
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
        "owners",
        "rows",
        "size",
        "slots",
    )

    def __init__(self, size: int, shares: Shares[TenantAccount], live: dict[int, Item]) -> None:
        """`live`: the waiting items, by id."""
        self.size = size  # the largest size that belongs here
        self.largest = 0  # the largest size of an item that arrived
        self._shares = shares
        self._live = live
        self.items = 0
        self.rows = 0
        self.flows: dict[str, Flow] = {}
        self.slots: list[Slot] = []  # in order
        self.owners: list[Flow] = []  # the flow of each slot
        # A flow that is over is kept, because its tenant is often back soon. If there are too many
        # flows, each is closed when it ends.
        self.is_crowded = False

    def push(self, item: Item, tenant: TenantAccount, penalty: float) -> None:
        """`penalty`: for the item's size, if the shortest go first; otherwise 0."""
        shares = self._shares
        flow = self.flows.get(tenant.name)
        if flow is None:
            flow = self.flows[tenant.name] = Flow(tenant)
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
        tag: Any = shares.enter(tenant, rows, rows)  # one float object, used twice in the slot
        slot = (tag + penalty if penalty else tag, key_of(item), tag, rows)
        slots = self.slots
        if not slots or slots[-1] < slot:
            slots.append(slot)
            self.owners.append(flow)
        else:
            place = bisect.bisect(slots, slot)
            slots.insert(place, slot)
            self.owners.insert(place, flow)

    def first(self) -> tuple[Slot, Item] | None:
        """The next slot and its item. Slots without an item are cleared."""
        slots, live, gone = self.slots, self._live, 0
        found: tuple[Slot, Item] | None = None
        for flow in self.owners:
            item = None if flow.spent else flow.oldest(live)
            if item is not None:
                found = slots[gone], item
                break
            self._clear(slots[gone], flow)
            gone += 1
        if gone:
            self._cut_off(gone)
        return found

    def take(self, most: int) -> list[Item]:
        """Take up to `most` rows from the front, until an item does not fit."""
        shares, live = self._shares, self._live
        taken: list[Item] = []
        rows = used = 0
        for flow in self.owners:
            if rows >= most:
                break
            slot = self.slots[used]
            item = None if flow.spent else flow.oldest(live)
            if item is None:
                self._clear(slot, flow)
                used += 1
                continue
            if item.rows > most - rows:
                break
            tag, charged_rows = slot[2], slot[3]
            if not rows:  # all that is taken leaves at one moment: that of the first item
                shares.advance(tag)
            flow.pop()
            del live[key_of(item)]
            taken.append(item)
            rows += item.rows
            used += 1
            tenant = flow.tenant
            if item.rows != charged_rows:
                shares.charge(tenant, item.rows - charged_rows)
            if flow.is_over:  # its tenant has no more items here
                del self.flows[tenant.name]
            shares.leave(tenant, item.rows)
        self._cut_off(used)
        self.items -= len(taken)
        self.rows -= rows
        return taken

    def cut(self, most: int) -> tuple[list[Slot], list[Flow]]:
        """Cut off up to `most` slots from the front, with their flows.

        Each slot is for one item of one row; `serve` returns None if the slot has no item.
        """
        slots, owners = self.slots, self.owners
        if len(slots) <= most:
            self.slots, self.owners = [], []
        else:
            slots, owners = slots[:most], owners[:most]
            self._cut_off(most)
        self.items -= len(slots)
        self.rows -= len(slots)
        return slots, owners

    def _cut_off(self, count: int) -> None:
        del self.slots[:count], self.owners[:count]

    def serve(self, slot: Slot, flow: Flow) -> Item | None:
        """Remove and return the item of a slot that was cut off; None: the slot has no item."""
        item = None if flow.spent else flow.oldest(self._live)
        if item is None:
            self.items += 1
            self.rows += 1
            self._clear(slot, flow)
        else:
            flow.pop()
            if slot[3] != 1:
                self._shares.charge(flow.tenant, 1 - slot[3])
        flow.has_gaps = bool(flow.gone or flow.unused or flow.spent)
        return item

    def newest(self, name: str) -> Item | None:
        """The newest item of the tenant `name` on this shelf."""
        flow = self.flows.get(name)
        return None if flow is None else flow.newest(self._live)

    def remove(self, item: Item, *, ran: bool) -> None:
        """Remove an item out of turn, to run or not. It is not `live` any more."""
        flow = self.flows[item.tenant]
        flow.has_gaps = True
        flow.gone += 1
        flow.clean(self._live)
        if ran:
            flow.spent += 1
        else:
            flow.unused += 1
        self.items -= 1
        self.rows -= item.rows
        self._shares.leave(flow.tenant, item.rows)

    def forget(self) -> None:
        """Clear away slots and flows without items, if there are many."""
        items = self.items
        if len(self.slots) > 2 * items + SLACK or (self.slots and not items):
            self.compact()
        if len(self.flows) > 4 * items + 4 * SLACK:
            self.flows = {name: flow for name, flow in self.flows.items() if not flow.is_over}

    def compact(self) -> None:
        """Clear away the slots without an item."""
        slots, owners = self.slots, self.owners
        self.slots, self.owners = [], []
        for index, flow in enumerate(owners):
            if flow.oldest(self._live) is not None:
                self.slots.append(slots[index])
                self.owners.append(flow)
            else:
                self._clear(slots[index], flow)

    def _clear(self, slot: Slot, flow: Flow) -> None:
        if flow.spent:
            flow.spent -= 1
        else:
            flow.unused -= 1
            self._shares.charge(flow.tenant, -slot[3])
        if flow.is_over:
            self.flows.pop(flow.tenant.name, None)
