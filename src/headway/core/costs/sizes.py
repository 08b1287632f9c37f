"""Derives from batch times the size with the best rate, and curves for planning.

Pure functions of measured points (rows, seconds), ascending in rows.
"""

import bisect
import math
from collections.abc import Sequence
from typing import Final

WORTH_IT = 0.03  # sizes whose rate is this close to the best count as equally good
_BATCH_SHARE = 1 / 3  # the part of a batch's fixed time that counts in a plan

Points = list[tuple[int, float]]


def best_rate(points: Points) -> float:
    """The most rows per second."""
    best = 0.0
    for rows, seconds in points:
        best = max(best, rows / seconds)
    return best


def best_of(points: Points, spread: float = 0.0) -> int:
    """The rows with the best rate; of nearly equal rates, the largest rows.

    A difference that probes cannot measure must not make batches smaller. Where the times of equal
    batches vary by `spread`, the best of many sizes would be the luckiest.
    """
    enough = best_rate(points) * (1 - max(WORTH_IT, spread / 2))
    return max([rows for rows, seconds in points if rows / seconds >= enough])


def line_through(points: Points, max_rows: int) -> list[float]:
    """Seconds at 0…max_rows rows: lines between the points, in proportion beyond the last."""
    rows, seconds = points[0]
    line = [seconds] * (rows + 1)
    for next_rows, next_s in points[1:]:
        row_s = (next_s - seconds) / (next_rows - rows)
        line += [seconds + row_s * more for more in range(1, next_rows - rows + 1)]
        rows, seconds = next_rows, next_s
    line += [seconds * more / rows for more in range(rows + 1, max_rows + 1)]
    return line[: max_rows + 1]


def planning_curve(
    points: Points, max_rows: int, batch_sizes: Sequence[int]
) -> tuple[list[float], list[int]]:
    """Two lists for planning, by rows: the time of a batch, and the rows with the best rate among
    all numbers up to that.

    With fixed batch sizes, the times are of the size that the model runs. Times of several rows
    are raised by `WORTH_IT`: if probes cannot measure a gain, items run alone. Only a part of the
    fixed time of a batch counts: an item that is left out now finds more items of its size in the
    next plan, so sharing a batch with much padding gains less than one plan shows. For the best
    rate the fixed time counts in full.
    """
    by_rows = line_through(points, max_rows)
    spared_s = (1.0 - _BATCH_SHARE) * _fixed_s(points)
    seconds, best, best_each_s = [0.0], [0], math.inf
    for rows in range(1, max_rows + 1):
        run_s = by_rows[_run_rows(rows, batch_sizes)]
        if rows > 1:
            run_s *= 1.0 + WORTH_IT
        seconds.append(run_s - spared_s)
        each_s = run_s / rows
        best.append(rows if each_s <= best_each_s else best[-1])
        best_each_s = min(best_each_s, each_s)
    return seconds, best


def _run_rows(rows: int, sizes: Sequence[int]) -> int:
    return sizes[min(bisect.bisect_left(sizes, rows), len(sizes) - 1)] if sizes else rows


def _fixed_s(points: Points) -> float:
    """The time of a batch independent of its rows: the line through both ends, at 0 rows."""
    (first_rows, first_s), (last_rows, last_s) = points[0], points[-1]
    if first_rows == last_rows:
        return 0.0
    row_s = (last_s - first_s) / (last_rows - first_rows)
    return min(max(0.0, first_s - first_rows * row_s), first_s)


def segments(points: Points, max_rows: int, *, extend: bool) -> list[float | None]:
    """Seconds at 0…max_rows rows, on lines between the points.

    Beyond the last point: in proportion to the rows if `extend`, otherwise unknown.
    """
    if not points:
        return [None] * (max_rows + 1)
    line: list[float | None] = [*line_through(points, max_rows)]
    if not extend:
        line[points[-1][0] + 1 :] = [None] * (max_rows - points[-1][0])
    return line


def size_class(size: int) -> int:
    """The size rounded up to one of 16 steps per octave, so that few curves are kept."""
    return _SIZE_CLASSES[size] if 0 <= size < _SMALL else _find_size_class(size)


def _find_size_class(size: int) -> int:
    shift = size.bit_length() - 5
    return size if shift <= 0 else -(-size >> shift) << shift


_SMALL: Final = 4096
_SIZE_CLASSES: Final = [_find_size_class(size) for size in range(_SMALL)]


def nearest(axis: Sequence[int], value: int) -> int:
    i = bisect.bisect_left(axis, value)
    if i == 0 or (i < len(axis) and axis[i] - value < value - axis[i - 1]):
        return i
    return i - 1
