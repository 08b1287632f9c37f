"""What measured batch times say: a formula, the best batch size, a table, a picture."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.core.costs import CostTable
from headway.lab.columns import aligned
from headway.lab.report import new_figure, save, use_plain_decades

_PAYS = 1.05  # times the rows a second that a larger batch must give


@dataclass(frozen=True, slots=True)
class FittedLine:
    """ALPHA for each call, BETA for each row (or for each unit of padded size)."""

    alpha_s: float
    beta_s: float
    worst_error: float  # the largest share by which it misses a measured cell


def median_of(tables: Sequence[CostTable]) -> CostTable:
    """Cell by cell, of the rounds that measured the same cells: one disturbed round is not
    believed."""
    shape = Counter((each.rows, each.sizes) for each in tables).most_common(1)[0][0]
    alike = [each for each in tables if (each.rows, each.sizes) == shape]
    seconds = tuple(
        tuple(statistics.median(each.seconds[i][j] for each in alike) for j in range(len(line)))
        for i, line in enumerate(alike[0].seconds)
    )
    spread = [
        float(np.std([each.seconds[i][j] for each in alike])) / max(seconds[i][j], 1e-9)
        for i, line in enumerate(seconds)
        for j in range(len(line))
    ]
    return CostTable(
        rows=shape[0],
        sizes=shape[1],
        seconds=seconds,
        memory_bytes=alike[-1].memory_bytes,
        errors=tuple(spread),
    )


def fitted(table: CostTable) -> FittedLine:
    """The line with the smallest relative errors."""
    sizes = np.array(table.sizes or (1,), float)
    work = (np.array(table.rows, float)[:, None] * sizes[None, :]).ravel()
    seconds = np.array(table.seconds).ravel()
    design = np.column_stack([np.ones_like(work), work]) / seconds[:, None]
    alpha, beta = np.linalg.lstsq(design, np.ones_like(seconds), rcond=None)[0].tolist()
    alpha, beta = max(0.0, alpha), max(0.0, beta)
    error = np.abs(alpha + beta * work - seconds) / seconds
    return FittedLine(alpha, beta, float(error.max()))


def best_rows(table: CostTable, column: int) -> int:
    """The batch size from which on larger ones gain less than 5 % in rows a second."""
    per_s = [rows / line[column] for rows, line in zip(table.rows, table.seconds, strict=True)]
    highest = max(per_s)
    return next(
        rows for rows, rate in zip(table.rows, per_s, strict=True) if rate * _PAYS >= highest
    )


def _still_rises(table: CostTable, column: int) -> bool:
    """Is the best size the largest that was timed? A larger one may be better."""
    return len(table.rows) > 1 and best_rows(table, column) == table.rows[-1]


def to_table(table: CostTable) -> str:
    """Milliseconds by rows and size; beside them what a larger batch gains."""
    sizes, middle = table.sizes, len(table.sizes or (1,)) // 2
    head = ["rows", *([f"ms at size {each}" for each in sizes] if sizes else ["ms"])]
    head += ["rows/s" + (f" at size {sizes[middle]}" if sizes else ""), "against one", "memory"]
    one, best = table.seconds[0][middle] / table.rows[0], best_rows(table, middle)
    lines = [head]
    for i, rows in enumerate(table.rows):
        per_s = rows / table.seconds[i][middle]
        memory = "–"
        if table.memory_bytes is not None:
            memory = f"{max(table.memory_bytes[i]) / 2**20:.1f} MiB"
        mark = ""
        if rows == best:
            why = "larger batches gain less than 5 %"
            mark = f"  ← best: {'of those timed' if _still_rises(table, middle) else why}"
        lines.append(
            [
                str(rows),
                *(f"{each * 1e3:.3g}" for each in table.seconds[i]),
                f"{per_s:.0f}",
                f"{per_s * one:.2f} ×",
                memory + mark,
            ]
        )
    return "\n".join(aligned(lines, (-1,)))


def told(table: CostTable) -> str:
    """In a sentence or two."""
    line, middle = fitted(table), len(table.sizes or (1,)) // 2
    unit = "row × size" if table.sizes else "row"
    best = best_rows(table, middle)
    advice = f"max_batch_size = {best} is enough for the highest throughput"
    if _still_rises(table, middle):
        advice = f"the rate still rises at {best} rows: --max-batch-size {2 * best} shows how far"
    return (
        f"about {line.alpha_s * 1e3:.3g} ms for a batch and {line.beta_s * 1e3:.3g} ms a {unit} "
        f"(off by up to {line.worst_error:.0%}); {advice}"
    )


def draw(table: CostTable, path: Path, *, title: str) -> None:
    """Batch time, and rows a second, over rows."""
    figure = new_figure(10, 4)
    times, rates = figure.subplots(1, 2)
    for column, size in enumerate(table.sizes or ("",)):
        seconds = np.array([line[column] for line in table.seconds])
        label = f"size {size}" if size else None
        times.plot(table.rows, seconds * 1e3, marker="o", markersize=3, label=label)
        [line] = rates.plot(table.rows, np.array(table.rows) / seconds, marker="o", markersize=3)
        rates.axvline(best_rows(table, column), color=line.get_color(), linewidth=0.6, ls="--")
    for axes in (times, rates):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("rows in a batch")
    use_plain_decades(times, "y")
    times.set_ylabel("ms")
    rates.set_ylabel("rows a second (dashed: the best size)")
    if table.sizes:
        times.legend(frameon=False)
    save(figure, path, title)
