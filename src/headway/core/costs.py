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
_PROBED_SAMPLES = 50  # what a probe counts for, against single observations
_SCALE_RATE = 0.05  # of each observation goes into the speed of the whole model …
_REFINE_RATE = 0.01  # … and of what is left, this much into its own cell
_OUTLIER = 2.0  # one observation counts as if it were no further off than this factor
_ERRORS_KEPT = 256
_REBUILD_EVERY = 32  # observations between two rebuilds of the fast lookup
_REDRAW_EVERY = 256  # and of the curves for planning, of which there are many
_DEFAULT_SIZES = tuple(2**power for power in range(4, 21))  # where nobody probed but items differ
KNEE_RATE = 0.98  # of the best rate: where the knee is
KNEE_ROWS = 0.75  # of the best size: a knee beyond that shortens no batch worth mentioning
_BATCH_SHARE = 1 / 3  # of what a batch takes whatever is in it counts in a plan
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
        self.seconds += (seconds - self.seconds) * max(1 / self.samples, _REFINE_RATE)


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
        self._scale = 1.0  # how much slower the model is now than the cells say, at any size
        self._curve: list[float | None] = []  # seconds at 0…max_rows rows, where nothing varies
        self._points_by_size: dict[int, list[tuple[int, float]]] = {}
        self._best: dict[int, int] = {}
        self._knees: dict[int, int] = {}
        self._curves: dict[int, tuple[list[float], list[int]]] = {}
        if table:
            self.adopt(table)

    def adopt(self, table: CostTable) -> None:
        """Start from this table; what was learned before is forgotten."""
        beyond = (rows for rows in probe_rows(self._max_rows) if rows > table.rows[-1])
        self._rows, self._sizes = (*table.rows, *beyond), table.sizes
        self._was_probed = True
        self._cells = {
            (i, j): _Cell(seconds, _PROBED_SAMPLES)
            for i, row in enumerate(table.seconds)
            for j, seconds in enumerate(row)
        }
        self._errors = deque(table.errors, maxlen=_ERRORS_KEPT)
        self._scale = 1.0
        self._curves.clear()
        self._forget_derived()

    def predict(self, rows: int, size: int = 0) -> float | None:
        """Expected seconds for a batch of that shape; None where nothing is known."""
        if size:
            seconds = _interpolated(self._points(size), rows, extend=self._was_probed)
        else:
            curve = self._curve or self._draw_curve()
            seconds = curve[rows if rows < len(curve) else -1]
            if rows >= len(curve) and seconds is not None:
                seconds *= rows / self._max_rows  # one request larger than any batch
        return None if seconds is None else seconds * self._scale

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
        size = size_class(size)
        best = self._best.get(size)
        if best is None:
            best = self._best[size] = self._find_best(self._points(size))
        return best

    def planning_curve(self, size: int) -> tuple[list[float], list[int]] | None:
        """For planning, by rows: the time of a batch of that size, and of all smaller ones and
        itself the one with the best rate. None: unknown.

        With fixed batch sizes, of what is run for so many rows. More than one row must pay by more
        than probes can tell: where they cannot, each is better off alone. And what a batch takes
        whatever is in it counts only in part: whoever is left out now meets more of his size in the
        next plan, so company that needs much padding is worth less than one plan alone would say.
        """
        size = size_class(size)
        curve = self._curves.get(size)
        if curve is None:
            points = self._points(size)
            if not points:
                return None
            curve = self._curves[size] = self._draw_planning_curve(points)
        return curve

    def _draw_planning_curve(
        self, points: list[tuple[int, float]]
    ) -> tuple[list[float], list[int]]:
        by_rows = _line_through(points, self._max_rows)
        spared_s = (1.0 - _BATCH_SHARE) * _fixed_s(points)
        seconds, best, best_each_s = [0.0], [0], math.inf
        for rows in range(1, self._max_rows + 1):
            run_s = by_rows[self._run_rows(rows)]
            seconds.append((run_s if rows == 1 else run_s * (1.0 + _WORTH_IT)) - spared_s)
            each_s = seconds[rows] / rows
            best.append(rows if each_s <= best_each_s else best[-1])
            best_each_s = min(best_each_s, each_s)
        return seconds, best

    def _run_rows(self, rows: int) -> int:
        sizes = self._batch_sizes
        return sizes[min(bisect.bisect_left(sizes, rows), len(sizes) - 1)] if sizes else rows

    def knee_rows(self, size: int = 0) -> int:
        """The smallest batch size with nearly the best rate: more rows only make everyone wait."""
        size = size_class(size)
        knee = self._knees.get(size)
        if knee is None:
            knee = self._knees[size] = self._find_knee(size)
        return knee

    def observe(self, rows: int, size: int, seconds: float) -> None:
        """A batch of that shape took so long."""
        if seconds <= 0:
            return
        if size and self._sizes is None and not self._was_probed:
            self._sizes = _DEFAULT_SIZES
            self._cells.clear()
            self._curves.clear()
            self._forget_derived()
        predicted = self.predict(rows, size)
        if predicted is not None:
            ratio = seconds / predicted
            self._errors.append(ratio - 1.0)
            ratio = min(max(ratio, 1 / _OUTLIER), _OUTLIER)
            seconds = ratio * predicted
            # A machine that slows down is slow at every size; if only the size in use were
            # corrected, others would look better than they are, and be avoided or sought for it.
            self._scale *= 1.0 + _SCALE_RATE * (ratio - 1.0)
        i, j = _nearest(self._rows, rows), self._size_index(size)
        at_cell = None
        if predicted is not None and (size or rows != self._rows[i]):
            at_cell = self._moved_to_cell(i, j, seconds / predicted)
        if at_cell is None:
            at_cell = seconds / self._scale
        cell = self._cells.get((i, j))
        if cell is None:
            self._cells[i, j] = _Cell(at_cell, 1)
        else:
            cell.refine(at_cell)
        self._note_observed(is_news=cell is not None and cell.samples == TRUSTED_SAMPLES)

    def _note_observed(self, *, is_news: bool) -> None:
        self._observed += 1
        if is_news or self._observed % _REDRAW_EVERY == 0:
            self._curves.clear()
        if is_news or self._observed % _REBUILD_EVERY == 0:
            self._forget_derived()

    def _forget_derived(self) -> None:
        self._curve = []
        self._points_by_size.clear()
        self._best.clear()
        self._knees.clear()
        self._margin = None

    # ---- reading the grid

    def _moved_to_cell(self, i: int, j: int, ratio: float) -> float | None:
        """Where the observation would lie at the cell itself, given how far off it was."""
        size = self._sizes[j] if self._sizes else 0
        at_cell = self.predict(min(self._rows[i], self._max_rows), size)
        return None if at_cell is None else ratio * at_cell / self._scale

    def _size_index(self, size: int) -> int:
        return _nearest(self._sizes, size) if self._sizes else 0

    def _draw_curve(self) -> list[float | None]:
        """Seconds for 0…max_rows rows where nothing varies; kept until the cells change."""
        points = self._points(0)
        self._curve = [
            _interpolated(points, rows, extend=self._was_probed)
            for rows in range(self._max_rows + 1)
        ]
        return self._curve

    def _points(self, size: int) -> list[tuple[int, float]]:
        """What is known at that size, by rows; kept until the cells change."""
        size = size_class(size)
        points = self._points_by_size.get(size)
        if points is None:
            points = self._points_by_size[size] = [
                (rows, seconds)
                for i, rows in enumerate(self._rows)
                if (seconds := self._at_size(i, size)) is not None
            ]
        return points

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

    def _find_best(self, points: list[tuple[int, float]]) -> int:
        allowed = set(self._batch_sizes)
        rates = [
            (rows / seconds, rows)
            for rows, seconds in points
            if rows <= self._max_rows and (not allowed or rows in allowed)
        ]
        if not rates:
            return self._max_rows
        best = max(rates)[0]
        if rates[-1][0] >= best and self._largest_known() < self._max_rows:
            return self._max_rows  # the best known is the largest known: larger may be better still
        return max(rows for rate, rows in rates if rate >= best * (1 - _WORTH_IT))

    def _find_knee(self, size: int) -> int:
        best, points = self.best_rows(size), self._points(size)
        best_s = _interpolated(points, best, extend=self._was_probed)
        if best_s is None:
            return best
        enough = KNEE_RATE * best / best_s
        below = 0
        for known_rows, known_s in points:
            if known_rows / known_s < enough:
                below = known_rows
                continue
            for rows in range(below + 1, min(known_rows, int(KNEE_ROWS * best)) + 1):
                seconds = _interpolated(points, rows, extend=self._was_probed)
                if seconds is not None and rows / seconds >= enough:
                    return rows
            return best
        return best


