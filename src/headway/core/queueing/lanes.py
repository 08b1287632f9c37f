"""The items of one partition, in order. `Queue` is made of lanes; only it changes them.

A lane has a line for each class, a line has a shelf for each class of sizes, and a shelf has a flow
for each tenant, first come first served. Others may read. Only `Queue` adds and removes items,
because it counts them too.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from headway.core.items import Item, Priority, key_of, kind_of
from headway.core.queueing.classes import PriorityClass
from headway.core.queueing.deadlines import Deadlines
from headway.core.queueing.shelves import SLACK, Shelf, Slot
from headway.core.queueing.taking import take_singles

OVERTAKE_ROWS = 64  # shortest first: an item of mean size is overtaken by no more rows than this
_CLEARED: Final = 2  # at most this many entries of left items are cleared when one arrives
_INFINITE: Final = math.inf  # a name that compiled code does not look up each time


class Line:
    """The items of one class in one lane. Tenants share the class across all lanes."""

    __slots__ = (
        "_class",
        "_live",
        "arrivals",
        "by_size",
        "due",
        "items",
        "lane",
        "priority",
        "rows",
        "shelves",
    )

    def __init__(self, lane: "FairLane", class_: PriorityClass, live: dict[int, Item]) -> None:
        self.lane = lane
        self.priority = class_.priority
        self.items = 0
        self.rows = 0
        self.shelves: dict[int, Shelf] = {}  # by size, in the order in which they were added
        self.by_size: list[Shelf] = []  # the same, shortest first
        self.arrivals: deque[Item] = deque()  # some may have left
        self.due = Deadlines(live)  # when their answers are wanted
        self._class = class_
        self._live = live

    def push(self, item: Item, shelf_size: int, due: float, penalty: float) -> None:
        """Add an item that is `live` already. `due`: see `Queue.push`; `penalty`: for its size."""
        shelf = self.shelves.get(shelf_size)
        class_, lane, rows = self._class, self.lane, item.rows
        shares = class_.shares
        if shelf is None:
            shelf = self._add_shelf(shelf_size)
        tenant = shares.accounts.get(item.tenant) or shares.account(item.tenant)
        shelf.push(item, tenant, penalty)
        if class_.is_crowded:
            class_.crowding.grew(tenant.name)
        class_.rows += rows
        self.items += 1
        self.rows += rows
        arrivals = self.arrivals
        arrivals.append(item)
        if len(arrivals) > self.items:  # each new item clears some left ones
            live = self._live
            for _ in range(_CLEARED):
                if key_of(arrivals[0]) in live:
                    break
                arrivals.popleft()
        lane.items += 1
        lane.rows += rows
        if item.size:
            lane.size_rows += rows * item.size
        if due != _INFINITE:
            self.due.add(due, item.id)

    def _add_shelf(self, size: int) -> Shelf:
        shelf = self.shelves[size] = Shelf(size, self._class.shares, self._live)
        place = 0
        for each in self.by_size:
            if each.size > size:
                break
            place += 1
        self.by_size.insert(place, shelf)
        return shelf

    # ---- questions

    def oldest(self) -> Item | None:
        arrivals, live = self.arrivals, self._live
        while arrivals and key_of(arrivals[0]) not in live:
            arrivals.popleft()
        return arrivals[0] if arrivals else None

    def head(self) -> Item:
        """The next item, in order."""
        first, flow = self.by_size[0].slots[0], self.by_size[0].owners[0]
        for shelf in self.by_size:
            if shelf.slots[0] < first:
                first, flow = shelf.slots[0], shelf.owners[0]
        if not flow.has_gaps and flow.first is not None:
            return flow.first
        found = self.first()
        assert found is not None, "the line is empty"
        return found[1]

    def first(self) -> tuple[Slot, Item, Shelf] | None:
        """The next slot, its item, and its shelf."""
        best: tuple[Slot, Item, Shelf] | None = None
        for shelf in self.shelves.values():
            slot = shelf.slots[0]
            if best is not None and best[0] < slot:
                continue
            found = shelf.first()
            if found is not None and (best is None or found[0] < best[0]):
                best = (*found, shelf)
        return best

    def urgent(self, before: float, most: int) -> list[Item]:
        """Up to `most` items that are due before that moment, the earliest first. They stay queued.

        Items of a tenant with a long backlog are left out: they have no claim to go before others.
        """
        found: list[Item] = []
        seen: list[tuple[float, int]] = []
        due, live, shares = self.due, self._live, self._class.shares
        while len(seen) < most and (moment := due.next_at()) < before:
            item = live[due.pop()]
            seen.append((moment, item.id))
            tenant = shares.accounts[item.tenant]
            if len(shares.accounts) == 1 or tenant.finish - shares.virtual <= OVERTAKE_ROWS:
                found.append(item)
        for moment, item_id in seen:
            due.add(moment, item_id)
        return found

    # ---- departures

    def take(self, most: int, shelves: list[Shelf] | None = None) -> list[Item]:
        """Take up to `most` rows, in order, until an item does not fit. `shelves`: only these."""
        chosen = list(self.shelves.values()) if shelves is None else shelves
        rows = self.rows
        is_single = rows == self.items
        if not is_single:
            rows = sum([shelf.rows for shelf in chosen])
            is_single = rows == sum([shelf.items for shelf in chosen])
        if is_single:
            taken = take_singles(chosen, most, self._class.shares, self._live)
        elif len(chosen) == 1 or rows <= most:
            taken = self._take_each(chosen, most)
        else:
            taken = self._take_merged(chosen, most)
        if taken:
            self._count_out(taken, chosen)
        return taken

    def take_while(self, fits: Callable[[Item], bool]) -> list[Item]:
        """Take items in order, as long as the next one fits."""
        taken: list[Item] = []
        touched: dict[int, Shelf] = {}
        while (found := self.first()) is not None and fits(found[1]):
            _, item, shelf = found
            taken += shelf.take(item.rows)
            touched[shelf.size] = shelf
            if not shelf.items:
                shelf.compact()
                self._remove_empty([shelf])
        if taken:
            self._count_out(taken, [shelf for shelf in touched.values() if shelf.items])
        return taken

    def remove(self, item: Item, shelf_size: int, *, ran: bool) -> None:
        """Remove an item out of turn, to run or not. It is not `live` any more."""
        shelf = self.shelves[shelf_size]
        shelf.remove(item, ran=ran)
        self._count_out([item], [shelf])

    def _take_each(self, shelves: list[Shelf], most: int) -> list[Item]:
        """Take rows of one shelf in order, or all rows of several in no order."""
        shares = self._class.shares
        virtual = min(shelf.slots[0][2] for shelf in shelves)
        virtual = max(shares.virtual, virtual)  # virtual time advances to the first slot only
        taken: list[Item] = []
        for shelf in shelves:
            taken += shelf.take(most)
        shares.virtual = virtual
        return taken

    def _take_merged(self, shelves: list[Shelf], most: int) -> list[Item]:
        """Take rows of several shelves, in the order of their slots."""
        shares = self._class.shares
        heads: list[tuple[Slot, Item, Shelf]] = []
        for shelf in shelves:
            found = shelf.first()
            if found is not None:
                heads.append((*found, shelf))
        heapq.heapify(heads)
        taken: list[Item] = []
        rows, virtual = 0, max(shares.virtual, heads[0][0][2])
        while heads and rows < most:
            _, item, shelf = heads[0]
            if item.rows > most - rows:
                break
            taken += shelf.take(item.rows)
            rows += item.rows
            found = shelf.first()
            if found is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (*found, shelf))
        shares.virtual = virtual
        return taken

    def _count_out(self, taken: list[Item], shelves: list[Shelf]) -> None:
        """Items have left these shelves: update the counts, and clean up."""
        lane, rows, size_rows = self.lane, len(taken), 0
        if lane.rows != lane.items:
            rows = sum([item.rows for item in taken])
            size_rows = sum([item.rows * item.size for item in taken])
        elif lane.size_rows:
            for item in taken:
                size_rows += item.size
        lane.size_rows -= size_rows
        self._class.rows -= rows
        self.rows -= rows
        self.items -= len(taken)
        lane.rows -= rows
        lane.items -= len(taken)
        self._clear_away(shelves)
        if len(self.arrivals) > 2 * (self.items + SLACK):
            live = self._live
            self.arrivals = deque([each for each in self.arrivals if key_of(each) in live])

    def _clear_away(self, shelves: list[Shelf]) -> None:
        """Remove empty shelves, and clear the slots of left callers on the others."""
        empty: list[Shelf] = []
        for shelf in shelves:
            items = shelf.items
            shelf.is_crowded = is_crowded = len(shelf.flows) > items + SLACK
            if is_crowded or len(shelf.slots) > items:
                shelf.forget()
            if not items:
                empty.append(shelf)
        if empty:
            self._remove_empty(empty)

    def _remove_empty(self, shelves: list[Shelf]) -> None:
        for shelf in shelves:
            del self.shelves[shelf.size]
        self.by_size = [shelf for shelf in self.by_size if shelf.items]

    def clear(self) -> None:
        """The line is empty: drop all slots and left items."""
        self.arrivals.clear()
        self.due.clear()
        self.shelves.clear()
        self.by_size.clear()


class FairLane:
    """The items of one partition, or of one bucket of it. Only these may share a batch."""

    __slots__ = ("_live", "items", "lines", "partition", "rows", "size_rows")

    def __init__(
        self, partition: Hashable, classes: Iterable[PriorityClass], live: dict[int, Item]
    ) -> None:
        """`live`: all waiting items of the queue, by id."""
        self.partition = partition
        self.items = 0
        self.rows = 0
        self.size_rows = 0  # the sum of rows × size: the cost without padding
        self.lines = tuple(Line(self, class_, live) for class_ in classes)
        self._live = live

    @property
    def mean_size(self) -> int:
        return self.size_rows // self.rows if self.size_rows else 0

    @property
    def top(self) -> Line:
        """The line of the highest class with a waiting item."""
        for line in self.lines:
            if line.items:
                return line
        raise AssertionError("the lane is empty")

    @property
    def priority(self) -> Priority:
        """The highest class with a waiting item."""
        return self.top.priority

    def oldest(self) -> Item | None:
        waiting = [line.oldest() for line in self.lines if line.items]
        return min(filter(None, waiting), key=arrival_of, default=None)

    def next_due(self, before: float) -> Item | None:
        """An item that is due before that moment, and was not returned before."""
        for line in self.lines:
            due = line.due
            if line.items and due.not_before() < before and due.next_at() < before:
                return self._live[due.pop()]
        return None


def arrival_of(item: Item) -> tuple[float, int]:
    return item.arrived_at, item.id


class PlainLane:
    """Items that differ only in id and time, in one deque.

    Most queues are of this kind, most of the time.
    """

    __slots__ = ("arrivals", "kind", "live", "partition", "priority", "size_rows")

    def __init__(self) -> None:
        self.kind: Sequence[object] = ()  # common to all items; empty: the queue is closed
        self.partition: Hashable = None
        self.priority = Priority.NORMAL
        self.size_rows = 0
        self.live: dict[int, Item] = {}
        self.arrivals: deque[Item] = deque()  # some may have left

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
        arrivals, live = self.arrivals, self.live
        while arrivals and arrivals[0].id not in live:
            arrivals.popleft()
        return arrivals[0] if arrivals else None

    def start(self, item: Item) -> bool:
        """Prepare the empty queue for items like this one. False: they need fair lanes."""
        if item.rows != 1 or item.size or item.deadline != math.inf:
            return False
        self.kind = kind_of(item)
        self.partition, self.priority = item.partition, item.priority
        return True

    def push_many(self, items: Sequence[Item]) -> None:
        self.live.update({item.id: item for item in items})
        self.arrivals.extend(items)

    def take(self, most: int) -> list[Item]:
        """Take the `most` oldest items; there are enough."""
        arrivals, live = self.arrivals, self.live
        if most == len(arrivals) == len(live):
            taken = list(arrivals)
            live.clear()
        elif len(arrivals) == len(live):  # no item has left
            taken = list(map(deque.popleft, itertools.repeat(arrivals, most)))
            for item in taken:
                del live[item.id]
        else:
            taken = list(itertools.islice(self.in_order(), most))
            for item in taken:
                del live[item.id]
            self.oldest()  # clears entries of left items
        if not live:
            arrivals.clear()
        return taken

    def remove(self, item_id: int) -> Item | None:
        item = self.live.pop(item_id, None)
        if not self.live:
            self.arrivals.clear()
        elif len(self.arrivals) > 2 * len(self.live) + SLACK:
            self.arrivals = deque(self.in_order())
        return item

    def in_order(self) -> Iterator[Item]:
        return (item for item in self.arrivals if item.id in self.live)

    def clear(self) -> None:
        self.kind = ()
        self.live.clear()
        self.arrivals.clear()


# Items that may share a batch, as the rules for firing see them.
Lane: TypeAlias = FairLane | PlainLane
