"""The items of one partition, in order: what `Queue` is made of, and nobody else changes.

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
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Protocol, TypeAlias

from headway.core.items import Item, Priority
from headway.core.queueing.deadlines import Deadlines
from headway.core.queueing.fairness import Account, Shares

SLACK = 64  # traces of the departed that are tolerated


class Lane(Protocol):
    """Those who may share a batch, as the rules for firing see them."""

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
# The key is the tag, plus a penalty for being long live the shortest go first.
Slot: TypeAlias = tuple[float, int, float, int, Flow]


class Shelf:
    """The items of one class of sizes."""

    __slots__ = ("flows", "items", "largest", "line", "rows", "size", "slots")

    def __init__(self, size: int, line: "Line") -> None:
        self.size = size  # up to this
        self.largest = 0  # of those who came
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
        """The slot whose turn it is, and whom it serves. Slots that serve nobody are cleared away."""
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
        """As `take`, live all items are of one row: the way that most go, so it is unrolled."""
        slots, flows, pop = self.slots, self.flows, live.pop
        shares.advance(slots[0][2])
        if len(flows) == 1 and len(slots) == self.items:
            return self._take_alike(most, shares, live)
        taken: list[Item] = []
        used, emptied = 0, 0.0
        for slot in slots:
            flow = slot[4]
            items = flow.items
            used += 1
            if flow.gone or flow.spent:
                if flow.spent or _oldest(flow, live) is None:
                    self._clear(slot, shares)
                    continue
            elif not items:
                self._clear(slot, shares)
                continue
            item = items.popleft()
            pop(item.id)
            taken.append(item)
            tenant = flow.tenant
            tenant.held -= 1
            if not items and not flow.unused:
                del flows[tenant.name]
                if not tenant.held:
                    emptied += tenant.weight
            if len(taken) == most:
                break
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
        for flow in self.flows.values():
            items, tenant = flow.items, flow.tenant
            if flow.gone:
                _clean(flow, live)
                items = flow.items
            taken += items
            tenant.held -= len(items)
            if not tenant.held:
                shares.emptied(tenant)
        for item in taken:
            del live[item.id]
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
        taken = [items.popleft() for _ in range(most)]
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
        """Clear away the slots that will serve nobody."""
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

    def oldest(self) -> Item | None:
        arrivals, live = self.arrivals, self._live
        while arrivals and arrivals[0].id not in live:
            arrivals.popleft()
        return arrivals[0] if arrivals else None

    def first(self, shares: Shares[Account]) -> tuple[Slot, Item, Shelf] | None:
        """The slot whose turn it is, whom it serves, and on which shelf."""
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

    def compact(self) -> None:
        if len(self.arrivals) > 2 * self.items + SLACK:
            self.arrivals = deque(each for each in self.arrivals if each.id in self._live)

    def clear(self) -> None:
        """Nobody is here: drop the traces."""
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


class PlainLane:
    """Items that differ in nothing but id and time: one deque, and nobody to be told apart.

    Most queues are this, most of the time.
    """

    __slots__ = ("_arrivals", "kind", "live", "partition", "priority", "size_rows")

    def __init__(self) -> None:
        self.kind: Sequence[object] = ()  # what all of them have in common; empty: nobody may come
        self.partition: Hashable = None
        self.priority = Priority.NORMAL
        self.size_rows = 0
        self.live: dict[int, Item] = {}
        self._arrivals: deque[Item] = deque()  # some may have left

    @property
    def items(self) -> int:
        return len(self.live)

    @property
    def rows(self) -> int:
        return len(self.live)

    @property
    def mean_size(self) -> int:
        return 0

    def oldest(self) -> Item | None:
        arrivals, live = self._arrivals, self.live
        while arrivals and arrivals[0].id not in live:
            arrivals.popleft()
        return arrivals[0] if arrivals else None

    def push(self, item: Item) -> None:
        item_id = item.id
        assert item_id not in self.live, f"item {item_id} is queued; an id is used once"
        self.live[item_id] = item
        self._arrivals.append(item)

    def push_many(self, items: Sequence[Item]) -> None:
        self.live.update({item.id: item for item in items})
        self._arrivals.extend(items)

    def take(self, most: int) -> list[Item]:
        pop, live = self._arrivals.popleft, self.live
        taken: list[Item] = []
        while len(taken) < most:
            item = pop()
            if live.pop(item.id, None) is not None:
                taken.append(item)
        if not live:
            self._arrivals.clear()
        return taken

    def remove(self, item_id: int) -> Item | None:
        item = self.live.pop(item_id, None)
        if not self.live:
            self._arrivals.clear()
        elif len(self._arrivals) > 2 * len(self.live) + SLACK:
            self._arrivals = deque(self.in_order())
        return item

    def in_order(self) -> Iterator[Item]:
        return (item for item in self._arrivals if item.id in self.live)

    def clear(self) -> None:
        self.kind = ()
        self.live.clear()
        self._arrivals.clear()


class LaneHeap:
    """Finds the lane that comes first by some rank, when there are many.

    Ranks are noted when a lane may have moved up and checked when it surfaces.
    """

    def __init__(self, rank: Callable[[FairLane], tuple[float, ...] | None]) -> None:
        self._rank = rank
        self._heap: list[tuple[tuple[float, ...], int, FairLane]] = []
        self._sequence = 0

    def note(self, lane: FairLane, lanes: dict[Hashable, FairLane]) -> None:
        if len(self._heap) > 4 * len(lanes) + SLACK:
            self._heap.clear()
            for each in lanes.values():
                self._push(each)
        else:
            self._push(lane)

    def _push(self, lane: FairLane) -> None:
        rank = self._rank(lane)
        if rank is not None:
            self._sequence += 1
            heapq.heappush(self._heap, (rank, self._sequence, lane))

    def clear(self) -> None:
        self._heap.clear()

    def first(self, lanes: dict[Hashable, FairLane]) -> FairLane | None:
        heap = self._heap
        while heap:
            rank, _, lane = heap[0]
            current = self._rank(lane)
            if current == rank and lanes.get(lane.partition) is lane:
                return lane
            heapq.heappop(heap)
            if current is not None and lanes.get(lane.partition) is lane:
                self._sequence += 1
                heapq.heappush(heap, (current, self._sequence, lane))
        return None


def _age(item: Item) -> tuple[float, int]:
    return item.arrived_at, item.id
