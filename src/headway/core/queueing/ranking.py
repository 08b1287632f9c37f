"""Finds the lane that comes first, among many."""

import heapq
from collections.abc import Callable, Hashable

from headway.core.queueing.lanes import FairLane, Line, arrival_of
from headway.core.queueing.priority import Ageing
from headway.core.queueing.shelves import SLACK


class LaneRanking:
    """All fair lanes of a queue: which is next, and which has waited longest.

    A single lane is first without being ranked; the heaps are filled when a second one comes.
    """

    def __init__(self, ageing: Ageing) -> None:
        self.lanes: dict[Hashable, FairLane] = {}
        self._ageing = ageing
        self._by_urgency = LaneHeap(_urgency)
        self._by_age = LaneHeap(_age)

    def grew(self, lane: FairLane) -> None:
        """An item joined the lane, and it is not the only lane."""
        lanes = self.lanes
        if len(lanes) == 2:  # a second partition: from now on the heaps are needed
            for each in lanes.values():
                self._by_urgency.note(each, lanes)
                self._by_age.note(each, lanes)
            return
        self._by_urgency.note(lane, lanes)
        if lane.items == 1:
            self._by_age.note(lane, lanes)

    def lead(self, *, aged_turn: bool = False) -> FairLane | None:
        """The lane with the next item; with `aged_turn`, the lane of the longest waiting item."""
        lanes = self.lanes
        if len(lanes) <= 1:
            return next(iter(lanes.values()), None)
        return (self._by_age if aged_turn else self._by_urgency).first(lanes)

    def has_aged(self, now: float) -> bool:
        """Is it the turn of an item that has waited so long that its class does not count?"""
        lanes = self.lanes
        if len(lanes) <= 1:
            only = next(iter(lanes.values()), None)
            return only is not None and self.aged_line(only, now) is not None
        lane, lead = self._by_age.first(lanes), self._by_urgency.first(lanes)
        oldest = lane.oldest() if lane is not None else None
        if oldest is None or lead is None or oldest.priority <= lead.priority:
            return False
        return self._ageing.may_lead(oldest.priority, oldest.arrived_at, now)

    def aged_line(self, lane: FairLane, now: float) -> Line | None:
        """The line of a lower class that goes first because it waited long; None: no such line."""
        above, ageing = len(self.lanes) > 1, self._ageing
        for line in lane.lines:
            if not line.items:
                continue
            if above:
                oldest = line.oldest()
                if oldest and ageing.may_lead(line.priority, oldest.arrived_at, now):
                    return line
            above = True
        return None

    def clear(self) -> None:
        self._by_urgency.clear()
        self._by_age.clear()


class LaneHeap:
    """Finds the lane with the smallest rank, when there are many.

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


def _urgency(lane: FairLane) -> tuple[float, ...] | None:
    if not lane.items:
        return None
    line = lane.top
    found = line.first()
    return None if found is None else (line.priority, found[0][0], found[0][1])


def _age(lane: FairLane) -> tuple[float, ...] | None:
    item = lane.oldest()
    return None if item is None else arrival_of(item)
