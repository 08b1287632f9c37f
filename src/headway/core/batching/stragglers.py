"""How many answers are late because some batches take longer than others.

Which batch is slow is chance, so a replay takes every batch to last the mean. That some are slow is
no chance: a single worker serves nobody meanwhile. Each batch runs that risk, whatever its size, so
fewer and larger batches can answer more in time than batches that leave at once.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


class Stragglers:
    def __init__(self, ratios: Sequence[float], slo_s: float, next_s: float) -> None:
        """`ratios`: what batches took lately, to their mean; ascending. `next_s`: what the batch
        takes that serves those who came while a slow one ran."""
        self._ratios = ratios
        self._sums = [0.0, *accumulate(reversed(ratios))]  # of the largest
        self._slo_s = slo_s
        self._next_s = next_s

    def late_s(self, waited_s: float, batch_s: float) -> float:
        """For how long, on average, those who come are late because a batch was slow.

        `waited_s`: how long the batch's oldest item has waited when it leaves; `batch_s`: what a
        batch takes on average. Late are items of the slow batch itself, and those who come while it
        runs and are answered by the next one.
        """
        slo_s = self._slo_s
        own_s = self._beyond(slo_s - waited_s, batch_s) - self._beyond(slo_s, batch_s)
        return own_s + self._beyond(slo_s - self._next_s, batch_s)

    def _beyond(self, limit_s: float, batch_s: float) -> float:
        """How long batches run beyond that, on average; less that of a batch that takes the mean,
        which every replay shows."""
        limit = limit_s / batch_s
        slower = len(self._ratios) - bisect_right(self._ratios, limit)
        mean = (self._sums[slower] - slower * limit) / len(self._ratios)
        return (mean - max(0.0, 1.0 - limit)) * batch_s
