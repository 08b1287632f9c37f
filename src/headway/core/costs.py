"""How long a batch takes, by its rows and the size it is padded to.

The table comes from probes at warm-up and is refined by what is observed; a cell nobody probed or
saw stays unknown, and unknown never justifies a refusal. Batch time need not be a line: whether
one more row pays is read from the table, not assumed.
"""

import bisect
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.errors import ConfigError

TRUSTED_SAMPLES = 3  # a cell seen fewer times than this is a rumour (first calls are slow)
_REFINE_RATE = 0.05  # of each new observation, once a cell is trusted
_OUTLIER = 2.0  # one observation moves a cell as if it were no further off than this factor
_ERRORS_KEPT = 256
_REBUILD_EVERY = 32  # observations between two rebuilds of the fast lookup
_DEFAULT_SIZES = tuple(2**power for power in range(4, 21))  # where nobody probed but items differ
KNEE_RATE = 0.98  # of the best rate: where the knee is
KNEE_ROWS = 0.75  # of the best size: a knee beyond that shortens no batch worth mentioning
_WORTH_IT = 0.03  # sizes whose rate is this close to the best count as equally good


@dataclass(frozen=True, slots=True)
class CostTable:
    """Probed batch times. The JSON form is shared by warm-up tables and `simulate --profile`."""

    rows: tuple[int, ...]
    sizes: tuple[int, ...] | None
    seconds: tuple[tuple[float, ...], ...]  # by row count, then by size (one column if no sizes)
    memory_bytes: tuple[tuple[int, ...], ...] | None = None
    errors: tuple[float, ...] = ()  # relative spread of the repeated probes, where known

    def __post_init__(self) -> None:
        columns = len(self.sizes) if self.sizes else 1
        for name, axis in (("rows", self.rows), ("sizes", self.sizes or (1,))):
            if not axis or list(axis) != sorted(set(axis)) or axis[0] < 1:
                raise ConfigError(f"must be positive and ascending, not {axis}", field=name)
        if len(self.seconds) != len(self.rows) or any(len(r) != columns for r in self.seconds):
            raise ConfigError(f"needs {len(self.rows)} rows of {columns} times", field="ms")
        if not all(0 < second < math.inf for row in self.seconds for second in row):
            raise ConfigError("every time must be more than 0, and finite", field="ms")

    @classmethod
    def from_json(cls, table: object) -> "CostTable":
        """Read `{"rows": […], "sizes": […] | null, "ms": [[…]], "memory_bytes": [[…]] | null}`."""
        try:
            if not isinstance(table, dict):
                raise TypeError(f"not an object but {table!r:.40}")
            sizes, memory = table.get("sizes"), table.get("memory_bytes")
            ms = [row if isinstance(row, list) else [row] for row in table["ms"]]
            return cls(
                rows=tuple(int(row) for row in table["rows"]),
                sizes=None if sizes is None else tuple(int(size) for size in sizes),
                seconds=tuple(tuple(float(cell) / 1e3 for cell in row) for row in ms),
                memory_bytes=None
                if memory is None
                else tuple(tuple(int(cell) for cell in row) for row in memory),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                'a cost table is {"rows": [1, 2, …], "sizes": [32, …] or null, "ms": [[…], …]}; '
                f"this one has {error!r}"
            ) from error

    def to_json(self) -> dict[str, object]:
        return {
            "rows": list(self.rows),
            "sizes": None if self.sizes is None else list(self.sizes),
            "ms": [[round(cell * 1e3, 6) for cell in row] for row in self.seconds],
            "memory_bytes": None
            if self.memory_bytes is None
            else [list(row) for row in self.memory_bytes],
        }


def probe_rows(max_rows: int) -> list[int]:
    """The batch sizes worth probing: powers of two, and the largest."""
    sizes = [1]
    while sizes[-1] * 2 < max_rows:
        sizes.append(sizes[-1] * 2)
    return sizes if max_rows == 1 else [*sizes, max_rows]


class _Cell:
    __slots__ = ("samples", "seconds")

    def __init__(self, seconds: float, samples: int) -> None:
        self.seconds = seconds
        self.samples = samples

    def refine(self, seconds: float) -> None:
        self.samples += 1
        if self.samples <= 2:  # a first call pays for what is loaded lazily; the faster one is true
            self.seconds = min(self.seconds, seconds)
            return
        bounded = min(max(seconds, self.seconds / _OUTLIER), self.seconds * _OUTLIER)
        self.seconds += (bounded - self.seconds) * max(1 / self.samples, _REFINE_RATE)


