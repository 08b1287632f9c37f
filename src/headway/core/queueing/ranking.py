"""Which of many lanes comes first."""

import heapq
from collections.abc import Callable, Hashable

from headway.core.queueing.lanes import SLACK, FairLane


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