def _line_through(points: list[tuple[int, float]], max_rows: int) -> list[float]:
    """Seconds at 0…max_rows rows: lines between the points, in proportion beyond the last."""
    rows, seconds = points[0]
    line = [seconds] * (rows + 1)
    for next_rows, next_s in points[1:]:
        row_s = (next_s - seconds) / (next_rows - rows)
        line += [seconds + row_s * more for more in range(1, next_rows - rows + 1)]
        rows, seconds = next_rows, next_s
    line += [seconds * more / rows for more in range(rows + 1, max_rows + 1)]
    return line


def _fixed_s(points: list[tuple[int, float]]) -> float:
    """What a batch takes however few are in it: where the line through the ends meets no rows."""
    (first_rows, first_s), (last_rows, last_s) = points[0], points[-1]
    if first_rows == last_rows:
        return 0.0
    row_s = (last_s - first_s) / (last_rows - first_rows)
    return min(max(0.0, first_s - first_rows * row_s), first_s)


def _is_trusted(cell: _Cell) -> bool:
    return cell.samples >= TRUSTED_SAMPLES


def _interpolated(points: list[tuple[int, float]], rows: int, *, extend: bool) -> float | None:
    """Between known points a line; below the first, the first.

    Beyond the last: in proportion to the rows where the model was probed, otherwise unknown.
    """
    if not points:
        return None
    i = bisect.bisect_left(points, (rows, 0.0))
    if i == 0:
        return points[0][1]
    if i == len(points):
        last_rows, last = points[-1]
        return last * rows / last_rows if extend else None
    (r0, s0), (r1, s1) = points[i - 1], points[i]
    return s0 + (s1 - s0) * (rows - r0) / (r1 - r0)


def size_class(size: int) -> int:
    """Up to one of 16 steps an octave: as exact as matters, and few enough to remember."""
    shift = size.bit_length() - 5
    return size if shift <= 0 else -(-size >> shift) << shift


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
