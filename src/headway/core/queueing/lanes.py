"""The items of one partition, in order. `Queue` is made of lanes; only it changes them.

A lane has a line for each class, a line has a shelf for each class of sizes, and a shelf has a flow
for each tenant, first come first served. The order among tenants is kept in *slots*: a slot is the
right to run one item, taken when an item arrives and sorted by its fair-queueing tag. Slots belong
to the tenant, not to the item: live an item is cancelled, pushed out or dropped, its slot serves
the tenant's next one, so only what runs is paid for. A slot that comes up with nothing left to
serve is paid back.
"""

import bisect
import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, TypeAlias

from headway.core.items import Item, Priority
from headway.core.queueing.deadlines import Deadlines
from headway.core.queueing.fairness import Account, Shares

SLACK = 64  # traces of the departed that are tolerated


class Lane(Protocol):
    """Items that may share a batch, as the rules for firing see them."""

    partition: Hashable
    size_rows: int  # the sum of rows × size: what they would cost unpadded

    @property
    def items(self) -> int: ...

    @property
    def rows(self) -> int: ...

    @property
    def mean_size(self) -> int: ...

    @property
    def priority(self) -> Priority:
        """The highest class in it."""
        ...

    def oldest(self) -> Item | None: ...


class Flow:
    """One tenant's items on one shelf, oldest first."""

    __slots__ = ("gone", "items", "shelf", "spent", "tenant", "unused")

    def __init__(self, tenant: Account, shelf: "Shelf") -> None:
        self.tenant = tenant
        self.shelf = shelf
        self.items: deque[Item] = deque()  # some may have left
        self.gone = 0  # so many
        self.unused = 0  # slots of items that left without running
        self.spent = 0  # slots whose right was used for an item that went out of turn

    @property
    def is_over(self) -> bool:
        """Nothing waits, and no slot is left."""
        return not self.unused and not self.spent and len(self.items) == self.gone


# Key, id of the item that took it, tag, rows that were charged, flow. Ordered by key, then arrival.
# The key is the tag, plus a penalty for being long where the shortest go first.
Slot: TypeAlias = tuple[float, int, float, int, Flow]


