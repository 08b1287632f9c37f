"""Results as JSON, as a table and as plots. It does not know how they were computed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from headway.core.items import FireReason
from headway.errors import ConfigError
from headway.lab.columns import aligned
from headway.lab.simulate import Outcome, percentile_s

if TYPE_CHECKING:  # plotting is an extra
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C510A")
_ORACLE_COLOUR = "#333333"
_BINS = 240  # of a plot over time, for the whole run


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """One policy at one load."""

    policy: str  # as the user named it
    config: str  # the policy that ran, with its settings, as a user would type it
    load: float | None  # offered, as a share of capacity; None in a closed loop
    rate_rps: float | None
    slo_s: float | None
    outcome: Outcome
    compose: str | None = None  # if lengths differ
    others: tuple[Outcome, ...] = ()  # of other seeds
    tenants: Mapping[str, "TenantFigures"] = field(default_factory=dict)  # empty: all of one

    def to_json(self) -> dict[str, object]:
        outcome = self.outcome
        answered = len(outcome.answered_s)
        offered = len(outcome.latencies_s)
        percentiles = {
            f"p{percent}_ms": number(outcome.percentile_s(percent) * 1e3)
            for percent in (50, 95, 99)
        }
        return {
            "policy": self.policy,
            "config": self.config,
            "compose": self.compose,
            "load": number(self.load),
            "rate_rps": number(self.rate_rps),
            "mean_ms": number(outcome.mean_s * 1e3),
            **percentiles,
            "mean_batch": number(outcome.mean_batch),
            "throughput_rps": number(outcome.throughput_rps),
            "goodput_rps": number(outcome.goodput_rps(self.slo_s)),
            "slo_attainment": number(outcome.within(self.slo_s) / offered if offered else None),
            "padding_waste": number(outcome.padding_waste),
            "long_p99_ms": number(outcome.long_p99_s * 1e3),
            "longest_ms": number(outcome.percentile_s(100) * 1e3),
            **_spread(self),
            "answered": answered,
            "dropped": outcome.dropped,
            "batch_cap": number(outcome.mean_batch_cap),
            "linger_cap_ms": number(outcome.mean_linger_cap_s * 1e3),
            "fire_reasons": {reason.value: n for reason, n in outcome.fire_reasons.items()},
            **({"tenants": self._tenants()} if self.tenants else {}),
        }

    def _tenants(self) -> dict[str, dict[str, float | None]]:
        return {
            name: {
                "offered": each.offered,
                "answered": each.answered,
                "mean_ms": number(each.mean_s * 1e3),
                "p99_ms": number(each.p99_s * 1e3),
            }
            for name, each in self.tenants.items()
        }


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """What became of one tenant's items."""

    offered: int
    answered: int
    mean_s: float
    p99_s: float


def by_tenant(outcome: Outcome, owners: Sequence[str] | None) -> dict[str, TenantFigures]:
    """`owners`: the tenant of each item, in the order of arrival."""
    if owners is None:
        return {}
    names = np.array(owners[: len(outcome.latencies_s)])
    found = {}
    for name in sorted(set(owners)):
        own = outcome.latencies_s[names == name]
        answered = own[~np.isnan(own)]
        mean = float(answered.mean()) if len(answered) else math.nan
        figures = TenantFigures(len(own), len(answered), mean, percentile_s(answered, 99))
        found[name] = figures
    return found


def over_seeds(by_seed: Sequence[Sequence[Result]]) -> list[Result]:
    """The results of the first seed, with the outcomes of the other seeds in `others`."""
    first, *rest = by_seed
    return [
        replace(result, others=tuple(results[at].outcome for results in rest))
        for at, result in enumerate(first)
    ]


def _spread(result: Result) -> dict[str, object]:
    if not result.others:
        return {}
    outcomes = (result.outcome, *result.others)
    means = [outcome.mean_s * 1e3 for outcome in outcomes]
    p99s = [outcome.percentile_s(99) * 1e3 for outcome in outcomes]
    return {
        "seeds": len(outcomes),
        "mean_ms_over_seeds": [
            number(each) for each in (min(means), float(np.mean(means)), max(means))
        ],
        "p99_ms_over_seeds": [
            number(each) for each in (min(p99s), float(np.mean(p99s)), max(p99s))
        ],
    }


def _range(values: Sequence[float]) -> str:
    return f"{short(float(np.mean(values)))} ({short(min(values))} to {short(max(values))})"


def number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return None if value is None or not math.isfinite(value) else round(value, 6)


# ---- text