class Costs:
    """Predicts batch times, learns from observed ones, and knows its own error."""

    def __init__(
        self,
        max_rows: int,
        table: CostTable | None = None,
        *,
        error_percentile: float = 99.0,
        batch_sizes: Sequence[int] = (),
    ) -> None:
        self._max_rows = max_rows
        self._percentile = error_percentile
        self._batch_sizes = tuple(batch_sizes)
        self._rows = self._batch_sizes or tuple(probe_rows(max_rows))
        self._sizes: tuple[int, ...] | None = None
        self._was_probed = False
        self._cells: dict[tuple[int, int], _Cell] = {}  # by index into rows and sizes
        self._errors: deque[float] = deque(maxlen=_ERRORS_KEPT)
        self._observed = 0
        self._margin: float | None = None
        self._curves: dict[int, list[float | None]] = {}  # by size: seconds at 0…max_rows rows
        self._best: dict[int, int] = {}
        self._knees: dict[int, int] = {}
        if table:
            self.adopt(table)

    def adopt(self, table: CostTable) -> None:
        """Start from this table; what was learned before is forgotten."""
        beyond = (rows for rows in probe_rows(self._max_rows) if rows > table.rows[-1])
        self._rows, self._sizes = (*table.rows, *beyond), table.sizes
        self._was_probed = True
        self._cells = {
            (i, j): _Cell(seconds, TRUSTED_SAMPLES)
            for i, row in enumerate(table.seconds)
            for j, seconds in enumerate(row)
        }
        self._errors = deque(table.errors, maxlen=_ERRORS_KEPT)
        self._forget_derived()

    @property
    def is_known(self) -> bool:
        return any(_is_trusted(cell) for cell in self._cells.values())

    def predict(self, rows: int, size: int = 0) -> float | None:
        """Expected seconds for a batch of that shape; None where nothing is known."""
        curve = self._curves.get(size)
        if curve is None:
            curve = self._curve(size)
        seconds = curve[rows if rows < len(curve) else -1]
        if rows < len(curve) or seconds is None:
            return seconds
        return seconds * rows / self._max_rows  # one request larger than any batch

    def margin_s(self, rows: int, size: int = 0) -> float:
        """What to add so that a prediction holds at the percentile asked for."""
        if self._margin is None:
            self._margin = _spread(self._errors, self._percentile)
        return self._margin * (self.predict(rows, size) or 0.0)

    def best_rows(self, size: int = 0) -> int:
        """The batch size with the most rows per second; larger ones do not pay.

        Of sizes that are as good as equal the largest: a rate that probes cannot tell apart from
        the best must not shrink batches.
        """
        best = self._best.get(size)
        if best is None:
            best = self._best[size] = self._find_best(self._curve(size))
        return best

    def knee_rows(self, size: int = 0) -> int:
        """The smallest batch size with nearly the best rate: more rows only make everyone wait."""
        knee = self._knees.get(size)
        if knee is None:
            best = self.best_rows(size)
            curve = self._curve(size)
            knee = self._knees[size] = _smallest_near(curve, best)
        return knee

    def observe(self, rows: int, size: int, seconds: float) -> None:
        """A batch of that shape took so long."""
        if seconds <= 0:
            return
        if size and self._sizes is None and not self._was_probed:
            self._sizes = _DEFAULT_SIZES
            self._cells.clear()
            self._forget_derived()
        predicted = self.predict(rows, size)
        if predicted is not None:
            self._errors.append(seconds / predicted - 1.0)
        i, j = _nearest(self._rows, rows), self._size_index(size)
        at_cell = None
        if predicted is not None and (size or rows != self._rows[i]):
            at_cell = self._moved_to_cell(i, j, seconds / predicted)
        if at_cell is None:
            at_cell = seconds
        cell = self._cells.get((i, j))
        if cell is None:
            self._cells[i, j] = _Cell(at_cell, 1)
        else:
            cell.refine(at_cell)
        self._observed += 1
        if self._observed % _REBUILD_EVERY == 0 or self._observed <= _REBUILD_EVERY:
            self._forget_derived()

    def _forget_derived(self) -> None:
        self._curves.clear()
        self._best.clear()
        self._knees.clear()
        self._margin = None

    # ---- reading the grid

    def _moved_to_cell(self, i: int, j: int, ratio: float) -> float | None:
        """Where the observation would lie at the cell itself, given how far off it was."""
        size = self._sizes[j] if self._sizes else 0
        at_cell = self.predict(min(self._rows[i], self._max_rows), size)
        return None if at_cell is None else ratio * at_cell

    def _size_index(self, size: int) -> int:
        return _nearest(self._sizes, size) if self._sizes else 0

    def _curve(self, size: int) -> list[float | None]:
        """Seconds for 0…max_rows rows at that size; kept until the cells change."""
        if len(self._curves) > 1024:  # sizes without bound must not become memory without bound
            self._curves.clear()
        curve = self._curves[size] = self._build_curve(size)
        return curve

    def _build_curve(self, size: int) -> list[float | None]:
        points = [
            (rows, seconds)
            for i, rows in enumerate(self._rows)
            if (seconds := self._at_size(i, size)) is not None
        ]
        if not points:
            return [None] * (self._max_rows + 1)
        return _drawn(points, self._max_rows, extend=self._was_probed)

    def _at_size(self, i: int, size: int) -> float | None:
        sizes = self._sizes
        if sizes is None:
            return self._trusted(i, 0)
        j = bisect.bisect_left(sizes, size)
        if j == 0:
            return self._trusted(i, 0)
        if j == len(sizes):
            last = self._trusted(i, j - 1)
            return None if last is None else last * size / sizes[-1]
        low, high = self._trusted(i, j - 1), self._trusted(i, j)
        if low is None or high is None:
            return high if low is None else low
        return low + (high - low) * (size - sizes[j - 1]) / (sizes[j] - sizes[j - 1])

    def _largest_known(self) -> int:
        return max(self._rows[i] for (i, _), cell in self._cells.items() if _is_trusted(cell))

    def _trusted(self, i: int, j: int) -> float | None:
        cell = self._cells.get((i, j))
        return cell.seconds if cell and _is_trusted(cell) else None

    def _find_best(self, curve: list[float | None]) -> int:
        candidates = self._batch_sizes or [r for r in self._rows if r <= self._max_rows]
        rates = [(r / s, r) for r in candidates if (s := curve[r]) is not None]
        if not rates:
            return self._max_rows
        best = max(rates)[0]
        if rates[-1][0] >= best and self._largest_known() < self._max_rows:
            return self._max_rows  # the best known is the largest known: larger may be better still
        return max(r for rate, r in rates if rate >= best * (1 - _WORTH_IT))


