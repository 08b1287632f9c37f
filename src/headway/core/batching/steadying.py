"""How large a batch of a single worker may be where batch times vary.

A large batch that happens to take long keeps all who come meanwhile waiting for longer than a small
one would; but small ones serve less. How long the queue is, most of the time, is known from the
theory of queues in heavy traffic (Kingman): the variance of what comes and of what is served,
divided by twice what the worker has to spare.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

_LEAST = 0.02  # the squared coefficient of variation up to which batch times are steady
_WORTH = 0.9  # of the queue that the best size makes: a smaller one must make so much less
_SPAN = 128  # arrivals that are counted together …
_FEWEST = 16 * _SPAN  # … of so many at least: calm and bursts are among them
_BUSY_SPAN = 0.9  # of the spans have fewer arrivals than a busy one


class Coming(NamedTuple):
    """What comes, in rows."""

    mean_rps: float
    busy_rps: float  # in a busy span
    bunched: float  # the variance of the count of a span, to its mean: 1 where it is chance


def measure_coming(times: Sequence[float], item_rows: float = 1.0) -> Coming | None:
    """From when items of so many rows arrived; None: there are too few to tell."""
    all_s = times[-1] - times[0]
    if len(times) < _FEWEST or all_s <= 0.0:
        return None
    span_s = all_s * _SPAN / len(times)
    counts = [0] * (len(times) // _SPAN)
    for at in times:
        span = int((at - times[0]) / span_s)
        if span < len(counts):  # the rest is not a whole span
            counts[span] += 1
    counts.sort()
    mean = sum(counts) / len(counts)
    variance = sum([(count - mean) * (count - mean) for count in counts]) / len(counts)
    busy = counts[int(_BUSY_SPAN * len(counts))]
    return Coming(
        item_rows * len(times) / all_s,
        item_rows * busy / span_s,
        item_rows * max(1.0, variance / mean),
    )


class Steadying:
    """Which of several sizes, of which the larger serve more."""

    def __init__(
        self,
        sizes: Sequence[tuple[int, float]] = (),
        varied: float = 0.0,
        coming: Coming | None = None,
    ) -> None:
        """`sizes`: rows, and what they serve a second. `varied`: the squared coefficient of
        variation of batch times."""
        self._varied = varied
        self._draining: dict[int, int] = {}  # by how many rows wait
        self._sizes: Sequence[tuple[int, float]] = ()
        self._least = 0  # rows
        if coming is not None and sizes and varied > _LEAST:
            self._sizes, self._least = sizes, self._shortest(sizes, coming)

    def most_rows(self, waiting: int) -> int | None:
        """Of a batch, where so many rows wait; None: any."""
        if not self._least:
            return None
        rows = self._draining.get(waiting)
        if rows is None:
            rows = self._draining[waiting] = max(self._least, self._drain(waiting))
        return rows

    def _shortest(self, sizes: Sequence[tuple[int, float]], coming: Coming) -> int:
        """The size that makes the shortest queue; 0: the best is nearly as good."""
        queues = [(self._queue_s(rows, served_rps, coming), rows) for rows, served_rps in sizes]
        shortest_s, rows = min(queues)
        return rows if shortest_s < _WORTH * queues[-1][0] else 0

    def _queue_s(self, rows: int, served_rps: float, coming: Coming) -> float:
        """How long the queue takes to be served, most of the time, but for a factor. A size that
        does not keep up while much comes makes a queue of its own."""
        if served_rps <= max(coming.busy_rps, coming.mean_rps):  # one short burst raises the mean
            return math.inf
        spare_rps = served_rps - coming.mean_rps
        varies = coming.mean_rps * coming.bunched + served_rps * rows * self._varied
        return varies / (spare_rps * served_rps)

    def _drain(self, waiting: int) -> int:
        """The size with which so many rows are served soonest, one standard deviation late: of a
        long queue the rate counts, of a short one that no batch is long."""
        late = math.sqrt(self._varied * waiting)
        soonest_s, best = math.inf, 0
        for rows, served_rps in self._sizes:
            end_s = (waiting + late * math.sqrt(rows)) / served_rps
            if rows <= waiting and end_s < soonest_s:
                soonest_s, best = end_s, rows
        return best
