"""Waiting items, and which is next: classes, tenants, partitions, deadlines, cancellation.

Three rules give the order. *Classes* are strict, except for what `priority.Ageing` grants a lower
one that would starve. Within a class, *tenants* share by weight (`fairness`). Within a tenant,
first come first served, or shortest first with a bounded number of overtakings.

The queue owns its state: others read its figures, and change it only by calling it. Taking items
out of a line is one step that leaves every figure right.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, mul

from headway.core.items import Item, Priority, kind_of
from headway.core.policy import Order
from headway.core.queueing.crowding import Crowding
from headway.core.queueing.deadlines import Deadlines
from headway.core.queueing.fairness import Account, Shares
from headway.core.queueing.lanes import (
    FairLane,
    Lane,
    Line,
    Shelf,
)
from headway.core.queueing.plain import PlainLane
from headway.core.queueing.priority import Ageing
from headway.core.queueing.ranking import LaneHeap

# With no more waiting rows than these, the item due first goes first. In a longer queue that would
# only choose which items are late, and fill it with items that are answered at the last moment.
HURRIED_ROWS = 16
_rows, _size = attrgetter("rows"), attrgetter("size")
OVERTAKE_ROWS = 64  # shortest first: an item of mean size is overtaken by no more rows than this

__all__ = ["OVERTAKE_ROWS", "FairLane", "Lane", "Line", "PlainLane", "Queue"]


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
        """`shelf_of`: the class of sizes an item is kept under; None: they are not told apart."""
        self.items = 0
        self.rows = 0
        self.is_overflowing = False  # somebody was refused for want of room
        self.lanes: Mapping[Hashable, Lane] = {}
        self.full_lanes: dict[Hashable, Lane] = {}  # those with a batch's worth of rows
        self.ageing = Ageing(ageing_s, len(Priority))
        self._shortest_first = order is Order.SHORTEST
        self._shelf_of = shelf_of
        self._full_rows = full_rows
        self._live: dict[int, Item] = {}  # waiting items, by id, unless the queue is plain
        self._fair_lanes: dict[Hashable, FairLane] = {}
        self._shares = tuple(Shares(weights, Account) for _ in Priority)
        self._crowding = tuple(Crowding(shares) for shares in self._shares)
        self._is_crowded = False  # somebody may have been pushed out lately
        self._class_rows = [0 for _ in Priority]
        self._by_urgency = LaneHeap(self._urgency)
        self._by_age = LaneHeap(_age)
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
        """Tenants share by these from now on; absent: 1."""
        for shares in self._shares:
            shares.weigh(weights)

    # ---- coming

    def push(self, item: Item, due: float = math.inf) -> None:
        """`due`: when its answer is wanted, by its caller or by the SLO."""
        if self._is_plain:
            if self._is_alike(item):
                self.push_alike(item)
                return
            self._tell_apart()
        self._push_in_order(item, due)

    def push_alike(self, item: Item) -> bool:
        """Queue the item if it is like all waiting ones; False: it must be looked at."""
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
        """As `push_alike`, of several that differ from each other in nothing but id and time."""
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
        """May it join a plain queue, or start one?"""
        plain = self._plain
        if plain.live or not self._may_be_plain:
            return bool(plain.kind) and kind_of(item) == plain.kind
        if item.rows != 1 or item.size or item.deadline != math.inf or item.request is not None:
            return False
        plain.kind = kind_of(item)
        plain.partition, plain.priority = item.partition, item.priority
        self.lanes = {item.partition: plain}
        return True

    def _tell_apart(self) -> None:
        """An item differs: put the waiting ones in order, as if they came just now."""
        waiting = list(self._plain.in_order())
        self._is_plain = False
        self._plain.clear()
        self.items = self.rows = 0
        self.full_lanes.clear()
        self.lanes = self._fair_lanes
        for item in waiting:
            self._push_in_order(item, math.inf)

    def _push_in_order(self, item: Item, due: float) -> None:
        item_id, rows, size, priority = item.id, item.rows, item.size, item.priority
        assert item_id not in self._live, f"item {item_id} is queued; an id is used once"
        partition = item.lane if item.bucket else item.partition
        lane = self._fair_lanes.get(partition)
        if lane is None:
            lane = self._fair_lanes[partition] = FairLane(partition, self._live)
        line = lane.lines[priority]
        shelf_size = self.shelf_of(item) if size else 0
        shelf = line.shelves.get(shelf_size) or line.add_shelf(shelf_size)
        shares = self._shares[priority]
        tenant = shares.accounts.get(item.tenant) or shares.account(item.tenant)
        penalty = self._long_penalty(size) if self._shortest_first else 0.0
        shelf.push(item, tenant, shares, penalty)
        self._live[item_id] = item
        if self._is_crowded:
            self._crowding[priority].grew(tenant.name)
        self.items += 1
        self.rows += rows
        self._class_rows[priority] += rows
        line.items += 1
        line.rows += rows
        line.arrivals.append(item)
        lane.items += 1
        lane.rows += rows
        if size:
            lane.size_rows += rows * size
        if due != math.inf:
            line.due.add(due, item_id)
            if item.deadline != math.inf:
                self._expiry.add(item.deadline, item_id)
        if lane.rows >= self._full_rows:
            self.full_lanes[partition] = lane
        if len(self._fair_lanes) > 1:
            self._note_lanes(lane)

    def _note_lanes(self, lane: FairLane) -> None:
        lanes = self._fair_lanes
        if len(lanes) == 2:  # a second partition: from now on the heaps are needed
            for each in lanes.values():
                self._by_urgency.note(each, lanes)
                self._by_age.note(each, lanes)
            return
        self._by_urgency.note(lane, lanes)
        if lane.items == 1:
            self._by_age.note(lane, lanes)

    def _long_penalty(self, size: int) -> float:
        self._mean_size += (size - self._mean_size) * 0.01 if self._mean_size else size
        return OVERTAKE_ROWS * size / self._mean_size if self._mean_size else 0.0

    # ---- going

    def take_alike(self, lane: PlainLane, most: int) -> list[Item]:
        """The oldest so many of a plain queue."""
        taken = lane.take(min(most, lane.items))
        self._count_out_plain(len(taken))
        return taken

    def take(self, line: Line, most: int, shelves: Iterable[int] | None = None) -> list[Item]:
        """Up to so many rows of the line, in order, to run; the first that does not fit stops.

        `shelves`: only of these.
        """
        if most <= 0:
            return []
        held, shares = line.shelves, self._shares[line.priority]
        chosen = list(held.values()) if shelves is None else [held[size] for size in shelves]
        if len(chosen) == 1 or sum(shelf.rows for shelf in chosen) <= most:
            taken = line.take_each(chosen, most, shares)
        else:
            taken = line.take_merged(chosen, most, shares)
        if taken:
            self._count_out(line, taken, chosen)
        return taken

    def take_while(self, line: Line, fits: Callable[[Item], bool]) -> list[Item]:
        """In order, one by one, as long as the next one fits: to run."""
        shares, live = self._shares[line.priority], self._live
        taken: list[Item] = []
        touched: dict[int, Shelf] = {}
        while (found := line.first(shares)) is not None and fits(found[1]):
            _, item, shelf = found
            taken += shelf.take(item.rows, shares, live)
            touched[shelf.size] = shelf
            if not shelf.items:
                shelf.compact(shares, live)
                del line.shelves[shelf.size]
        if taken:
            self._count_out(line, taken, touched.values())
        return taken

    def take_one(self, item: Item) -> None:
        """Out of turn, to run: its tenant pays for it as if it had waited for its turn."""
        self._remove(item, ran=True)

    def pay_back(self, item: Item) -> None:
        """It was taken to run, and will not."""
        shares = self._shares[item.priority]
        if item.tenant in shares.accounts:
            shares.charge(shares.accounts[item.tenant], -item.rows)

    def remove(self, item_id: int) -> Item | None:
        """Take an item out, not to run. None: it is not queued (any more)."""
        item = self._live.get(item_id)
        if item is not None:
            self._remove(item, ran=False)
        elif self._is_plain:
            item = self._plain.remove(item_id)
            if item is not None:
                self._count_out_plain(1)
        return item

    def _remove(self, item: Item, *, ran: bool) -> None:
        del self._live[item.id]
        line = self._fair_lanes[item.lane].lines[item.priority]
        shelf = line.shelves[self.shelf_of(item)]
        shelf.remove(item, self._shares[item.priority], self._live, ran=ran)
        self._count_out(line, (item,), (shelf,))

    def _count_out_plain(self, rows: int) -> None:
        self.items -= rows
        self.rows -= rows
        self.is_overflowing = False
        if self.full_lanes and self.rows < self._full_rows:
            self.full_lanes.clear()

    def _count_out(self, line: Line, taken: Sequence[Item], shelves: Iterable[Shelf]) -> None:
        lane, rows = line.lane, len(taken)
        if lane.rows != lane.items:
            rows = sum(map(_rows, taken))
            lane.size_rows -= sum(map(mul, map(_rows, taken), map(_size, taken)))
        elif lane.size_rows:
            lane.size_rows -= sum(map(_size, taken))
        self.items -= len(taken)
        self.rows -= rows
        self._class_rows[line.priority] -= rows
        line.rows -= rows
        line.items -= len(taken)
        lane.rows -= rows
        lane.items -= len(taken)
        line.tidy(shelves, self._shares[line.priority])
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
        """Nobody waits: no debts, no traces, no differences."""
        self._is_plain = True
        self._is_crowded = False
        self.lanes = {}
        self._expiry.clear()
        self._by_urgency.clear()
        self._by_age.clear()
        for shares, crowding in zip(self._shares, self._crowding, strict=True):
            shares.forget()
            crowding.forget()

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
        """Has somebody's deadline passed?"""
        expiry = self._expiry
        return expiry.not_before() <= now and expiry.next_at() <= now

    def pop_expired(self, now: float, most: int) -> list[Item]:
        """Items whose deadline has passed, up to so many."""
        expired: list[Item] = []
        while len(expired) < most and self._expiry.next_at() <= now:
            expired.append(self._live[self._expiry.pop()])
            self._remove(expired[-1], ran=False)
        return expired

    def next_due(self, lane: FairLane, before: float) -> Item | None:
        """An item of the lane that is due before that moment, and has not been named before."""
        for line in lane.lines:
            due = line.due
            if line.items and due.not_before() < before and due.next_at() < before:
                return self._live[line.due.pop()]
        return None

    @property
    def hurries(self) -> bool:
        """Is the queue so short that deadlines decide the order?"""
        return self.rows <= HURRIED_ROWS

    def urgent(self, line: Line, before: float, most: int) -> list[Item]:
        """Items of the line that are due before that moment, the earliest first, left where
        they are. A tenant with a long backlog has no claim to go before others."""
        shares = self._shares[line.priority]
        found: list[Item] = []
        seen: list[tuple[float, int]] = []
        due, live = line.due, self._live
        while len(seen) < most and (moment := due.next_at()) < before:
            item = live[due.pop()]
            seen.append((moment, item.id))
            tenant = shares.accounts[item.tenant]
            if len(shares.accounts) == 1 or tenant.finish - shares.virtual <= OVERTAKE_ROWS:
                found.append(item)
        for moment, item_id in seen:
            due.add(moment, item_id)
        return found

    # ---- questions

    @property
    def has_one_class(self) -> bool:
        """Are all waiting items of one class?"""
        high, normal, _ = self._class_rows
        return self.rows in (high, normal) or not high + normal

    def shelf_of(self, item: Item) -> int:
        """The class of sizes it is kept under."""
        return self._shelf_of(item.size) if item.size and self._shelf_of is not None else 0

    def head(self, line: Line) -> Item:
        """The next of the line, in order."""
        found = line.first(self._shares[line.priority])
        assert found is not None, "nobody is here"
        return found[1]

    def lead(self, now: float, *, aged_turn: bool) -> Lane | None:
        """The lane whose head is due next; on the turn of the aged, that of the longest waiting."""
        if self._is_plain:
            return self._plain if self._plain.live else None
        lanes = self._fair_lanes
        if len(lanes) <= 1:
            return next(iter(lanes.values()), None)
        if aged_turn:
            return self._by_age.first(lanes)
        return self._by_urgency.first(lanes)

    def oldest_lane(self) -> Lane | None:
        if self._is_plain:
            return self._plain if self._plain.live else None
        if len(self._fair_lanes) <= 1:
            return next(iter(self._fair_lanes.values()), None)
        return self._by_age.first(self._fair_lanes)

    def oldest_full_lane(self) -> Lane | None:
        """Of the lanes with a batch's worth of rows, the one that has waited longest."""
        if not self.full_lanes:
            return None
        return min(self.full_lanes.values(), key=lambda lane: _age(lane) or (math.inf,))

    def has_aged(self, now: float) -> bool:
        """Is it the turn of an item that has waited so long that class does not count?"""
        if self._is_plain or self.has_one_class:
            return False
        lanes = self._fair_lanes
        if len(lanes) <= 1:
            return any(self.aged_line(lane, now) is not None for lane in lanes.values())
        lane, lead = self._by_age.first(lanes), self._by_urgency.first(lanes)
        oldest = lane.oldest() if lane is not None else None
        if oldest is None or lead is None or oldest.priority <= lead.priority:
            return False
        return self.ageing.may_lead(oldest.priority, oldest.arrived_at, now)

    def aged_line(self, lane: FairLane, now: float) -> Line | None:
        """The line of a lower class whose turn it is, having waited long enough."""
        if self.has_one_class:
            return None
        above = False
        for line in lane.lines:
            if not line.items:
                continue
            if above or len(self._fair_lanes) > 1:
                oldest = line.oldest()
                if oldest and self.ageing.may_lead(line.priority, oldest.arrived_at, now):
                    return line
            above = True
        return None

    def rows_ahead(self, item: Item) -> float:
        """How many rows a newcomer must expect to leave before it."""
        if self._is_plain:
            if not self._plain.live or kind_of(item) == self._plain.kind:
                return self.rows
            self._tell_apart()
        above = sum(self._class_rows[: item.priority])
        ahead = above + self._class_rows[item.priority]
        if item.deadline != math.inf and self.hurries:
            lane = self._fair_lanes.get(item.lane)
            due = lane.lines[item.priority].due.count_before(item.deadline) if lane else 0
            ahead = min(ahead, above + due)
        shares = self._shares[item.priority]
        tenant = shares.accounts.get(item.tenant)
        if not shares.accounts or (len(shares.accounts) == 1 and tenant is not None):
            return ahead
        own = (tenant.held if tenant else 0) + item.rows
        weight = shares.weight(item.tenant)
        others = shares.active_weight - (weight if tenant and tenant.held else 0.0)
        return min(ahead, above + own * (others + weight) / weight - item.rows)

    # ---- room

    def make_room(self, newcomer: Item, limit: int) -> list[Item]:
        """Push out what has less right to its place than this newcomer, newest first.

        Empty: there is not enough of that, and the newcomer must be refused instead.
        """
        if self._is_plain:
            first = self._plain.oldest()
            if first and newcomer.priority >= first.priority and newcomer.tenant == first.tenant:
                self.is_overflowing = True
                return []  # its equals, or those above it
            self._tell_apart()
        self._is_crowded = True
        needed = self.rows + newcomer.rows - limit
        self.is_overflowing = not self._can_make_room(newcomer, needed)
        if self.is_overflowing:
            return []
        victims: list[Item] = []
        for priority in reversed(Priority):
            if priority < newcomer.priority or needed <= 0:
                break
            allowed = self._allowed_load(newcomer) if priority == newcomer.priority else 0.0
            while needed > 0 and (victim := self._pop_newest(priority, allowed)) is not None:
                victims.append(victim)
                needed -= victim.rows
        return victims

    def _can_make_room(self, newcomer: Item, needed: int) -> bool:
        """Are there so many rows with less right to their places? Before anybody is pushed out: who
        has left cannot come back to the place that it had."""
        needed -= sum(self._class_rows[newcomer.priority + 1 :])
        if needed <= 0:
            return True
        allowed = self._allowed_load(newcomer)
        name = self._crowding[newcomer.priority].most_loaded()
        if allowed == math.inf or name is None:
            return False
        accounts = self._shares[newcomer.priority].accounts
        if _rows_over(accounts[name], allowed) >= needed:
            return True
        return sum(_rows_over(each, allowed) for each in accounts.values()) >= needed

    def make_way(self, newcomer: Item) -> list[Item]:
        """Evict as much of tenants of its class that hold more than their share, newest first."""
        self._is_crowded = True
        victims: list[Item] = []
        needed, allowed = newcomer.rows, self._allowed_load(newcomer)
        while needed > 0 and (victim := self._pop_newest(newcomer.priority, allowed)) is not None:
            victims.append(victim)
            needed -= victim.rows
        return victims

    def _allowed_load(self, newcomer: Item) -> float:
        """What others may hold for their weight beside this newcomer."""
        shares, priority = self._shares[newcomer.priority], newcomer.priority
        tenant = shares.accounts.get(newcomer.tenant)
        rows = (tenant.held if tenant else 0) + newcomer.rows
        load = rows / shares.weight(newcomer.tenant)
        if not shares.active_weight or load >= self._class_rows[priority] / shares.active_weight:
            return math.inf  # it has its fair share already
        return load

    def _pop_newest(self, priority: Priority, allowed: float) -> Item | None:
        """The newest item of the tenant that holds most for its weight, if that is too much."""
        if not self._class_rows[priority] or allowed == math.inf:
            return None
        shares = self._shares[priority]
        name = self._crowding[priority].most_loaded()
        tenant = shares.accounts.get(name) if name is not None else None
        if tenant is None or tenant.load <= allowed:
            return None
        lines = (lane.lines[priority] for lane in self._fair_lanes.values())
        shelves = (shelf for line in lines for shelf in line.shelves.values())
        newest = (shelf.newest(tenant.name, self._live) for shelf in shelves)
        victim = max((item for item in newest if item is not None), key=_arrival)
        self._remove(victim, ran=False)
        return victim

    def _urgency(self, lane: FairLane) -> tuple[float, ...] | None:
        if not lane.items:
            return None
        line = lane.top
        found = line.first(self._shares[line.priority])
        return None if found is None else (line.priority, found[0][0], found[0][1])


def _rows_over(tenant: Account, allowed: float) -> int:
    """How many rows it holds beyond that load."""
    return max(0, math.ceil(tenant.held - allowed * tenant.weight - 1e-9))


def _arrival(item: Item) -> tuple[float, int]:
    return item.arrived_at, item.id


def _age(lane: Lane) -> tuple[float, ...] | None:
    item = lane.oldest()
    return None if item is None else _arrival(item)
