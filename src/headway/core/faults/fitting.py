"""How many rows fit into memory, by the size of the items: learned from batches that did not.

Free memory is never guaranteed: other models, fragmentation and caches change it. So a limit is not
for ever. It is kept below what failed, and raised a little after enough batches have run at it;
each time that goes wrong, the next try comes later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

PATIENCE = 32  # batches at the limit before more is tried …
MOST_PATIENCE = 4096  # … doubled each time that did not fit, up to this


class Misfit(NamedTuple):
    """The smallest batch that ran out of memory, where none of its requests would have alone."""

    rows: int  # as run, padding included
    size: int


@dataclass(slots=True)
class _Limit:
    rows: int
    proven: int = 0  # rows that have run often enough
    patience: int = PATIENCE
    successes: int = 0


class Fitting:
    """While it has no `limits` (nothing has run out of memory), there is nothing to ask."""

    def __init__(self, max_rows: int, batch_sizes: Sequence[int] = ()) -> None:
        self._max_rows = max_rows
        self._batch_sizes = batch_sizes  # the only ones the model runs at; empty: any
        self.limits: dict[int, _Limit] = {}  # by bucket: sizes between two powers of two

    def rows_at(self, size: int) -> int:
        """The most rows of a batch whose largest item has this size."""
        limit = self._in_force(size)
        return self._max_rows if limit is None else limit.rows

    def failed(self, misfit: Misfit) -> None:
        rows, bucket = misfit.rows, misfit.size.bit_length()
        limit = self.limits.get(bucket)
        if limit is None:
            limit = self.limits[bucket] = _Limit(self._max_rows)
        if limit.proven < rows <= limit.rows:  # a try: back to what is known
            limit.rows = max(limit.proven, self._half(rows))
            limit.patience = min(2 * limit.patience, MOST_PATIENCE) if limit.proven else PATIENCE
        elif rows <= limit.proven:  # there is less memory than there was
            limit.rows = limit.proven = self._half(rows)
        limit.successes = 0

    def ran(self, rows: int, size: int) -> None:
        """So many rows did fit."""
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
        """Rows that do not fit at one size do not fit at larger ones either."""
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
