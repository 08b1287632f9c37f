"""Fixed buckets of sizes: given ones, powers of two, or quantiles of the arrivals.

Only items of one bucket share a batch. A bucket is named by its largest size.
"""

import bisect
from collections import deque
from collections.abc import Sequence

LONGER = 2**62  # the bucket of items that are larger than every given bucket
_SEEN = 1024  # the latest sizes, from which quantiles are learned
_LEARN_EVERY = 256  # arrivals between two computations of the quantiles


class Buckets:
    def __init__(self, bounds: Sequence[int] = (), *, quantiles: int = 0) -> None:
        """Use powers of two without either argument, and until quantiles are known."""
        self._bounds = list(bounds)
        self._quantiles = quantiles
        self._seen: deque[int] = deque(maxlen=_SEEN)
        self._until_learned = _LEARN_EVERY

    def bucket_of(self, size: int) -> int:
        """The bucket of an item that has just arrived with `size`."""
        if self._quantiles:
            self._learn(size)
        if not self._bounds:
            return 1 << max(0, size - 1).bit_length()
        at = bisect.bisect_left(self._bounds, size)
        return self._bounds[at] if at < len(self._bounds) else LONGER

    def _learn(self, size: int) -> None:
        self._seen.append(size)
        self._until_learned -= 1
        if self._until_learned > 0:
            return
        self._until_learned = _LEARN_EVERY
        ordered, parts = sorted(self._seen), self._quantiles
        bounds = {ordered[len(ordered) * part // parts - 1] for part in range(1, parts + 1)}
        self._bounds = sorted(bounds)
