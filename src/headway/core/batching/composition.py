"""A batch in the making."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from headway.core.items import FireReason, Item, Priority

_NO_ROWS = [0 for _ in Priority]
_rows = itemgetter(2)  # of an item


@dataclass(slots=True)
class Composition:
    """Who is in it so far, its figures, and what it has cost others."""

    goal: int = 0  # rows
    late_before: float = -math.inf  # items due before this would be late, leaving now
    error: float = 0.0  # batches are reckoned to take so much longer than predicted
    items: list[Item] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    total: int = 0  # rows × size of each, which is all that a packed batch costs
    size_cap: int = 0  # the rows that pay at that size
    class_rows: list[int] = field(default_factory=_NO_ROWS.copy)
    left_rows: int = 0  # in the lane
    stopped_by: FireReason | None = None  # the limit that kept items out, if one did
    late: list[Item] = field(default_factory=list)  # dropped: no answer could be in time

    def add(self, items: Sequence[Item], priority: Priority, rows: int | None = None) -> None:
        """`rows`: theirs, where that is known."""
        if rows is None:
            rows = sum(map(_rows, items))
        self.items += items
        self.rows += rows
        self.class_rows[priority] += rows
