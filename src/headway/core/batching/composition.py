"""A batch while it is being composed."""

from typing import Final

from headway.core.batching.planning import INFINITE
from headway.core.items import FireReason, Item, Priority

_CLASSES: Final = len(Priority)


class Composition:
    """The items of the batch so far, its figures, and the items dropped for being late."""

    def __init__(self, goal: int = 0, error: float = 0.0) -> None:
        self.goal = goal  # rows
        self.error = error  # safety margin added to predicted batch times (a fraction)
        self.late_before = -INFINITE  # items due before this would be late, leaving now
        self.items: list[Item] = []
        self.rows = 0
        self.size = 0
        self.total = 0  # the sum of rows × size: the cost of a packed batch
        self.size_cap = 0  # the most rows that pay at `size`
        self.class_rows = [0] * _CLASSES
        self.left_rows = 0  # rows that stay in the lane
        self.stopped_by: FireReason | None = None  # the limit that kept items out, if one did
        self.late: list[Item] = []  # dropped: their answers could not be in time

    def add(self, items: list[Item], priority: Priority, rows: int | None = None) -> None:
        """`rows`: of these items together, if known."""
        if rows is None:
            rows = sum([item.rows for item in items])
        self.items += items
        self.rows += rows
        self.class_rows[priority] += rows