class Shelf:
    """The items of one class of sizes."""

    __slots__ = ("flows", "items", "largest", "line", "rows", "size", "slots")

    def __init__(self, size: int, line: "Line") -> None:
        self.size = size  # up to this
        self.largest = 0  # of the items that came
        self.line = line
        self.items = 0
        self.rows = 0
        self.flows: dict[str, Flow] = {}
        self.slots: list[Slot] = []

    def push(self, item: Item, tenant: Account, shares: Shares[Account], penalty: float) -> None:
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

    def first(self, shares: Shares[Account], live: dict[int, Item]) -> tuple[Slot, Item] | None:
        """The slot whose turn it is, and its item. Slots without an item are cleared."""
        slots, gone = self.slots, 0
        found: tuple[Slot, Item] | None = None
        for slot in slots:
            item = None if slot[4].spent else _oldest(slot[4], live)
            if item is not None:
                found = slot, item
                break
            self._clear(slot, shares)
            gone += 1
        if gone:
            del slots[:gone]
        return found

    def take(self, most: int, shares: Shares[Account], live: dict[int, Item]) -> list[Item]:
        """Up to so many rows from the front; the first item that does not fit stops."""
        taken: list[Item] = []
        rows = used = 0
        for slot in self.slots:
            if rows >= most:
                break
            flow = slot[4]
            item = None if flow.spent else _oldest(flow, live)
            if item is None:
                self._clear(slot, shares)
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

    def take_singles(self, most: int, shares: Shares[Account], live: dict[int, Item]) -> list[Item]:
        """As `take`, where all items are of one row: the way that most go, so it is unrolled."""
        slots, flows = self.slots, self.flows
        shares.advance(slots[0][2])
        if len(flows) == 1 and len(slots) == self.items:
            return self._take_alike(most, shares, live)
        taken: list[Item] = []
        used, left, emptied = 0, most, 0.0
        for slot in slots:
            flow = slot[4]
            items = flow.items
            used += 1
            if (flow.gone and _oldest(flow, live) is None) or flow.spent or not items:
                self._clear(slot, shares)
                continue
            taken.append(items.popleft())
            tenant = flow.tenant
            tenant.held -= 1
            if not tenant.held:  # the flow may still hold items that are gone, and their slots
                emptied += tenant.weight
            if not items and not flow.unused:
                del flows[tenant.name]
            left -= 1
            if not left:
                break
        for item in taken:
            del live[item.id]
        del slots[:used]
        shares.active_weight -= emptied
        shares.prune()
        self.items -= len(taken)
        self.rows -= len(taken)
        return taken

    def drain(self, shares: Shares[Account], live: dict[int, Item]) -> list[Item]:
        """All there are, in no order."""
        if not len(self.slots) == self.items == self.rows:
            return self.take(self.rows, shares, live)
        taken: list[Item] = []
        emptied = 0.0
        for flow in self.flows.values():
            tenant = flow.tenant
            if flow.gone:
                _clean(flow, live)
            items = flow.items
            taken += items
            tenant.held -= len(items)
            if not tenant.held:
                emptied += tenant.weight
        for item in taken:
            del live[item.id]
        if emptied:
            shares.active_weight -= emptied
            shares.prune()
        self.items = self.rows = 0
        self.slots = []
        self.flows = {}
        return taken

    def _take_alike(self, most: int, shares: Shares[Account], live: dict[int, Item]) -> list[Item]:
        """Likewise, where there is one tenant, and every slot is that of an item."""
        (flow,) = self.flows.values()
        items, tenant = flow.items, flow.tenant
        if flow.gone:
            _clean(flow, live)
            items = flow.items
        pop = items.popleft
        taken = [pop() for _ in range(most)]
        for item in taken:
            del live[item.id]
        del self.slots[:most]
        self.items -= most
        self.rows -= most
        tenant.held -= most
        if not self.items:
            self.flows.clear()
            if not tenant.held:
                shares.emptied(tenant)
        return taken

    def newest(self, name: str, live: dict[int, Item]) -> Item | None:
        """That tenant's newest item on this shelf."""
        flow = self.flows.get(name)
        if flow is None:
            return None
        items = flow.items
        while items and items[-1].id not in live:
            items.pop()
            flow.gone -= 1
        return items[-1] if items else None

    def remove(
        self, item: Item, shares: Shares[Account], live: dict[int, Item], *, ran: bool
    ) -> None:
        """Out of turn: to run, or never to. It is not `live` any more."""
        flow = self.flows[item.tenant]
        flow.gone += 1
        if flow.gone > len(flow.items) // 2 + SLACK:
            _clean(flow, live)
        if ran:
            flow.spent += 1
        else:
            flow.unused += 1
        self.items -= 1
        self.rows -= item.rows
        shares.leave(flow.tenant, item.rows)

    def compact(self, shares: Shares[Account], live: dict[int, Item]) -> None:
        """Clear away the slots without an item."""
        slots, self.slots = self.slots, []
        for slot in slots:
            if _oldest(slot[4], live) is not None:
                self.slots.append(slot)
            else:
                self._clear(slot, shares)

    def _clear(self, slot: Slot, shares: Shares[Account]) -> None:
        flow = slot[4]
        if flow.spent:
            flow.spent -= 1
        else:
            flow.unused -= 1
            shares.charge(flow.tenant, -slot[3])
        if flow.is_over:
            self.flows.pop(flow.tenant.name, None)


def _clean(flow: Flow, live: dict[int, Item]) -> None:
    flow.items = deque(each for each in flow.items if each.id in live)
    flow.gone = 0


def _oldest(flow: Flow, live: dict[int, Item]) -> Item | None:
    items = flow.items
    while items and items[0].id not in live:
        items.popleft()
        flow.gone -= 1
    return items[0] if items else None


