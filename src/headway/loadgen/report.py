"""What a run of bench says: a table for people, JSON for programs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.lab.columns import aligned
from headway.loadgen.statistics import PERCENTILES, Summary
from headway.loadgen.tokens import TokenSummary

_SHOWN = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True)
class Point:
    """A load and its result."""

    label: str  # `poisson 200/s`, `8 connections`
    rate_rps: float | None
    connections: int | None
    summary: Summary
    url: str = ""


def table(points: Sequence[Point], slo_s: float | None) -> str:
    """A row for each point, and below it what is to be known about it."""
    header = ["load", "answers/s", "errors", "mean ms", "p50", "p90", "p99 (95 % interval)", "max"]
    header += [] if slo_s is None else [f"≤{slo_s * 1e3:g} ms"]
    rows = [[*_cells(point), *_good(point.summary, slo_s)] for point in points]
    return "\n".join([*aligned([header, *rows]), "", *_notes(points)])


def _cells(point: Point) -> list[str]:
    summary = point.summary
    cells = [point.label, f"{summary.answered_rps:.1f}", f"{summary.error_share:.2%}"]
    if summary.is_saturated or math.isnan(summary.mean_s):  # how long one measured, no more
        return [*cells, *["–"] * 5]
    p50, p90, p99 = (summary.percentiles_s[each] for each in _SHOWN)
    tail = _ms(p99.value)
    if not math.isnan(p99.low):
        tail += f" ({_ms(p99.low)} to {_ms(p99.high)})"
    return [
        *cells,
        *[_ms(each) for each in (summary.mean_s, p50.value, p90.value)],
        *[tail, _ms(summary.max_s)],
    ]


def _good(summary: Summary, slo_s: float | None) -> list[str]:
    return [] if slo_s is None else [f"{summary.good or 0.0:.1%}"]


def _ms(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "never" if seconds > 0 else "–"
    ms = seconds * 1e3
    return f"{ms:.3g}" if ms < 100 else f"{ms:.0f}"


def _notes(points: Sequence[Point]) -> list[str]:
    lines = [*_token_rows(points)]
    for point in points:
        summary = point.summary
        for kind, times in list(summary.errors.items())[:5]:
            lines.append(f"{point.label}: {times} × {kind}")
        lines += [f"{point.label}: not valid: {fault}" for fault in summary.faults]
    if all(point.summary.is_valid for point in points):
        busy = max(point.summary.busy for point in points)
        late_ms = max(point.summary.late_p99_s for point in points) * 1e3
        held, late = "", ""
        if any(point.rate_rps is not None for point in points):
            held = "the server kept up with the rate, "
            late = f", 99 % of the requests left at most {late_ms:.2g} ms late"
        lines.append(f"valid: {held}the client had room (at most {busy:.0%} of a core{late})")
    return lines


def _token_rows(points: Sequence[Point]) -> list[str]:
    """A table of their own, where answers are streams of tokens."""
    head = ["load", "tokens/s", "first ms p50", "first p99", "between p50", "between p99"]
    rows: list[list[str]] = []
    for point in points:
        tokens = point.summary.tokens
        if tokens is None:
            continue
        times = (tokens.first_p50_s, tokens.first_p99_s, tokens.gap_p50_s, tokens.gap_p99_s)
        cells = [*map(_ms, times)] if not point.summary.is_saturated else ["–"] * 4
        good = [] if tokens.good_rps is None else [f"{tokens.good_rps:.1f}"]
        head += ["good/s"] * (len(good) and not rows)
        rows.append([point.label, f"{tokens.per_s:.1f}", *cells, *good])
    return [*aligned([head, *rows]), ""] if rows else []


def to_json(point: Point) -> dict[str, Any]:
    summary = point.summary
    percentiles = {f"p{each:g}": _figures(summary.percentiles_s[each]) for each in PERCENTILES}
    return {
        "load": point.label,
        "url": point.url,
        "rate_rps": point.rate_rps,
        "connections": point.connections,
        "seconds": round(summary.seconds, 3),
        "offered": summary.offered,
        "offered_rps": round(summary.offered_rps, 3),
        "answered": summary.answered,
        "answered_rps": round(summary.answered_rps, 3),
        "errors": summary.errors,
        "mean_in_flight": round(summary.in_flight, 2),
        "latency_ms": {
            "mean": _number(summary.mean_s * 1e3),
            **percentiles,
            "max": _number(summary.max_s * 1e3),
        },
        "good_share": summary.good,
        "tokens": None if summary.tokens is None else _token_figures(summary.tokens),
        "client": {
            "busy_share": round(summary.busy, 4),
            "waiting_for_cpu_share": round(summary.waiting, 4),
            "late_p99_ms": round(summary.late_p99_s * 1e3, 4),
        },
        "saturated": summary.is_saturated,
        "valid": summary.is_valid,
        "faults": list(summary.faults),
    }


def _token_figures(tokens: TokenSummary) -> dict[str, float | None]:
    return {
        "per_s": _number(tokens.per_s),
        "first_p50_ms": _number(tokens.first_p50_s * 1e3),
        "first_p99_ms": _number(tokens.first_p99_s * 1e3),
        "between_p50_ms": _number(tokens.gap_p50_s * 1e3),
        "between_p99_ms": _number(tokens.gap_p99_s * 1e3),
        "good_rps": None if tokens.good_rps is None else _number(tokens.good_rps),
    }


def _figures(interval: Any) -> dict[str, float | None]:
    return {
        "value": _number(interval.value * 1e3),
        "low": _number(interval.low * 1e3),
        "high": _number(interval.high * 1e3),
    }


def _number(value: float) -> float | None:
    """JSON knows no infinity; what is never answered has no latency."""
    return round(value, 4) if math.isfinite(value) else None
