"""Who waits, and who is next: classes, tenants, partitions, deadlines, cancellation.

Three rules give the order. *Classes* are strict, except that whoever has waited longer than
`ageing_s` owns a share of every batch, so nothing starves. Within a class, *tenants* share by
weight (start-time fair queueing: an item's tag is fixed when it arrives, so one flooding tenant
queues behind its own flood). Within a tenant, first come first served, or shortest first with a
bounded number of overtakings.

Removal is lazy: an item leaves `_live` at once and its traces are skipped when they surface, so
cancelling costs O(1). Every structure is compacted when its traces outnumber its items.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias

from headway.core.items import Item, Priority
from headway.core.policy import Order

AGED_SHARE = 4  # one row in four, and the lead of one batch in four, belong to the aged
OVERTAKE_ROWS = 256  # shortest first: an item of mean size is overtaken by no more rows than this
_SLACK = 64  # traces tolerated before a structure is compacted


# An item in line: key, id, tag, item. Ordered by key, then by arrival. The tag is the fair-queueing
# start tag; the key adds the penalty for being long. (A plain tuple: thousands are made per batch.)
Entry: TypeAlias = tuple[float, int, float, Item]


class Line:
    """Entries in key order: a sorted run, plus a heap for those that came out of order.

    With one tenant and fifo every entry lands in the run, and both ends cost O(1).
    """

    __slots__ = ("_live", "heap", "run")

    def __init__(self, live: dict[int, Item]) -> None:
        self._live = live
        self.run: deque[Entry] = deque()
        self.heap: list[Entry] = []

    def head(self) -> Entry | None:
        run, heap, live = self.run, self.heap, self._live
        while run and run[0][1] not in live:
            run.popleft()
        if not heap:
            return run[0] if run else None
        while heap and heap[0][1] not in live:
            heapq.heappop(heap)
        if run and heap:
            return min(run[0], heap[0])
        return run[0] if run else heap[0] if heap else None

    def pop_singles(self, most: int) -> list[Item]:
        """Up to so many items of one row from the head, until one of more rows stands there."""
        run, heap, live = self.run, self.heap, self._live
        singles: list[Item] = []
        while len(singles) < most and (run or heap):
            from_run = not heap or (run and run[0] < heap[0])
            entry = run[0] if from_run else heap[0]
            if entry[1] in live:
                if entry[3][2] != 1:  # rows
                    break
                del live[entry[1]]
                singles.append(entry[3])
            if from_run:
                run.popleft()
            else:
                heapq.heappop(heap)
        return singles

    def first(self, most: int) -> list[Item]:
        """Up to so many, in order, left where they are."""
        live = self._live
        run = (entry for entry in self.run if entry[1] in live)
        if not self.heap:
            return [entry[3] for entry in itertools.islice(run, most)]
        both = heapq.merge(run, sorted(entry for entry in self.heap if entry[1] in live))
        return [entry[3] for entry in itertools.islice(both, most)]

    def compact(self) -> None:
        self.run = deque(entry for entry in self.run if entry[1] in self._live)
        self.heap = [entry for entry in self.heap if entry[1] in self._live]
        heapq.heapify(self.heap)


class Lane:
    """The items of one partition, or of one bucket of it. Only these may share a batch."""

    __slots__ = ("_live", "arrivals", "items", "lines", "partition", "pushed", "rows", "size_rows")

    def __init__(self, partition: Hashable, live: dict[int, Item]) -> None:
        self.partition = partition
        self.items = 0
        self.pushed = 0  # ever
        self.rows = 0
        self.size_rows = 0  # the sum of rows × size: what it would cost unpadded
        self.lines = (Line(live), Line(live), Line(live))  # by class
        self.arrivals: deque[Item] = deque()
        self._live = live

    @property
    def mean_size(self) -> int:
        return self.size_rows // self.rows if self.size_rows else 0

    def compact(self) -> None:
        if len(self.arrivals) > 2 * self.items + _SLACK:
            self.arrivals = deque(self.in_arrival_order())
        for line in self.lines:
            if len(line.run) + len(line.heap) > 2 * self.items + _SLACK:
                line.compact()

    def clear(self) -> None:
        """Nobody is here: drop the traces."""
        self.arrivals.clear()
        for line in self.lines:
            line.run.clear()
            line.heap.clear()

    def oldest(self) -> Item | None:
        arrivals, live = self.arrivals, self._live
        while arrivals and arrivals[0].id not in live:
            arrivals.popleft()
        return arrivals[0] if arrivals else None

    def head(self) -> Entry | None:
        """The next item by class and key, ageing aside."""
        for line in self.lines:
            entry = line.head()
            if entry is not None:
                return entry
        return None

    @property
    def priority(self) -> Priority:
        """The highest class in it."""
        head = self.head()
        item = self.oldest() if head is None else head[3]  # a plain lane keeps no lines
        assert item is not None, "nobody is here"
        return item.priority

    def next_up(self, priority: Priority, most: int) -> list[Item]:
        """Up to so many of that class, in order, behind those of the classes before it."""
        found: list[Item] = []
        for line in self.lines[: priority + 1]:
            found += line.first(most - len(found))
        return found

    def in_arrival_order(self) -> Iterator[Item]:
        return (item for item in self.arrivals if item.id in self._live)

    def newest_first(self) -> Iterator[Item]:
        return (item for item in reversed(self.arrivals) if item.id in self._live)


class _Tenant:
    """What one tenant has queued in one class, and its place in the fair order."""

    __slots__ = ("credit", "finish_tag", "rows", "weight")

    def __init__(self, weight: float) -> None:
        self.finish_tag = 0.0
        self.credit = 0.0  # for what was cancelled
        self.rows = 0
        self.weight = weight


class _FairClock:
    """Start-time fair queueing among the tenants of one class."""

    __slots__ = ("_prune_at", "_weights", "active_weight", "tenants", "virtual")

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._prune_at = _SLACK
        self.active_weight = 0.0  # of tenants with something queued
        self.virtual = 0.0  # the start tag of the last batch's lead
        self.tenants: dict[str, _Tenant] = {}

    def weight(self, name: str) -> float:
        return self._weights.get(name, 1.0)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Who waits keeps the place it was given; what comes from now on has the new weight."""
        self._weights = weights
        for name, tenant in self.tenants.items():
            tenant.weight = self.weight(name)
        self.active_weight = sum(each.weight for each in self.tenants.values() if each.rows)

    def start_tag(self, name: str, rows: int) -> float:
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = _Tenant(self.weight(name))
        tag = tenant.finish_tag
        if tag < self.virtual:
            tag = self.virtual
        tenant.finish_tag = tag + rows / tenant.weight
        if not tenant.rows:
            self.active_weight += tenant.weight
        tenant.rows += rows
        return tag

    def leave(self, name: str, rows: int, *, served: bool) -> None:
        tenant = self.tenants[name]
        tenant.rows -= rows
        if not served:
            tenant.credit += rows / tenant.weight
        if not tenant.rows:
            # What never ran is not paid for. But only now: earlier, a newcomer would overtake.
            tenant.finish_tag = max(self.virtual, tenant.finish_tag - tenant.credit)
            tenant.credit = 0.0
            self.active_weight -= tenant.weight
            if len(self.tenants) > self._prune_at:
                self._prune()

    def _prune(self) -> None:
        """Forget tenants that went away and whose turn is paid off, or nearly so."""
        gone = [
            (tenant.finish_tag, name) for name, tenant in self.tenants.items() if not tenant.rows
        ]
        in_debt = {name for tag, name in heapq.nlargest(_SLACK, gone) if tag > self.virtual}
        self.tenants = {
            name: tenant for name, tenant in self.tenants.items() if tenant.rows or name in in_debt
        }
        self._prune_at = 2 * len(self.tenants) + _SLACK

    def loads(self) -> dict[str, float]:
        """Queued rows for each unit of weight, by tenant."""
        return {
            name: tenant.rows / tenant.weight
            for name, tenant in self.tenants.items()
            if tenant.rows
        }