class Line:
    """The items of one class in one lane."""

    __slots__ = ("_live", "arrivals", "due", "items", "lane", "priority", "rows", "shelves")

    def __init__(self, lane: "FairLane", priority: Priority, live: dict[int, Item]) -> None:
        self.lane = lane
        self.priority = priority
        self.items = 0
        self.rows = 0
        self.shelves: dict[int, Shelf] = {}  # by size
        self.arrivals: deque[Item] = deque()  # some may have left
        self.due = Deadlines(live)  # when their answers are wanted
        self._live = live

    def add_shelf(self, size: int) -> Shelf:
        shelf = self.shelves[size] = Shelf(size, self)
        return shelf

    def oldest(self) -> Item | None:
        arrivals, live = self.arrivals, self._live
        while arrivals and arrivals[0].id not in live:
            arrivals.popleft()
        return arrivals[0] if arrivals else None

    def first(self, shares: Shares[Account]) -> tuple[Slot, Item, Shelf] | None:
        """The slot whose turn it is, its item, and its shelf."""
        best: tuple[Slot, Item, Shelf] | None = None
        live = self._live
        for shelf in self.shelves.values():
            slot = shelf.slots[0]
            if best is not None and best[0] < slot:
                continue
            found = shelf.first(shares, live)
            if found is not None and (best is None or found[0] < best[0]):
                best = (*found, shelf)
        return best

    def take_each(self, shelves: Sequence[Shelf], most: int, shares: Shares[Account]) -> list[Item]:
        """From one shelf; or all that there are, in no order."""
        live = self._live
        virtual = min(shelf.slots[0][2] for shelf in shelves)
        virtual = max(shares.virtual, virtual)  # it moves on to the first of all, not further
        taken: list[Item] = []
        for shelf in shelves:
            if most >= shelf.rows:
                taken += shelf.drain(shares, live)
            elif shelf.rows == shelf.items:
                taken += shelf.take_singles(most, shares, live)
            else:
                taken += shelf.take(most, shares, live)
        shares.virtual = virtual
        return taken

    def take_merged(
        self, shelves: Sequence[Shelf], most: int, shares: Shares[Account]
    ) -> list[Item]:
        """In the order of slots, from several shelves."""
        live = self._live
        heads: list[tuple[Slot, Item, Shelf]] = []
        for shelf in shelves:
            found = shelf.first(shares, live)
            if found is not None:
                heads.append((*found, shelf))
        heapq.heapify(heads)
        taken: list[Item] = []
        rows, virtual = 0, max(shares.virtual, heads[0][0][2])
        while heads and rows < most:
            _, item, shelf = heads[0]
            if item.rows > most - rows:
                break
            taken += shelf.take(item.rows, shares, live)
            rows += item.rows
            found = shelf.first(shares, live)
            if found is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (*found, shelf))
        shares.virtual = virtual
        return taken

    def tidy(self, shelves: Iterable[Shelf], shares: Shares[Account]) -> None:
        """Some have left these shelves: clear away what they left behind, where it is much."""
        for shelf in shelves:
            if len(shelf.slots) > 2 * shelf.items + SLACK or (shelf.slots and not shelf.items):
                shelf.compact(shares, self._live)
            if not shelf.items:
                self.shelves.pop(shelf.size, None)
        if len(self.arrivals) > 2 * self.items + SLACK:
            live = self._live
            self.arrivals = deque([each for each in self.arrivals if each.id in live])

    def clear(self) -> None:
        """No item is here: drop the traces."""
        self.arrivals.clear()
        self.due.clear()
        self.shelves.clear()


class FairLane:
    """The items of one partition, or of one bucket of it. Only these may share a batch."""

    __slots__ = ("items", "lines", "partition", "rows", "size_rows")

    def __init__(self, partition: Hashable, live: dict[int, Item]) -> None:
        self.partition = partition
        self.items = 0
        self.rows = 0
        self.size_rows = 0
        self.lines = tuple(Line(self, priority, live) for priority in Priority)

    @property
    def mean_size(self) -> int:
        return self.size_rows // self.rows if self.size_rows else 0

    @property
    def top(self) -> Line:
        """The line of the highest class that waits."""
        return next(line for line in self.lines if line.items)

    @property
    def priority(self) -> Priority:
        return self.top.priority

    def oldest(self) -> Item | None:
        waiting = [line.oldest() for line in self.lines if line.items]
        return min(filter(None, waiting), key=_age, default=None)


def _age(item: Item) -> tuple[float, int]:
    return item.arrived_at, item.id
