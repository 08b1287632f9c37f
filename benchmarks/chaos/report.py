"""A run in words and tables."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.chaos.accounting import ANSWERED, LEFT, OVERLOAD, Entry
from benchmarks.chaos.recovery import Recovery
from benchmarks.chaos.resources import Trend
from benchmarks.chaos.run import Run
from benchmarks.chaos.scenario import RATES

Row = Sequence[object]
BUSY_S = 0.1


def lines_of(run: Run) -> Iterator[str]:
    plan, ledger = run.plan, run.ledger
    yield (
        f"seed {plan.seed}: {len(plan.requests)} requests, {len(plan.faults)} faults in "
        f"{plan.seconds:g} s; three times the load from {plan.surge[0]:g} s to {plan.surge[1]:g} s"
    )
    yield ""
    yield from _table(
        [
            "model",
            "sent",
            "answered",
            "refused",
            "failed by kind",
            "left",
            "restarts",
            "p50/p99",
        ],
        [
            _model_row(model, [e for e in ledger.entries.values() if e.request.model == model], run)
            for model in RATES
        ],
    )
    counts = ledger.counts()
    yield ""
    yield f"every request, exactly once: {ledger.sent_count} sent = " + " + ".join(
        f"{count} {outcome}" for outcome, count in counts.most_common()
    )
    yield f"answers to the wrong caller: {len(ledger.crossed)}; with two outcomes: " + (
        f"{len(ledger.doubles)}; without: {ledger.sent_count - len(ledger.entries)}"
    )
    late = sorted(ledger.sent_late_s)
    yield f"sent later than due: {_percentile_ms(late, 50)} ms (p50), {_percentile_ms(late, 99)} ms"
    if late and late[len(late) * 99 // 100] > BUSY_S:
        yield "the machine is too busy: the load itself is late, so times mean little"
    yield ""
    yield from _table(
        [
            "fault",
            "on",
            "times",
            "to full rate: median",
            "longest",
            "slowest answer",
            "refused",
        ],
        list(_recovery_rows(run.recoveries)),
    )
    yield "(from the fault to the first of 0.25 s of requests that are all answered as promptly as"
    yield "before; in the surge a model that is overloaded is not at its full rate, faults or not)"
    if run.trends:
        yield ""
        yield from _table(
            ["held", "first third", "last third", "highest", "per hour", "flat"],
            [_trend_row(trend) for trend in run.trends],
        )
    yield ""
    if unexpected := ledger.unexpected():
        yield from _table(
            ["model", "behaviour", "ended as", "times", "the server's words"],
            [[*key[:3], count, key[3]] for key, count in unexpected.most_common(20)],
        )
        yield ""
    yield from (f"not done: {each}" for each in run.missed)
    for each in run.broken:
        yield f"BROKEN: {each.count} {each.what}; the first: {each.example}"
    yield "broken invariants: " + (str(len(run.broken)) if run.broken else "none")


def _model_row(model: str, entries: list[Entry], run: Run) -> Row:
    counts = Counter(entry.outcome for entry in entries)
    failed = {k: n for k, n in counts.items() if k not in {ANSWERED, LEFT, *OVERLOAD}}
    latencies = sorted(entry.latency_s for entry in entries if entry.outcome == ANSWERED)
    return [
        model,
        len(entries),
        counts[ANSWERED],
        sum(counts[kind] for kind in OVERLOAD),
        ", ".join(f"{n} {kind}" for kind, n in sorted(failed.items())) or "none",
        counts[LEFT],
        run.restarts.get(model, 0),
        f"{_percentile_ms(latencies, 50)} / {_percentile_ms(latencies, 99)} ms",
    ]


def _percentile_ms(latencies: Sequence[float], percentile: int) -> str:
    if not latencies:
        return "-"
    return f"{latencies[(len(latencies) - 1) * percentile // 100] * 1e3:.0f}"


def _recovery_rows(recoveries: Iterable[Recovery]) -> Iterator[Row]:
    by_kind: dict[tuple[str, str], list[Recovery]] = {}
    for each in recoveries:
        by_kind.setdefault((each.fault.kind, each.fault.model), []).append(each)
    for (kind, model), found in sorted(by_kind.items()):
        times = sorted(float("inf") if r.full_rate_s is None else r.full_rate_s for r in found)
        yield [
            kind,
            model,
            len(found),
            _seconds(statistics.median(times)),
            _seconds(times[-1]),
            _seconds(max(each.slowest_s for each in found)),
            sum(each.refused for each in found),
        ]


def _seconds(value: float) -> str:
    return "not before the next" if value == float("inf") else f"{value:.2f} s"


def _trend_row(trend: Trend) -> Row:
    unit = f" {trend.measure.unit}".rstrip()
    return [
        trend.measure.name,
        f"{trend.first:.1f}{unit}",
        f"{trend.last:.1f}{unit}",
        f"{trend.highest:.1f}{unit}",
        f"{trend.per_hour:+.1f}{unit}",
        "yes" if trend.is_flat else "NO",
    ]


def _table(header: Row, rows: Sequence[Row]) -> Iterator[str]:
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
