"""Waiting items, and which is next: classes, tenants, partitions, deadlines, cancellation.

Three rules give the order. *Classes* are strict, except for the share that `priority.Ageing` grants
a lower class that would starve. Within a class, *tenants* share by weight (`fairness`). Within a
tenant, first come first served, or shortest first with a bounded number of overtakings.

The queue owns its state: others read its figures, and change it only by calling it. Taking items
out of a line is one step that leaves every figure right.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from headway.core.items import Item, Priority, key_of, kind_of
from headway.core.policy import Order
from headway.core.queueing.classes import PriorityClass
from headway.core.queueing.deadlines import Deadlines
from headway.core.queueing.lanes import OVERTAKE_ROWS, FairLane, Lane, Line, PlainLane, arrival_of
from headway.core.queueing.priority import Ageing
from headway.core.queueing.ranking import LaneRanking
from headway.core.queueing.shelves import Shelf

# Up to this many waiting rows, the item due first goes first. In a longer queue, that order would
# only choose which items are late, and keep most items until their last moment.
HURRIED_ROWS: Final = 16

__all__ = ["FairLane", "Lane", "Line", "PlainLane", "Queue", "Shelf"]


class Queue:
    """All waiting items. Bounded by its owner; ordered as the module says."""

    def __init__(
        self,
        *,
        order: Order,
        weights: Mapping[str, float],
        full_rows: int,
        ageing_s: float,
        may_be_plain: bool = True,
        shelf_of: Callable[[int], int] | None = None,
    ) -> None:
        """`shelf_of`: from an item's size to its class of sizes; None: sizes do not matter."""
        self.items = 0
        self.rows = 0
        self.is_overflowing = False  # an item was refused because the queue is full
        self.lanes: Mapping[Hashable, Lane] = {}
        self.full_lanes: dict[Hashable, Lane] = {}  # the lanes with enough rows for a full batch
        self.ageing = Ageing(ageing_s, len(Priority))
        self._shortest_first = order is Order.SHORTEST
        self._shelf_of = shelf_of
        self._full_rows = full_rows
        self._live: dict[int, Item] = {}  # waiting items, by id, unless the queue is plain
        self._classes = tuple(PriorityClass(priority, weights) for priority in Priority)
        self._ranking = LaneRanking(self.ageing)
        self._fair_lanes = self._ranking.lanes
        self._expiry = Deadlines(self._live)
        self._mean_size = 0.0
        self._may_be_plain = may_be_plain and order is Order.FIFO
        self._plain = PlainLane()
        self._is_plain = True

    def __len__(self) -> int:
        return self.items

    def __iter__(self) -> Iterator[Item]:
        yield from self._plain.in_order()
        for lane in self._fair_lanes.values():
            for line in lane.lines:
                yield from (item for item in line.arrivals if item.id in self._live)

    def __contains__(self, item_id: int) -> bool:
        return item_id in self._live or item_id in self._plain.live

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Use these weights of tenants from now on; a tenant that is absent has 1."""
        for class_ in self._classes:
            class_.weigh(weights)

    # ---- arrivals

    def push(self, item: Item, due: float = math.inf) -> None:
        """`due`: the moment by which its caller or the SLO wants the answer."""
        if self._is_plain:
            if self._is_alike(item):
                self.push_alike(item)
                return
            self._tell_apart()
        self._push_in_order(item, due)

    def push_alike(self, item: Item) -> bool:
        """Queue the item if it is like all waiting items. False: call `push` instead."""
        plain = self._plain
        if kind_of(item) != plain.kind:
            return False
        item_id, live = item.id, plain.live
        assert item_id not in live, f"item {item_id} is queued; an id is used once"
        live[item_id] = item
        plain.arrivals.append(item)
        self.items += 1
        self.rows += 1
        if self.rows == self._full_rows:
            self.full_lanes[plain.partition] = plain
        return True

    def push_many_alike(self, items: Sequence[Item]) -> bool:
        """`push_alike` for several items that differ only in id and time."""
        plain = self._plain
        if kind_of(items[0]) != plain.kind:
            return False
        plain.push_many(items)
        self.items += len(items)
        self.rows += len(items)
        if self.rows >= self._full_rows:
            self.full_lanes[plain.partition] = plain
        return True

    def _is_alike(self, item: Item) -> bool:
        """May the item join a plain queue, or start one?"""
        plain = self._plain
        if plain.live or not self._may_be_plain:
            return bool(plain.kind) and kind_of(item) == plain.kind
        if not plain.start(item):
            return False
        self.lanes = {item.partition: plain}
        return True

    def _tell_apart(self) -> None:
        """An item differs: move the waiting items to fair lanes, as if they had just arrived."""
        waiting = list(self._plain.in_order())
        self._is_plain = False
        self._plain.clear()
        self.items = self.rows = 0
        self.full_lanes.clear()
        self.lanes = self._fair_lanes
        for item in waiting:
            self._push_in_order(item, math.inf)

    def _push_in_order(self, item: Item, due: float) -> None:
        item_id, size = item.id, item.size
        assert item_id not in self._live, f"item {item_id} is queued; an id is used once"
        partition = item.lane if item.bucket else item.partition
        lane = self._fair_lanes.get(partition)
        if lane is None:
            lane = self._fair_lanes[partition] = FairLane(partition, self._classes, self._live)
        self._live[key_of(item)] = item
        shelf_size = self._shelf_of(size) if size and self._shelf_of is not None else 0
        penalty = self._long_penalty(size) if self._shortest_first else 0.0
        lane.lines[item.priority].push(item, shelf_size, due, penalty)
        self.items += 1
        self.rows += item.rows
        if item.deadline != math.inf:
            self._expiry.add(item.deadline, item_id)
        if lane.rows >= self._full_rows:
            self.full_lanes[partition] = lane
        if len(self._fair_lanes) > 1:
            self._ranking.grew(lane)

    def _long_penalty(self, size: int) -> float:
        self._mean_size += (size - self._mean_size) * 0.01 if self._mean_size else size
        return OVERTAKE_ROWS * size / self._mean_size if self._mean_size else 0.0

    # ---- departures

    def take_alike(self, lane: PlainLane, most: int) -> list[Item]:
        """Take the `most` oldest items of a plain queue, or all that it has."""
        taken = lane.take(min(most, lane.items))
        self._count_out_plain(len(taken))
        return taken

    def take(self, line: Line, most: int, shelves: list[Shelf] | None = None) -> list[Item]:
        """Take up to `most` rows of the line to run, in order, until an item does not fit.

        `shelves`: take only from these.
        """
        if most <= 0:
            return []
        before = line.rows
        taken = line.take(most, shelves)
        if taken:
            self._count_out(line.lane, len(taken), before - line.rows)
        return taken

    def take_while(self, line: Line, fits: Callable[[Item], bool]) -> list[Item]:
        """Take items to run, in order, as long as the next one fits."""
        before = line.rows
        taken = line.take_while(fits)
        if taken:
            self._count_out(line.lane, len(taken), before - line.rows)
        return taken

    def take_one(self, item: Item) -> None:
        """Take an item to run out of turn; its tenant is charged as if it had waited."""
        self._remove(item, ran=True)

    def pay_back(self, item: Item) -> None:
        """Undo the charge of an item that was taken to run and will not."""
        self._classes[item.priority].pay_back(item)

    def remove(self, item_id: int) -> Item | None:
        """Take an item out that will not run. None: it is not queued (any more)."""
        item = self._live.get(item_id)
        if item is not None:
            self._remove(item, ran=False)
        elif self._is_plain:
            item = self._plain.remove(item_id)
            if item is not None:
                self._count_out_plain(1)
        return item

    def _remove(self, item: Item, *, ran: bool) -> None:
        del self._live[key_of(item)]
        lane = self._fair_lanes[item.lane]
        lane.lines[item.priority].remove(item, self.shelf_of(item), ran=ran)
        self._count_out(lane, 1, item.rows)

    def _count_out_plain(self, rows: int) -> None:
        self.items -= rows
        self.rows -= rows
        self.is_overflowing = False
        if self.full_lanes and self.rows < self._full_rows:
            self.full_lanes.clear()

    def _count_out(self, lane: FairLane, items: int, rows: int) -> None:
        self.items -= items
        self.rows -= rows
        self.is_overflowing = False
        if self.full_lanes and lane.rows < self._full_rows:
            self.full_lanes.pop(lane.partition, None)
        if not lane.items:
            del self._fair_lanes[lane.partition]
            for each in lane.lines:
                each.clear()
            if not self._live:
                self._start_afresh()

    def _start_afresh(self) -> None:
        """The queue is empty: forget charges and classes."""
        self._is_plain = True
        self.lanes = {}
        self._expiry.clear()
        self._ranking.clear()
        for class_ in self._classes:
            class_.forget()

    # ---- deadlines

    @property
    def has_deadlines(self) -> bool:
        return bool(self._expiry)

    def next_deadline(self) -> float:
        return self._expiry.next_at()

    def earliest_deadline(self) -> Item | None:
        item_id = self._expiry.first()
        return None if item_id is None else self._live[item_id]

    def has_expired(self, now: float) -> bool:
        """Has the deadline of any item passed?"""
        expiry = self._expiry
        return expiry.not_before() <= now and expiry.next_at() <= now

    def pop_expired(self, now: float, most: int) -> list[Item]:
        """Take out up to `most` items with a deadline that has passed."""
        expired: list[Item] = []
        while len(expired) < most and self._expiry.next_at() <= now:
            expired.append(self._live[self._expiry.pop()])
            self._remove(expired[-1], ran=False)
        return expired

    @property
    def hurries(self) -> bool:
        """Is the queue so short that deadlines decide the order?"""
        return self.rows <= HURRIED_ROWS

    # ---- questions

    @property
    def has_one_class(self) -> bool:
        """Are all waiting items of one class?"""
        rows = self.rows
        high, normal, low = self._classes
        return normal.rows == rows or high.rows == rows or low.rows == rows

    def shelf_of(self, item: Item) -> int:
        """The class of sizes that the item is kept under; 0 if it has none."""
        return self._shelf_of(item.size) if item.size and self._shelf_of is not None else 0

    def lead(self, now: float, *, aged_turn: bool) -> Lane | None:
        """The lane with the next item; with `aged_turn`, the lane of the longest waiting item."""
        if self._is_plain:
            return self._plain if self._plain.live else None
        return self._ranking.lead(aged_turn=aged_turn)

    def oldest_lane(self) -> Lane | None:
        if self._is_plain:
            return self._plain if self._plain.live else None
        return self._ranking.lead(aged_turn=True)

    def oldest_full_lane(self) -> Lane | None:
        """The lane of the longest waiting item, among lanes with enough rows for a full batch."""
        waiting = [(item, lane) for lane in self.full_lanes.values() if (item := lane.oldest())]
        return min(waiting, key=lambda each: arrival_of(each[0]))[1] if waiting else None

    def has_aged(self, now: float) -> bool:
        """Is it the turn of an item that has waited so long that its class does not count?"""
        return not (self._is_plain or self.has_one_class) and self._ranking.has_aged(now)

    def aged_line(self, lane: FairLane, now: float) -> Line | None:
        """The line of a lower class that goes first because it waited long; None: no such line."""
        return None if self.has_one_class else self._ranking.aged_line(lane, now)

    def rows_ahead(self, item: Item) -> float:
        """How many rows a new item must expect to leave before it."""
        if self._is_plain:
            if not self._plain.live or kind_of(item) == self._plain.kind:
                return self.rows
            self._tell_apart()
        class_, above = self._classes[item.priority], 0
        if class_.rows != self.rows:
            above = sum([higher.rows for higher in self._classes[: item.priority]])
        ahead = above + class_.rows
        if item.deadline != math.inf and self.hurries:
            lane = self._fair_lanes.get(item.lane)
            due = lane.lines[item.priority].due.count_before(item.deadline) if lane else 0
            ahead = min(ahead, above + due)
        return (
            ahead if class_.is_unshared(item.tenant) else min(ahead, class_.rows_ahead(item, above))
        )

    # ---- room

    def make_room(self, newcomer: Item, limit: int) -> list[Item]:
        """Push out items with less right to their place than the newcomer, newest first.

        Empty: they would not make enough room, and the newcomer must be refused instead.
        """
        if self._is_plain:
            first = self._plain.oldest()
            if first and newcomer.priority >= first.priority and newcomer.tenant == first.tenant:
                self.is_overflowing = True
                return []  # all items are its equals, or of higher classes
            self._tell_apart()
        needed = self.rows + newcomer.rows - limit
        own, *below = self._classes[newcomer.priority :]
        allowed = own.allowed_load(newcomer)
        victims: list[Item] = []
        if needed == 1 or needed <= own.rows_over(allowed) + sum(each.rows for each in below):
            for class_ in reversed(below):
                victims += self._evict(class_, 0.0, needed - _rows_of(victims))
            victims += self._evict(own, allowed, needed - _rows_of(victims))
        self.is_overflowing = not victims
        return victims

    def make_way(self, newcomer: Item) -> list[Item]:
        """Evict the newcomer's rows from tenants of its class that hold more than their share."""
        class_ = self._classes[newcomer.priority]
        if class_.is_unshared(newcomer.tenant):
            return []
        return self._evict(class_, class_.allowed_load(newcomer), newcomer.rows)

    def _evict(self, class_: PriorityClass, allowed: float, needed: int) -> list[Item]:
        """Remove up to `needed` rows of the class: the newest items of the tenants over `allowed`.

        The tenant that holds most for its weight goes first.
        """
        victims: list[Item] = []
        while needed > 0 and (tenant := class_.most_loaded(allowed)) is not None:
            lines = (lane.lines[class_.priority] for lane in self._fair_lanes.values())
            shelves = (shelf for line in lines for shelf in line.shelves.values())
            newest = (shelf.newest(tenant) for shelf in shelves)
            victim = max((item for item in newest if item is not None), key=arrival_of)
            self._remove(victim, ran=False)
            victims.append(victim)
            needed -= victim.rows
        return victims


def _rows_of(items: Iterable[Item]) -> int:
    return sum(item.rows for item in items)
