"""How many rows fit into memory, by item size: learned from batches that did not fit.

Free memory changes: other models, fragmentation and caches use it. So no limit is permanent. It is
set below the batch that failed, and raised a little after enough batches have run at it. Each time
the larger batch fails, the next attempt comes later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

PATIENCE = 32  # batches at the limit before more rows are tried, …
MOST_PATIENCE = 4096  # … doubled after each failure, up to this


class Misfit(NamedTuple):
    """The smallest batch that ran out of memory although each of its items fits alone."""

    rows: int  # as run, padding included
    size: int


@dataclass(slots=True)
class _Limit:
    rows: int
    proven: int = 0  # the largest number of rows that has run often enough
    patience: int = PATIENCE
    successes: int = 0


class Fitting:
    """The limits so far. While `limits` is empty, no batch has run out of memory."""

    def __init__(self, max_rows: int, batch_sizes: Sequence[int] = ()) -> None:
        self._max_rows = max_rows
        self._batch_sizes = batch_sizes  # the only batch sizes that the model runs; empty: any
        self.limits: dict[int, _Limit] = {}  # by bucket: sizes between two powers of two

    def rows_at(self, size: int) -> int:
        """The most rows of a batch whose largest item has `size`."""
        limit = self._in_force(size)
        return self._max_rows if limit is None else limit.rows

    def failed(self, misfit: Misfit) -> None:
        rows, bucket = misfit.rows, misfit.size.bit_length()
        limit = self.limits.get(bucket)
        if limit is None:
            limit = self.limits[bucket] = _Limit(self._max_rows)
        if limit.proven < rows <= limit.rows:  # an attempt failed: back to proven rows
            limit.rows = max(limit.proven, self._half(rows))
            limit.patience = min(2 * limit.patience, MOST_PATIENCE) if limit.proven else PATIENCE
        elif rows <= limit.proven:  # less memory is free than before
            limit.rows = limit.proven = self._half(rows)
        limit.successes = 0

    def ran(self, rows: int, size: int) -> None:
        """A batch of `rows` rows has run."""
        limit = self._in_force(size)
        if limit is None or rows < limit.rows:
            return
        limit.successes += 1
        if limit.successes < limit.patience:
            return
        limit.successes, limit.proven = 0, limit.rows
        if limit.rows >= self._max_rows:
            self.limits = {at: each for at, each in self.limits.items() if each is not limit}
        else:
            limit.rows = self._more(limit.rows)

    def _in_force(self, size: int) -> _Limit | None:
        """The limit for `size`. Rows that do not fit at one size do not fit at larger sizes."""
        bucket = size.bit_length()
        limits = (limit for at, limit in self.limits.items() if at <= bucket)
        return min(limits, key=lambda limit: limit.rows, default=None)

    def _half(self, rows: int) -> int:
        half = max(1, rows // 2)
        sizes = [size for size in self._batch_sizes if half <= size < rows]
        return min(sizes or self._batch_sizes[:1], default=half)

    def _more(self, rows: int) -> int:
        if self._batch_sizes:
            return min(size for size in self._batch_sizes if size > rows)
        return min(rows + max(1, rows // 4), self._max_rows)
