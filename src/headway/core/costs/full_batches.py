"""What rows cost in full batches: the measure of work, and of how fast a replica is.

Half-empty batches keep a worker as busy as full ones, so the time that it is busy says little about
what more it could do.
"""

from headway.core.costs.costs import Costs
from headway.core.items import Batch
from headway.core.routing import Pace


def work_of(costs: Costs, batch: Batch) -> float | None:
    """The least seconds that the batch's rows can take: in full batches of items of their size.
    None: unknown."""
    if not batch.size:
        full_s = costs.full_row_s()
        return None if full_s is None else batch.rows * full_s
    work_s = 0.0
    for item in batch.items:
        full_s = costs.full_row_s(item.size)
        if full_s is None:
            return None
        work_s += item.rows * full_s
    return work_s


def pace_of(costs: Costs, size: int, most: int) -> Pace | None:
    """How long batches of up to `most` items of that size take, as a line. None: unknown."""
    alone_s, row_s = costs.predict(1, size), costs.full_row_s(size)
    if alone_s is None or row_s is None:
        return None
    return Pace(alone_s, max(0.0, row_s * most - alone_s) / max(1, most - 1), float(most))