def _is_trusted(cell: _Cell) -> bool:
    return cell.samples >= TRUSTED_SAMPLES


def _drawn(points: list[tuple[int, float]], max_rows: int, *, extend: bool) -> list[float | None]:
    """Seconds at 0…max_rows rows: lines between the points; below the first, the first.

    Beyond the last: in proportion to the rows where the model was probed, otherwise unknown.
    """
    rows, seconds = points[0]
    curve: list[float | None] = [seconds] * (rows + 1)
    for next_rows, next_seconds in points[1:]:
        slope = (next_seconds - seconds) / (next_rows - rows)
        curve += [seconds + slope * i for i in range(1, next_rows - rows + 1)]
        rows, seconds = next_rows, next_seconds
    for beyond in range(rows + 1, max_rows + 1):
        curve.append(seconds * beyond / rows if extend else None)
    return curve[: max_rows + 1]


def _smallest_near(curve: list[float | None], best: int) -> int:
    best_s = curve[best]
    if best_s is None:
        return best
    enough = KNEE_RATE * best / best_s
    rates = ((rows, curve[rows]) for rows in range(1, int(KNEE_ROWS * best) + 1))
    return next((rows for rows, s in rates if s is not None and rows / s >= enough), best)


def _nearest(axis: Sequence[int], value: int) -> int:
    i = bisect.bisect_left(axis, value)
    if i == 0 or (i < len(axis) and axis[i] - value < value - axis[i - 1]):
        return i
    return i - 1


def _spread(errors: Iterable[float], percentile: float) -> float:
    """How far the given percentile of the relative errors lies above their median."""
    ordered = sorted(errors)
    if len(ordered) < 2:
        return 0.0
    at = min(len(ordered) - 1, int(len(ordered) * percentile / 100))
    return max(0.0, ordered[at] - ordered[len(ordered) // 2])
