"""The deadlines of queued and running items.

Ids are removed lazily: `live` shows which still count, so serving or cancelling an item needs no
call. Who is refused for a deadline: `queueing.admission` on arrival, `batching.refusals` later.
"""

import heapq
import math
from collections import deque
from collections.abc import Collection
from typing import Final

# An item counts as late if it would be late in a batch as slow as this percentile of all batches.
HOPELESS_PERCENTILE: Final = 10.0  # an item that is late even then has no chance
DOUBTFUL_PERCENTILE: Final = 85.0  # an item that is in time even then has a good chance

_SLACK: Final = 64  # entries of left items that are kept before cleaning up


class Deadlines:
    """Ids by their moments: a deque of the ids added in order, and a heap of the others."""

    __slots__ = ("_heap", "_live", "_run")

    def __init__(self, live: Collection[int]) -> None:
        """`live`: the ids that still count; a dict of them will do."""
        self._live = live
        self._run: deque[tuple[float, int]] = deque()
        self._heap: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self._run or self._heap)

    def add(self, moment: float, item_id: int) -> None:
        """Moments at infinity need not be added."""
        run = self._run
        if len(run) + len(self._heap) > 2 * len(self._live) + _SLACK:
            self._compact()
            run = self._run
        if not run or run[-1][0] <= moment:
            run.append((moment, item_id))
        else:
            heapq.heappush(self._heap, (moment, item_id))

    def not_before(self) -> float:
        """A lower bound of `next_at`, without cleaning up."""
        run, heap = self._run, self._heap
        if not heap:
            return run[0][0] if run else math.inf
        return run[0][0] if run and run[0][0] <= heap[0][0] else heap[0][0]

    def next_at(self) -> float:
        """The earliest moment; infinite if there is none."""
        run, heap, live = self._run, self._heap, self._live
        pop = run.popleft
        while run and run[0][1] not in live:
            pop()
        if not heap:
            return run[0][0] if run else math.inf
        while heap and heap[0][1] not in live:
            heapq.heappop(heap)
        first = heap[0][0] if heap else math.inf
        return run[0][0] if run and run[0][0] <= first else first

    def first(self) -> int | None:
        """The id with the earliest moment."""
        moment = self.next_at()
        if moment == math.inf:
            return None
        return self._run[0][1] if self._run and self._run[0][0] == moment else self._heap[0][1]

    def pop(self) -> int:
        """Remove and return the id with the earliest moment. Call `next_at` just before."""
        run, heap = self._run, self._heap
        if run and (not heap or run[0][0] <= heap[0][0]):
            return run.popleft()[1]
        return heapq.heappop(heap)[1]

    def count_before(self, moment: float) -> int:
        """How many ids have an earlier moment. It looks at all of them."""
        live, entries = self._live, (*self._run, *self._heap)
        return sum(1 for each, item_id in entries if each < moment and item_id in live)

    def clear(self) -> None:
        self._run.clear()
        self._heap.clear()

    def _compact(self) -> None:
        live = self._live
        self._run = deque(entry for entry in self._run if entry[1] in live)
        self._heap = [entry for entry in self._heap if entry[1] in live]
        heapq.heapify(self._heap)
