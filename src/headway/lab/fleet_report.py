"""Fleets compared: as JSON, as a table, and as pictures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.lab.columns import aligned
from headway.lab.fleet import FleetOutcome
from headway.lab.report import new_figure, number, save, short

_BINS = 200


@dataclass(frozen=True, slots=True, eq=False)
class FleetResult:
    """One policy and one route at one load."""

    policy: str
    route: str
    load: float | None
    slo_s: float | None
    outcome: FleetOutcome

    @property
    def name(self) -> str:
        return f"{self.policy}, {self.route}"

    def to_json(self) -> dict[str, object]:
        outcome = self.outcome
        return {
            "policy": self.policy,
            "route": self.route,
            "load": number(self.load),
            "mean_ms": number(outcome.mean_s * 1e3),
            **{f"p{each}_ms": number(outcome.percentile_s(each) * 1e3) for each in (50, 95, 99)},
            "longest_ms": number(outcome.percentile_s(100) * 1e3),
            "mean_batch": number(outcome.mean_batch),
            "slo_attainment": number(outcome.within(self.slo_s) / max(1, len(outcome.latencies_s))),
            "answered": len(outcome.answered_s),
            "dropped": outcome.dropped,
            "sent_again": outcome.retried,
            "shares": [number(each) for each in outcome.shares],
            "replica_seconds": number(outcome.replica_seconds),
            "most_replicas": max(count for _, count in outcome.replicas),
            "replicas": [[number(at), count] for at, count in outcome.replicas],
        }


def to_table(results: Sequence[FleetResult]) -> str:
    header = ["load", "policy, route", "mean ms", "p50", "p95", "p99", "longest", "batch"]
    header += ["least share", "replicas", "dropped", "sent again"]
    rows = [header, *(_row(each) for each in results)]
    lines = aligned(rows, (1,))
    for at in range(len(rows) - 1, 1, -1):
        if rows[at][0] != rows[at - 1][0]:
            lines.insert(at, "")
    return "\n".join(lines)


def _row(result: FleetResult) -> list[str]:
    outcome = result.outcome
    times = (outcome.mean_s, *(outcome.percentile_s(each) for each in (50, 95, 99, 100)))
    return [
        "-" if result.load is None else f"{result.load:.3g}",
        result.name,
        *(short(each * 1e3) for each in times),
        short(outcome.mean_batch),
        f"{min(outcome.shares):.1%}",
        short(outcome.replica_seconds / outcome.span_s if outcome.span_s else math.nan),
        str(outcome.dropped),
        str(outcome.retried),
    ]


def plot(results: Sequence[FleetResult], path: Path, *, title: str) -> None:
    """p99 latency, offered load and the number of replicas over time, one line a result."""
    figure = new_figure(10, 6.5)
    tail, offered, replicas = figure.subplots(3, 1, sharex=True)
    for result in results:
        outcome = result.outcome
        label = result.name if result.load is None else f"{result.name}, load {result.load:.3g}"
        edges = np.linspace(0.0, outcome.span_s, _BINS + 1)
        at = np.clip(np.searchsorted(edges, outcome.arrived_at, side="right") - 1, 0, _BINS - 1)
        p99_ms = []
        for bin_ in range(_BINS):
            latencies_s = outcome.latencies_s[at == bin_]
            latencies_s = latencies_s[~np.isnan(latencies_s)]
            p99_ms.append(np.percentile(latencies_s, 99) * 1e3 if len(latencies_s) else math.nan)
        tail.plot(edges[:-1], p99_ms, label=label, linewidth=1.2)
        per_s = np.bincount(at, minlength=_BINS) / (edges[1] - edges[0])
        offered.plot(edges[:-1], per_s, linewidth=1.0, color="#888888")
        steps = [*outcome.replicas, (outcome.span_s, outcome.replicas[-1][1])]
        times, counts = zip(*steps, strict=True)
        replicas.step(times, counts, where="post", linewidth=1.2)
    if results[0].slo_s is not None:
        tail.axhline(results[0].slo_s * 1e3, color="#999999", linewidth=1, linestyle=":")
    tail.set_ylabel("p99, ms")
    tail.set_yscale("log")
    tail.legend(frameon=False, fontsize="small")
    offered.set_ylabel("offered/s")
    replicas.set_ylabel("replicas")
    replicas.set_ylim(bottom=0)
    replicas.set_xlabel("seconds")
    save(figure, path, title)
