"""How long a batch takes, by its rows and the size it is padded to.

The table comes from probes at warm-up, and observed batches refine it. A cell that was never run
stays unknown, and an unknown cost never justifies a refusal. Batch time need not be a line: whether
one more row pays is read from the table, not assumed. If items do not vary in size, every number of
rows that is served gets a cell of its own, so steps between the probed sizes are found.
"""

import bisect
import itertools
from collections import deque
from collections.abc import Sequence

from headway.core.costs.cells import TRUSTED_SAMPLES, Cell
from headway.core.costs.probing import probe_rows
from headway.core.costs.sizes import (
    WORTH_IT,
    Points,
    best_of,
    best_rate,
    nearest,
    planning_curve,
    segments,
    size_class,
)
from headway.core.costs.table import CostTable

_PROBED_SAMPLES = 50  # a probe counts as this many observations
_SCALE_RATE = 0.05  # the weight of the newest observation in the scale of all times
_OUTLIER = 2.0  # one observation is clipped to this factor of the prediction
_REBUILD_EVERY = 32  # observations between two rebuilds of the fast lookup, …
_REDRAW_EVERY = 256  # … and of the curves for planning, of which there are many
# The sizes of the table if nothing was probed but items differ in size.
_DEFAULT_SIZES = tuple(2**power for power in range(4, 21))
_MOST_CELLS = 256  # row counts with a cell of their own; also the number of kept errors
_USUAL = 85.0  # slower batches than this percentile are stragglers
_TRIAL_SHARE = 0.005  # the largest share of the running time that trials may waste


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
        self._rows = self._batch_sizes or tuple(probe_rows(max_rows, coarse=True))
        self._sizes: tuple[int, ...] | None = None
        self._was_probed = False
        self._cells: dict[tuple[int, int], Cell] = {}  # by rows, and by index into sizes
        # Relative errors of recent predictions; in order, once they are asked for.
        self._errors: deque[float] = deque(maxlen=_MOST_CELLS)
        self._ordered: list[float] = []
        self._observed = 0
        self.version = 0  # grows whenever the curves derived from the cells are discarded
        self._scale = 1.0  # the factor between present times and the cells, for all sizes
        self._curve_by_size: dict[int, list[float | None]] = {}
        self._points_by_size: dict[int, Points] = {}
        self._best: dict[int, int] = {}
        self._peaks: dict[int, list[int]] = {}
        self._full_rows: dict[int, float | None] = {}
        self._trial: tuple[int, int] | None = None  # the cell that is timed again, if one is
        self._best_but_trial: dict[int, int] = {}  # by size class
        self._trials_failed = 0  # in a row: each delays the next trial
        self._ran_s = 0.0  # the running time since the last trial
        self._curves: dict[int, tuple[list[float], list[int]]] = {}
        if table:
            self.adopt(table)

    def adopt(self, table: CostTable) -> None:
        """Start from this table, and forget earlier observations."""
        beyond = (rows for rows in probe_rows(self._max_rows, coarse=True) if rows > table.rows[-1])
        self._rows, self._sizes = (*table.rows, *beyond), table.sizes
        self._was_probed = True
        self._errors = deque(table.errors, maxlen=_MOST_CELLS)
        self._cells = {
            (table.rows[i], j): Cell(seconds, _PROBED_SAMPLES, self._observed)
            for i, row in enumerate(table.seconds)
            for j, seconds in enumerate(row)
        }
        self._scale = 1.0
        self._curves.clear()
        self._forget_derived()

    def predict(self, rows: int, size: int = 0) -> float | None:
        """Expected seconds for a batch of `rows` padded to `size`; None: unknown."""
        curve = self._by_rows(size)
        seconds = curve[rows if rows < len(curve) else -1]
        if seconds is None:
            return None
        if rows >= len(curve):
            seconds *= rows / self._max_rows  # one request larger than any batch
        return seconds * self._scale

    def full_row_s(self, size: int = 0) -> float | None:
        """The least seconds that a row takes: its share of a full batch of rows of that size."""
        size = size_class(size)
        if size not in self._full_rows:
            points = self._points(size)
            fitting = [each for each in points if each[0] <= self._max_rows] or points
            best = best_of(fitting) if fitting else 0
            self._full_rows[size] = dict(fitting)[best] / best if best else None
        row_s = self._full_rows[size]
        return None if row_s is None else row_s * self._scale

    def by_rows(self, size: int = 0) -> tuple[list[float | None], float]:
        """The seconds of `predict` at 0…max_rows rows, and a factor to multiply each with."""
        return self._by_rows(size), self._scale

    def by_items(self, most: int, size: int, item_rows: float) -> list[float]:
        """The seconds of batches of 0…`most` items of `item_rows` rows each; it ends before the
        first that is unknown."""
        by_rows, seconds = self._by_rows(size), [0.0]
        for items in range(1, most + 1):
            batch_s = by_rows[min(self._max_rows, round(items * item_rows))]
            if batch_s is None:
                break
            seconds.append(batch_s * self._scale)
        return seconds

    def error_at(self, percent: float) -> float:
        """The relative error of predictions at that percentile; 0 while too little is known.

        It is 0.1 if a batch took 10 % longer than predicted.
        """
        ordered = self._ordered
        if not ordered:
            ordered = self._ordered = sorted(self._errors)
        if len(ordered) < 2:
            return 0.0
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    def spread(self, percent: float) -> float:
        """How much longer than usual a batch takes at that percentile: 0.1 is 10 %."""
        return max(0.0, self.error_at(percent) - self.error_at(50.0))

    def margin_s(self, rows: int, size: int = 0) -> float:
        """The seconds to add so that a prediction holds at the configured percentile."""
        return self.spread(self._percentile) * (self.predict(rows, size) or 0.0)

    def best_rows(self, size: int = 0) -> int:
        """The batch size with the most rows per second; larger ones do not pay.

        For one batch at a time, it may be a larger size that was not timed for long, to time it
        again: a table that was measured on a busy machine must not stay wrong for ever.
        """
        if size:
            size = size_class(size)
        best = self._best.get(size)
        if best is None:
            best = self._best[size] = self._find_best(size)
        return best

    def paying_rows(self, waiting: int, size: int = 0) -> int:
        """How many of `waiting` rows to put in one batch for the best rate.

        A partly filled tile is left out if it clearly lowers the rate. If half of the rows have the
        same rate, only half are put in the batch, because they are answered sooner.
        """
        best = self.best_rows(size)
        if self._trial is not None and waiting < best:  # too few for the size that is tried
            best = self._best_but_trial.get(size_class(size) if size else 0, best)
        most = min(waiting, best)
        by_rows = self._by_rows(size)
        all_s = by_rows[most]
        if all_s is None or self._trial is not None:
            return most
        peaks = self._peaks_at(size_class(size))
        at = bisect.bisect_right(peaks, most)
        full = peaks[at - 1] if at else most
        if most * (by_rows[full] or 0.0) < full * all_s * (1 - WORTH_IT):
            return full
        part = most
        while part > 1:
            half = -(-part // 2)
            half_s = by_rows[half]
            if half_s is None or half * all_s < most * half_s * (1 - WORTH_IT):
                break
            part = half
        return part

    def _peaks_at(self, size: int) -> list[int]:
        """Sizes at which one more row clearly lowers the rate: full tiles, and the best size."""
        peaks = self._peaks.get(size)
        if peaks is None:
            points = self._points(size)
            peaks = self._peaks[size] = [
                rows
                for (rows, seconds), (more, more_s) in itertools.pairwise(points)
                if rows <= self._max_rows and more / more_s < (1 - WORTH_IT) * rows / seconds
            ]
        return peaks

    def planning_curve(self, size: int) -> tuple[list[float], list[int]] | None:
        """See `sizes.planning_curve`. None: unknown."""
        size = size_class(size)
        curve = self._curves.get(size)
        if curve is None:
            points = self._points(size)
            if not points:
                return None
            curve = planning_curve(points, self._max_rows, self._batch_sizes)
            self._curves[size] = curve
        return curve

    def observe(self, rows: int, size: int, seconds: float) -> None:
        """Learn that a batch of `rows` padded to `size` took `seconds`."""
        if seconds <= 0:
            return
        if size and self._sizes is None and not self._was_probed:
            # Items have sizes after all: cells kept without one would count as the smallest size's.
            self._sizes = _DEFAULT_SIZES
            self._cells.clear()
            self._curves.clear()
            self._forget_derived()
        predicted, ratio, learned_s = self.predict(rows, size), 1.0, seconds
        cell_rows, size_index = self._cell_rows_for(rows, predicted), self._size_index(size)
        is_trial = (cell_rows, size_index) == self._trial
        if predicted is not None:
            ratio = seconds / predicted
            self._errors.append(ratio - 1.0)
            least = 0.0 if is_trial else 1 / _OUTLIER  # a trial is to show how fast it can be
            ratio = min(max(ratio, least), _OUTLIER)
            learned_s = ratio * predicted
        if is_trial:
            self._end_trial(cell_rows, size_index, learned_s)
        else:
            # A machine that slows down is slow at every size. If only the size in use were
            # corrected, other sizes would look better than they are, and be chosen instead.
            self._scale *= 1.0 + _SCALE_RATE * (ratio - 1.0)
            self._refine(cell_rows, size_index, rows, size, learned_s, predicted)
        self._ran_s += learned_s
        self._observed += 1
        is_news = is_trial or self._cells[cell_rows, size_index].samples == TRUSTED_SAMPLES
        if is_news or self._observed % _REDRAW_EVERY == 0:
            self._curves.clear()
        if is_news or self._observed % _REBUILD_EVERY == 0:
            self._forget_derived()

    def _refine(
        self,
        cell_rows: int,
        size_index: int,
        rows: int,
        size: int,
        seconds: float,
        predicted: float | None,
    ) -> None:
        cell_s = seconds / self._scale
        if predicted is not None and (size or rows != cell_rows):
            cell_size = self._sizes[size_index] if self._sizes else 0
            there_s = self.predict(min(cell_rows, self._max_rows), cell_size)
            if there_s is not None:
                cell_s *= there_s / predicted
        cell = self._cells.get((cell_rows, size_index))
        if cell is None:
            known, samples = cell_s, 0
            if predicted is not None and cell_rows == rows:  # between two known cells
                known, samples = predicted / self._scale, TRUSTED_SAMPLES
            cell = self._cells[cell_rows, size_index] = Cell(known, samples, 0)
        cell.refine(cell_s)
        cell.seen_at = self._observed

    def _end_trial(self, cell_rows: int, size_index: int, seconds: float) -> None:
        cell = self._cells[cell_rows, size_index]
        self._trials_failed = 0 if seconds < cell.seconds * self._scale else self._trials_failed + 1
        cell.try_again(seconds / self._scale)
        cell.seen_at = self._observed
        self._trial, self._ran_s = None, 0.0

    def _forget_derived(self) -> None:
        self.version += 1
        self._curve_by_size.clear()
        self._points_by_size.clear()
        self._best.clear()
        self._peaks.clear()
        self._full_rows.clear()
        self._ordered = []

    # ---- the grid

    def _cell_rows_for(self, rows: int, predicted: float | None) -> int:
        """The rows of the cell to refine: the nearest; or `rows`, which get a cell of their own if
        items are alike."""
        axis = self._rows
        i = nearest(axis, rows)
        if axis[i] == rows or self._sizes is not None or self._batch_sizes or predicted is None:
            return axis[i]
        if rows > self._max_rows or len(axis) >= _MOST_CELLS:
            return axis[i]
        at = bisect.bisect_left(axis, rows)
        self._rows = (*axis[:at], rows, *axis[at:])
        return rows

    def _size_index(self, size: int) -> int:
        return nearest(self._sizes, size) if self._sizes else 0

    def _by_rows(self, size: int) -> list[float | None]:
        """Seconds at 0…max_rows rows, before scaling; kept until the cells change."""
        size = size_class(size)
        curve = self._curve_by_size.get(size)
        if curve is None:
            curve = segments(self._points(size), self._max_rows, extend=self._was_probed)
            self._curve_by_size[size] = curve
        return curve

    def _points(self, size: int) -> Points:
        """The known times at that size, by rows; kept until the cells change."""
        size = size_class(size)
        points = self._points_by_size.get(size)
        if points is None:
            points = [
                (rows, seconds)
                for rows in self._rows
                if (seconds := self._at_size(rows, size)) is not None
            ]
            self._points_by_size[size] = points
        return points

    def _at_size(self, rows: int, size: int) -> float | None:
        sizes = self._sizes
        if sizes is None:
            return self._trusted(rows, 0)
        j = bisect.bisect_left(sizes, size)
        if j == 0:
            return self._trusted(rows, 0)
        if j == len(sizes):
            last = self._trusted(rows, j - 1)
            return None if last is None else last * size / sizes[-1]
        low, high = self._trusted(rows, j - 1), self._trusted(rows, j)
        if low is None or high is None:
            return high if low is None else low
        return low + (high - low) * (size - sizes[j - 1]) / (sizes[j] - sizes[j - 1])

    def _trusted(self, rows: int, j: int) -> float | None:
        cell = self._cells.get((rows, j))
        return cell.seconds if cell and cell.is_trusted else None

    def _find_best(self, size: int) -> int:
        points = self._points(size)
        if self._batch_sizes or (points and points[-1][0] > self._max_rows):
            allowed = self._batch_sizes
            points = [
                (rows, seconds)
                for rows, seconds in points
                if rows <= self._max_rows and (not allowed or rows in allowed)
            ]
        if not points:
            return self._max_rows
        last, last_s = points[-1]
        if last / last_s >= best_rate(points) and last < self._max_rows:
            return self._max_rows  # the largest known size is the best: a larger one may be better
        best_rows = best_of(points, self.spread(_USUAL))
        self._best_but_trial[size] = best_rows
        return self._to_try_again(points, best_rows, size) or best_rows

    def _to_try_again(self, points: Points, best_rows: int, size: int) -> int | None:
        """The larger size that was timed longest ago, if it may be timed again now."""
        j = self._size_index(size)
        if self._trial is not None:
            return self._trial[0] if self._trial[1] == j and self._trial[0] > best_rows else None
        best_s = dict(points)[best_rows]
        larger = [
            (self._cells[rows, j].seen_at, rows, seconds)
            for rows, seconds in points
            if rows > best_rows and (rows, j) in self._cells
        ]
        if not larger:
            return None
        seen_at, rows, seconds = min(larger)
        if self._observed - seen_at < _REDRAW_EVERY:
            return None
        lost_s = (seconds - rows * best_s / best_rows) * self._scale
        if lost_s * 2**self._trials_failed > _TRIAL_SHARE * self._ran_s:
            return None
        self._trial = rows, j
        return rows