def to_tenants_table(results: Sequence[Result]) -> str:
    """A row for each tenant of each result; empty if there are none."""
    rows = [["load", "policy", "tenant", "mean ms", "p99", "offered", "answered"]]
    for result in results:
        load = "-" if result.load is None else f"{result.load:.3g}"
        for name, each in result.tenants.items():
            times = [short(each.mean_s * 1e3), short(each.p99_s * 1e3)]
            rows.append([load, result.policy, name, *times, str(each.offered), str(each.answered)])
    return "\n".join(aligned(rows, (1, 2))) if len(rows) > 1 else ""


def to_table(results: Sequence[Result]) -> str:
    """Aligned columns; a blank line between loads."""
    has_slo = any(result.slo_s is not None for result in results)
    has_lengths = any(result.compose is not None for result in results)
    has_seeds = any(result.others for result in results)
    header = ["load", "policy", "mean ms", "p50", "p95", "p99", "longest", "batch", "answers/s"]
    header += ["mean over seeds", "p99 over seeds"] if has_seeds else []
    header += ["long p99", "padding"] if has_lengths else []
    header += ["in SLO/s"] if has_slo else []
    header += ["dropped", "batches left because"]
    rows = [_row(result, has_slo=has_slo, has_lengths=has_lengths) for result in results]
    lines = aligned([header, *rows], (1, -1))
    for at in range(len(results) - 1, 0, -1):
        if results[at].load != results[at - 1].load:
            lines.insert(at + 1, "")
    return "\n".join(lines)


def _row(result: Result, *, has_slo: bool, has_lengths: bool) -> list[str]:
    outcome = result.outcome
    name = result.policy if result.config == result.policy else f"{result.policy} = {result.config}"
    lengths = []
    if has_lengths:
        name = f"{name}, {result.compose}"
        lengths = [short(outcome.long_p99_s * 1e3), f"{outcome.padding_waste:.1%}"]
    times = (outcome.mean_s, *(outcome.percentile_s(percent) for percent in (50, 95, 99, 100)))
    outcomes = (outcome, *result.others)
    seeds = [
        _range([each.mean_s * 1e3 for each in outcomes]),
        _range([each.percentile_s(99) * 1e3 for each in outcomes]),
    ]
    return [
        "-" if result.load is None else f"{result.load:.3g}",
        name,
        *(short(seconds * 1e3) for seconds in times),
        short(outcome.mean_batch),
        short(outcome.throughput_rps),
        *(seeds if result.others else []),
        *lengths,
        *([short(outcome.goodput_rps(result.slo_s))] if has_slo else []),
        str(outcome.dropped),
        _shares(outcome.fire_reasons)
        + ("stuck: no batch is ever full" if outcome.is_stuck else ""),
    ]


