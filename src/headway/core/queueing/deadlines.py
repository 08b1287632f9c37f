"""Moments by which something must have happened: of what is queued, of what runs.

A heap of moments and ids. Ids leave lazily: `live` says which still count, so nothing has to be
told when one is served or cancelled.
"""

import heapq
import math
from collections.abc import Callable, Collection

_SLACK = 64  # entries of the departed that are tolerated


class Deadlines:
    """Ids in the order of their moments."""

    __slots__ = ("_heap", "_live")

    def __init__(self, live: Collection[int]) -> None:
        """`live`: the ids that still count; a dict of them will do."""
        self._live = live
        self._heap: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, moment: float, item_id: int) -> None:
        """Moments at infinity need not be added."""
        heap = self._heap
        if len(heap) > 2 * len(self._live) + _SLACK:
            live = self._live
            self._heap = heap = [entry for entry in heap if entry[1] in live]
            heapq.heapify(heap)
        heapq.heappush(heap, (moment, item_id))

    def next_at(self) -> float:
        """The earliest moment of all; infinite where there is none."""
        heap, live = self._heap, self._live
        while heap and heap[0][1] not in live:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def first(self) -> int | None:
        """Whose moment is the earliest."""
        return None if self.next_at() == math.inf else self._heap[0][1]

    def pop(self) -> int:
        """Take the earliest out. Only where `next_at` is finite."""
        return heapq.heappop(self._heap)[1]

    def pop_before(self, moment: float, most: int, take: Callable[[int], bool]) -> int:
        """Hand over ids whose moment is before that one, the earliest first, up to so many that
        `take` says it has taken. Answers how many. Whoever it does not take is forgotten here."""
        taken = 0
        while taken < most and self.next_at() < moment:
            taken += take(self.pop())
        return taken

    def clear(self) -> None:
        self._heap.clear()
