"""Points of load as a picture: latency and answers over what was offered."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headway.lab.report import new_figure, save, use_plain_decades
from headway.loadgen.report import Point


def draw(points: Sequence[Point], path: Path, *, title: str) -> None:
    """Points of one kind: rates, or connections. Saturated ones have no latency."""
    figure = new_figure(10, 4.2)
    times, answers = figure.subplots(1, 2)
    ordered = sorted(points, key=_load)
    loads = [_load(each) for each in ordered]
    for percent, style in ((50.0, "-"), (90.0, "--"), (99.0, "-")):
        found = [each.summary.percentiles_s[percent] for each in ordered]
        values = [
            math.nan if each.summary.is_saturated else interval.value * 1e3
            for each, interval in zip(ordered, found, strict=True)
        ]
        [line] = times.plot(loads, values, style, marker="o", markersize=3, label=f"p{percent:g}")
        low, high = (
            np.array([getattr(interval, end) * 1e3 for interval in found])
            for end in ("low", "high")
        )
        shown = np.isfinite(low) & np.isfinite(high) & np.isfinite(values)
        times.fill_between(
            loads, low, high, where=shown.tolist(), color=line.get_color(), alpha=0.15, linewidth=0
        )
    use_plain_decades(times, "y")
    times.set_ylabel("ms, from when a request was due (95 %)")
    times.legend(frameon=False)
    answers.plot(loads, [each.summary.answered_rps for each in ordered], marker="o", markersize=3)
    if points[0].rate_rps is not None:
        answers.plot(loads, loads, color="#bbbbbb", linewidth=0.8, label="offered")
        answers.legend(frameon=False)
    answers.set_ylabel("answers a second")
    for axes in (times, answers):
        axes.set_xlabel("requests a second" if points[0].rate_rps is not None else "connections")
    save(figure, path, title)


def _load(point: Point) -> float:
    return float(point.rate_rps if point.rate_rps is not None else point.connections or 0)