def short(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _shares(reasons: dict[FireReason, int]) -> str:
    total = sum(reasons.values())
    shares = [(reason.value, 100 * count / total) for reason, count in reasons.items()]
    return ", ".join(f"{name} {share:.0f}%" for name, share in shares if share >= 0.5)


# ---- pictures


def check_plot(path: Path) -> None:
    """Raise ConfigError for an unsupported file type, before the work begins."""
    supported = new_figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in supported:
        raise ConfigError(f"{path}: not a picture; end it with .png, .svg or .pdf")
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is not a directory")


def plot_loads(results: Sequence[Result], path: Path, *, title: str) -> None:
    """Latency against load, p99 and mean, the policies side by side."""
    figure = new_figure(11, 4.8)
    tail, mean = figure.subplots(1, 2)
    for axes, name, percent in ((tail, "p99", 99), (mean, "mean", None)):
        for i, policy in enumerate(_policies(results)):
            points = [result for result in results if result.policy == policy]
            seconds = [
                result.outcome.mean_s if percent is None else result.outcome.percentile_s(percent)
                for result in points
            ]
            loads = [math.nan if result.load is None else result.load for result in points]
            axes.plot(
                loads, np.multiply(seconds, 1e3), marker="o", markersize=4, **_line(policy, i)
            )
        _mark_slo(axes, results, is_vertical=False)
        axes.set(title=f"{name} latency", xlabel="load (share of capacity)", ylabel="ms")
        use_plain_decades(axes, "y")
        axes.set_xlim(left=0)
    _legend(mean)
    save(figure, path, title)


def plot_point(results: Sequence[Result], path: Path, *, title: str) -> None:
    """One load: how the latencies are spread, and how the first recorded policy adapted."""
    recorded = next((result for result in results if result.outcome.fired), None)
    figure = new_figure(12 if recorded else 8, 6)
    grid = figure.add_gridspec(4, 2 if recorded else 1, width_ratios=[1, 1.2] if recorded else [1])
    _draw_distribution(figure.add_subplot(grid[:, 0]), results)
    if recorded:
        panels = [figure.add_subplot(grid[i, 1]) for i in range(4)]
        _draw_adaptation(panels, recorded.outcome)
        panels[0].set_title(f"{recorded.policy}, over time")
    save(figure, path, title)


def plot_adaptation(outcome: Outcome, path: Path, *, title: str) -> None:
    """Offered rate, batch size and cap, linger and cap, and queue, over time. Needs a record."""
    figure = new_figure(10, 7)
    panels = figure.subplots(4, 1)
    _draw_adaptation(list(panels), outcome)
    save(figure, path, title)


def _draw_distribution(axes: "Axes", results: Sequence[Result]) -> None:
    shares = np.linspace(0, 100, 1001)
    for i, result in enumerate(results):
        answered = result.outcome.answered_s
        if not len(answered):
            continue
        style = _line(result.policy, i)
        axes.plot(np.percentile(answered, shares) * 1e3, shares, **style)
        axes.plot(result.outcome.percentile_s(99) * 1e3, 99, "o", color=style["color"], ms=5)
    _mark_slo(axes, results, is_vertical=True)
    axes.set(title="latency (dots: p99)", xlabel="ms", ylabel="% answered within", ylim=(0, 101))
    use_plain_decades(axes, "x")
    _legend(axes)


def _draw_adaptation(panels: Sequence["Axes"], outcome: Outcome) -> None:
    fired = outcome.fired
    assert fired, "simulate(record=True) keeps what this picture shows"
    at = np.array([batch.fired_at for batch in fired])
    start = float(outcome.arrived_at[0])
    edges = np.linspace(start, max(float(at[-1]), start + 1e-6), _BINS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    blue, orange = _COLOURS[0], _COLOURS[1]

    def draw(axes: "Axes", values: Iterable[float], name: str, colour: str, **style: Any) -> None:
        axes.plot(middles, _binned(at, values, edges), label=name, color=colour, **style)

    offered, _ = np.histogram(outcome.arrived_at, edges)
    panels[0].plot(middles, offered / np.diff(edges), color=_ORACLE_COLOUR)
    draw(panels[1], (batch.batch_cap for batch in fired), "cap", orange, linestyle="--")
    draw(panels[1], (batch.rows for batch in fired), "mean rows", blue)
    draw(panels[2], (batch.linger_cap_s * 1e3 for batch in fired), "cap", orange, linestyle="--")
    draw(panels[2], (batch.lingered_s * 1e3 for batch in fired), "mean", blue)
    draw(panels[3], (float(batch.queued_rows) for batch in fired), "left behind", blue)
    names = ("offered/s", "batch rows", "linger ms", "queued rows")
    for axes, name in zip(panels, names, strict=True):
        axes.set_ylabel(name)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, axes.get_ylim()[1] * 1.3)  # room for the legend
        axes.tick_params(labelbottom=axes is panels[-1])
    for axes in panels[1:3]:
        axes.legend(frameon=False, loc="upper right", fontsize="small", ncols=2, borderpad=0)
    panels[-1].set_xlabel("seconds")


def _binned(
    at: NDArray[np.float64], values: Iterable[float], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The mean of the values in each bin; in a bin without values, the last known mean."""
    bins = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, len(edges) - 2)
    finite = np.nan_to_num(np.fromiter(values, float), posinf=0.0)
    sums = np.bincount(bins, finite, len(edges) - 1)
    counts = np.bincount(bins, minlength=len(edges) - 1)
    known = np.maximum.accumulate(np.where(counts > 0, np.arange(len(counts)), 0))
    return sums[known] / np.maximum(counts[known], 1)


def _policies(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.policy for result in results))


def _line(policy: str, i: int) -> dict[str, Any]:
    """The line's style: ours is broad, so that it is visible under equal curves of others."""
    if policy == "oracle":
        return {"label": policy, "color": _ORACLE_COLOUR, "linestyle": "--", "linewidth": 1.4}
    width = 4.0 if policy == "auto" else 1.6
    return {"label": policy, "color": _COLOURS[i % len(_COLOURS)], "linewidth": width}


def _mark_slo(axes: "Axes", results: Sequence[Result], *, is_vertical: bool) -> None:
    slo_s = results[0].slo_s
    if slo_s is not None:
        mark = axes.axvline if is_vertical else axes.axhline
        mark(slo_s * 1e3, color="#999999", linewidth=1, linestyle=":", label="SLO")


def _legend(axes: "Axes") -> None:
    axes.legend(frameon=False)


def use_plain_decades(axes: "Axes", name: Literal["x", "y"]) -> None:
    """A logarithmic axis that says 20, not 2 × 10¹."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set(**{f"{name}scale": "log"})
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def new_figure(width: float, height: float) -> "Figure":
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib: pip install 'headway[plots]'") from error
    figure = Figure(figsize=(width, height), layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    return figure


def save(figure: "Figure", path: Path, title: str) -> None:
    figure.suptitle(title, fontsize="medium")
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error
