"""A queue of items that differ only in id and time."""

import itertools
import math
from collections import deque
from collections.abc import Hashable, Iterator, Sequence

from headway.core.items import Item, Priority, kind_of

_SLACK = 64  # left items that are kept before cleaning up


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
        elif len(self.arrivals) > 2 * len(self.live) + _SLACK:
            self.arrivals = deque(self.in_order())
        return item

    def in_order(self) -> Iterator[Item]:
        return (item for item in self.arrivals if item.id in self.live)

    def clear(self) -> None:
        self.kind = ()
        self.live.clear()
        self.arrivals.clear()