class _LaneHeap:
    """Finds the lane that comes first by some rank, when there are many.

    Ranks are noted when a lane may have moved up and checked when it surfaces.
    """

    def __init__(self, rank: Callable[[Lane], tuple[float, ...] | None]) -> None:
        self._rank = rank
        self._heap: list[tuple[tuple[float, ...], int, Lane]] = []
        self._sequence = 0

    def note(self, lane: Lane, lanes: dict[Hashable, Lane]) -> None:
        if len(self._heap) > 4 * len(lanes) + _SLACK:
            self._heap.clear()
            for each in lanes.values():
                self._push(each)
        else:
            self._push(lane)

    def _push(self, lane: Lane) -> None:
        rank = self._rank(lane)
        if rank is not None:
            self._sequence += 1
            heapq.heappush(self._heap, (rank, self._sequence, lane))

    def clear(self) -> None:
        self._heap.clear()

    def first(self, lanes: dict[Hashable, Lane]) -> Lane | None:
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


def _urgency(lane: Lane) -> tuple[float, ...] | None:
    entry = lane.head()
    return None if entry is None else (entry[3].priority, entry[0], entry[1])


def _age(lane: Lane) -> tuple[float, ...] | None:
    item = lane.oldest()
    return None if item is None else (item.arrived_at, item.id)


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
    ) -> None:
        self.rows = 0
        self.is_plain = True  # see push_plain
        self.is_overflowing = False  # somebody was refused for want of room
        self.lanes: dict[Hashable, Lane] = {}
        self.full_lanes: dict[Hashable, Lane] = {}  # those with a batch's worth of rows
        self._shortest_first = order is Order.SHORTEST
        self._full_rows = full_rows
        self._ageing_s = ageing_s
        self.live: dict[int, Item] = {}  # everyone who waits, by id
        self._clocks = tuple(_FairClock(weights) for _ in Priority)
        self._class_rows = [0 for _ in Priority]
        self._by_urgency = _LaneHeap(_urgency)
        self._by_age = _LaneHeap(_age)
        self._deadlines: list[tuple[float, int]] = []
        self._mean_size = 0.0
        self._spare_lane: Lane | None = None
        self._may_be_plain = may_be_plain and order is Order.FIFO
        self._plain_lane = Lane(None, self.live)
        self.plain_kind: tuple[
            object, ...
        ] = ()  # what all who wait have in common, id and time aside

    def __len__(self) -> int:
        return len(self.live)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Tenants share by these from now on; absent: 1."""
        for clock in self._clocks:
            clock.weigh(weights)

    # ---- coming and going

    def push(self, item: Item) -> None:
        if self.is_plain and (item[2:] == self.plain_kind or self._starts_plain(item)):
            self.push_plain(item)
            return
        if self.is_plain:
            self._tell_apart()
        self._push_in_order(item)

    def _push_in_order(self, item: Item) -> None:
        item_id, _, rows, size, priority, tenant, deadline, partition, _, bucket = item
        if bucket:
            partition = item.lane
        lane = self.lanes.get(partition)
        if lane is None:
            lane = self.lanes[partition] = self._new_lane(partition)
        tag = self._clocks[priority].start_tag(tenant, rows)
        key = tag + self._long_penalty(size) if self._shortest_first else tag
        live = self.live
        assert item_id not in live, f"item {item_id} is queued; an id is used once"
        live[item_id] = item
        self.rows += rows
        self._class_rows[priority] += rows
        lane.items += 1
        lane.pushed += 1
        lane.rows += rows
        if size:
            lane.size_rows += rows * size
        line, entry = lane.lines[priority], (key, item_id, tag, item)
        if not line.run or line.run[-1] < entry:
            line.run.append(entry)
        else:
            heapq.heappush(line.heap, entry)
        lane.arrivals.append(item)
        if deadline != math.inf:
            heapq.heappush(self._deadlines, (deadline, item_id))
        if lane.rows >= self._full_rows:
            self.full_lanes[partition] = lane
        if len(self.lanes) > 1:
            self._note_lanes(lane)

    # While everyone is alike (one row, no size, one class, tenant and partition, no deadline) the
    # queue is one deque: nobody has to be told apart. That is most queues, most of the time.

    def push_plain(self, item: Item) -> None:
        """For an item of `plain_kind` only."""
        item_id, lane = item[0], self._plain_lane
        assert item_id not in self.live, f"item {item_id} is queued; an id is used once"
        self.live[item_id] = item
        self.rows += 1
        lane.items += 1
        lane.rows += 1
        lane.arrivals.append(item)
        if lane.rows >= self._full_rows:
            self.full_lanes[lane.partition] = lane

    def push_many_plain(self, items: Sequence[Item]) -> None:
        """For items of `plain_kind` only, and only where all of them fit."""
        lane, count = self._plain_lane, len(items)
        self.live.update({item[0]: item for item in items})
        self.rows += count
        lane.items += count
        lane.rows += count
        lane.arrivals.extend(items)
        if lane.rows >= self._full_rows:
            self.full_lanes[lane.partition] = lane

    def _starts_plain(self, item: Item) -> bool:
        """Is it the first of a kind? False: it must be told apart from those who wait."""
        if self.live or not self._may_be_plain:
            return False
        if item.rows != 1 or item.size or item.deadline != math.inf or item.request is not None:
            return False
        if self._plain_lane.partition != item.partition:
            self._plain_lane = Lane(item.partition, self.live)
        self.plain_kind = item[2:]
        self.lanes = {item.partition: self._plain_lane}
        return True

    def _tell_apart(self) -> None:
        """Somebody is different: put those who wait in order, as if they came just now."""
        waiting = list(self._plain_lane.in_arrival_order())
        self.is_plain, self.plain_kind = False, ()
        self._plain_lane = Lane(None, self.live)
        self.rows = 0
        self.lanes.clear()
        self.full_lanes.clear()
        self.live.clear()
        for item in waiting:
            self._push_in_order(item)

    def pop_plain(self, lane: Lane, most: int) -> list[Item]:
        """The oldest so many of a plain queue."""
        arrivals, live = lane.arrivals, self.live
        taken: list[Item] = []
        while len(taken) < most:
            item = arrivals.popleft()
            if live.pop(item[0], None) is not None:
                taken.append(item)
        self._count_out_plain(lane, most)
        return taken

    def _count_out_plain(self, lane: Lane, items: int) -> None:
        self.rows -= items
        lane.rows -= items
        lane.items -= items
        self.is_overflowing = False
        if self.full_lanes and lane.rows < self._full_rows:
            self.full_lanes.clear()
        if not lane.items:
            lane.arrivals.clear()

    def remove(self, item_id: int, *, served: bool = False) -> Item | None:
        """Take an item out, wherever it stands. None: it is not queued (any more)."""
        item = self.live.pop(item_id, None)
        if item is not None and self.is_plain:
            lane = self.lanes[item.partition]
            self._count_out_plain(lane, 1)
            lane.compact()
        elif item is not None:
            self._count_out((item,), self.lanes[item.lane], served=served)
        return item

    def lead_leaves(self, priority: Priority, entry: Entry) -> None:
        """The first of its class leaves with this batch: virtual time moves on to it."""
        clock = self._clocks[priority]
        if entry[2] > clock.virtual:
            clock.virtual = entry[2]

    def pop_head(self, line: Line, entry: Entry) -> None:
        """The head of a line leaves, to be counted out with its whole batch by `served`."""
        if line.run and line.run[0] is entry:
            line.run.popleft()
        else:
            heapq.heappop(line.heap)
        del self.live[entry[1]]

    def served(self, items: Sequence[Item], lane: Lane) -> None:
        """These were popped, to run or to be refused."""
        if items:
            self._count_out(items, lane, served=True)

    def _count_out(self, items: Sequence[Item], lane: Lane, *, served: bool) -> None:
        all_rows, run_rows, last = 0, 0, items[0]
        for item in items:
            _, _, rows, size, priority, tenant, _, _, _, _ = item
            if size:
                lane.size_rows -= rows * size
            if tenant != last[5] or priority != last[4]:  # mostly they are all one tenant's
                self._count_rows(last, run_rows, served=served)
                all_rows, run_rows, last = all_rows + run_rows, 0, item
            run_rows += rows
        self._count_rows(last, run_rows, served=served)
        all_rows += run_rows
        self.rows -= all_rows
        lane.rows -= all_rows
        lane.items -= len(items)
        lane.compact()
        if len(self._deadlines) > 2 * len(self.live) + _SLACK:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self.live]
            heapq.heapify(self._deadlines)
        self.is_overflowing = False
        if lane.rows < self._full_rows and self.full_lanes:
            self.full_lanes.pop(lane.partition, None)
        if not lane.items:
            self._spare_lane = self.lanes.pop(lane.partition)
            lane.clear()
            if not self.live:
                self._start_afresh()

    def _count_rows(self, item: Item, rows: int, *, served: bool) -> None:
        self._class_rows[item.priority] -= rows
        self._clocks[item.priority].leave(item.tenant, rows, served=served)

    def _new_lane(self, partition: Hashable) -> Lane:
        """At low load the same lane empties and returns with every item: keep the last one."""
        lane, self._spare_lane = self._spare_lane, None
        if lane is not None and lane.partition == partition:
            return lane
        return Lane(partition, self.live)

    def _start_afresh(self) -> None:
        """Nobody waits: no debts, no traces, no differences."""
        self.is_plain = True
        self._deadlines.clear()
        self._by_urgency.clear()
        self._by_age.clear()
        for clock in self._clocks:
            if clock.tenants:
                clock.virtual = clock.active_weight = 0.0
                clock.tenants.clear()

    def _long_penalty(self, size: int) -> float:
        self._mean_size += (size - self._mean_size) * 0.01 if self._mean_size else size
        return OVERTAKE_ROWS * size / self._mean_size if self._mean_size else 0.0

    def _note_lanes(self, lane: Lane) -> None:
        if len(self.lanes) == 2:  # a second partition: from now on the heaps are needed
            for each in self.lanes.values():
                self._by_urgency.note(each, self.lanes)
                self._by_age.note(each, self.lanes)
            return
        self._by_urgency.note(lane, self.lanes)
        if lane.items == 1:
            self._by_age.note(lane, self.lanes)

    # ---- questions

    @property
    def has_deadlines(self) -> bool:
        return bool(self._deadlines)

    def lead(self, now: float, *, aged_turn: bool) -> Lane | None:
        """The lane whose head is due next; on the aged's turn, that of the longest waiting."""
        lanes = self.lanes
        if self.is_plain:
            return self._plain_lane if self.live else None
        if len(lanes) <= 1:
            return next(iter(lanes.values()), None)
        if aged_turn and self.is_aged(now):
            return self._by_age.first(lanes)
        return self._by_urgency.first(lanes)

    def oldest_lane(self) -> Lane | None:
        if self.is_plain:
            return self._plain_lane if self.live else None
        if len(self.lanes) <= 1:
            return next(iter(self.lanes.values()), None)
        return self._by_age.first(self.lanes)

    def oldest_full_lane(self) -> Lane | None:
        """Of the lanes with a batch's worth of rows, the one that has waited longest."""
        if not self.full_lanes:
            return None
        return min(self.full_lanes.values(), key=lambda lane: _age(lane) or (math.inf,))

    def is_aged(self, now: float) -> bool:
        """Has somebody waited so long that the aged's share applies?"""
        lane = self.oldest_lane()
        oldest = lane.oldest() if lane else None
        return oldest is not None and now - oldest.arrived_at > self._ageing_s

    def next_deadline(self) -> float:
        deadlines, live = self._deadlines, self.live
        while deadlines and deadlines[0][1] not in live:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else math.inf

    def earliest_deadline(self) -> Item | None:
        return None if self.next_deadline() == math.inf else self.live[self._deadlines[0][1]]

    def pop_expired(self, now: float) -> list[Item]:
        expired = []
        while self.next_deadline() <= now:
            item = self.remove(heapq.heappop(self._deadlines)[1])
            assert item is not None
            expired.append(item)
        return expired

    def rows_ahead(self, item: Item) -> float:
        """How many rows a newcomer must expect to leave before it."""
        if self.is_plain:
            if item[4:6] == self.plain_kind[2:4]:
                return self.rows
            self._tell_apart()
        ahead = sum(self._class_rows[: item.priority + 1])
        clock = self._clocks[item.priority]
        if not clock.tenants or (len(clock.tenants) == 1 and item.tenant in clock.tenants):
            return ahead
        tenant = clock.tenants.get(item.tenant)
        own = (tenant.rows if tenant else 0) + item.rows
        weight = clock.weight(item.tenant)
        others = clock.active_weight - (weight if tenant and tenant.rows else 0.0)
        above = sum(self._class_rows[: item.priority])
        return min(ahead, above + own * (others + weight) / weight - item.rows)

    def make_room(self, newcomer: Item, limit: int) -> list[Item]:
        """Push out what has less right to its place than this newcomer, newest first.

        Empty: there is not enough of that, and the newcomer must be refused instead.
        """
        if self.is_plain:
            self._tell_apart()
        needed = self.rows + newcomer.rows - limit
        victims: list[Item] = []
        for victim in self._victims(newcomer):
            victims.append(victim)
            needed -= victim.rows
            if needed <= 0:
                for each in victims:
                    self.remove(each.id)
                return victims
        return []

    def _victims(self, newcomer: Item) -> Iterator[Item]:
        """Items of lower classes; then of tenants that hold more of the queue than the newcomer."""
        for priority in reversed(Priority):
            if priority < newcomer.priority:
                return
            clock = self._clocks[priority]
            if not clock.active_weight:
                continue
            allowed = 0.0
            if priority == newcomer.priority:
                own = clock.tenants.get(newcomer.tenant)
                rows = (own.rows if own else 0) + newcomer.rows
                allowed = rows / clock.weight(newcomer.tenant)
                if allowed >= self._class_rows[priority] / clock.active_weight:
                    return  # it has its fair share already
            yield from self._newest_of_most_loaded(clock, priority, allowed)

    def _newest_of_most_loaded(
        self, clock: _FairClock, priority: Priority, allowed: float
    ) -> Iterator[Item]:
        """The newest item of whoever holds the most for its weight, while it is over `allowed`."""
        loads = clock.loads()
        newest = {name: self._newest_of(name, priority) for name in loads}
        while loads:
            name = max(loads, key=lambda name: loads[name])
            if loads[name] <= allowed:
                return
            item = next(newest[name], None)
            if item is None:  # all of its own: what is left of the load is rounding
                del loads[name]
                continue
            loads[name] -= item.rows / clock.weight(name)
            yield item

    def _newest_of(self, tenant: str, priority: Priority) -> Iterator[Item]:
        """From the back of each lane, where a flood's newest items are found at once."""
        for lane in self.lanes.values():
            for item in lane.newest_first():
                if item.tenant == tenant and item.priority == priority:
                    yield item
