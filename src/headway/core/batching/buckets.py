"""Buckets of sizes, for those who want them fixed: given, powers of two, or quantiles.

Only items of one bucket share a batch. A bucket is known by its largest size.
"""

import bisect
from collections import deque
from collections.abc import Sequence

LONGER = 2**62  # the bucket of those who are longer than the last
_SEEN = 1024  # sizes from which quantiles are learned …
_LEARN_EVERY = 256  # … anew after so many more


class Buckets:
    def __init__(self, bounds: Sequence[int] = (), *, quantiles: int = 0) -> None:
        """Neither: powers of two, which is also what counts until quantiles are known."""
        self._bounds = list(bounds)
        self._quantiles = quantiles
        self._seen: deque[int] = deque(maxlen=_SEEN)
        self._until_learned = _LEARN_EVERY

    def bucket_of(self, size: int) -> int:
        """Of an item that has just come."""
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
