"""Which settings suit a model and its traffic: many are simulated, the best of them again."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.policy import Firing
from headway.lab.report import new_figure, save, use_plain_decades
from headway.lab.simulate import Outcome, Scenario, simulate

_WINDOWS_MS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_FINALISTS = 6
_SHOWN = 10  # times the best p99: what is slower is not in the picture


@dataclass(frozen=True, slots=True)
class TunedSetting:
    """What a server can be told about batches."""

    max_batch_size: int
    window_ms: float | None = None  # None: the policy auto

    def __str__(self) -> str:
        policy = "auto" if self.window_ms is None else f"window of {self.window_ms:g} ms"
        return f"{policy}, ≤ {self.max_batch_size} rows"

    def as_flags(self) -> list[str]:
        """For `headway serve`."""
        flags = ["--max-batch-size", str(self.max_batch_size)]
        if self.window_ms is not None:
            flags += ["--policy", "window", "--max-wait-ms", f"{self.window_ms:g}"]
        return flags

    def as_toml(self) -> list[str]:
        lines = [f"max_batch_size = {self.max_batch_size}"]
        if self.window_ms is not None:
            lines += ['policy = "window"', f"max_wait_ms = {self.window_ms:g}"]
        return lines


@dataclass(frozen=True, slots=True)
class Scored:
    """A setting and what the simulator says of it."""

    setting: TunedSetting
    lost: float  # the share that was refused, or never answered
    p99_s: float
    mean_s: float

    @property
    def rank(self) -> tuple[float, float, float]:
        return (round(self.lost, 4), self.p99_s, self.mean_s)


def grid(largest: int) -> Iterator[TunedSetting]:
    """`auto` and windows, at every batch size up to `largest`."""
    sizes = sorted({each for each in _SIZES if each < largest} | {largest})
    for size in sizes:
        yield TunedSetting(size)
        for window_ms in _WINDOWS_MS:
            if size > 1:
                yield TunedSetting(size, window_ms)


def scored(setting: TunedSetting, scenarios: Sequence[Scenario]) -> Scored:
    """By the mean over several samples of the same traffic."""
    outcomes = [_outcome(setting, each) for each in scenarios]
    offered = sum(each.requests for each in scenarios)
    answered = sum(len(each.answered_s) for each in outcomes)
    return Scored(
        setting,
        lost=1.0 - answered / offered,
        p99_s=_mean([each.percentile_s(99) for each in outcomes]),
        mean_s=_mean([each.mean_s for each in outcomes]),
    )


def best_of(
    largest: int,
    quick: Sequence[Scenario],
    thorough: Sequence[Scenario],
    on_scored: Callable[[Scored], object] = lambda _: None,
) -> list[Scored]:
    """The finalists, the best first. All settings meet the same arrivals."""
    first = []
    for setting in grid(largest):
        first.append(scored(setting, quick))
        on_scored(first[-1])
    first.sort(key=lambda each: each.rank)
    again = []
    for each in first[:_FINALISTS]:
        again.append(scored(each.setting, thorough))
    return sorted(again, key=lambda each: each.rank)


def highest_rate(holds: Callable[[float], bool], first_rps: float) -> float:
    """The highest rate that holds, within 3 %; 0 where not even a hundredth of the first does."""
    low, high = 0.0, first_rps
    while holds(high):
        low, high = high, 2 * high
        if high > 64 * first_rps:
            return low
    while high > max(1.03 * low, 0.01 * first_rps):
        middle = math.sqrt(low * high) if low else high / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def draw(
    tried: Sequence[Scored],
    live_s: Mapping[str, tuple[TunedSetting, float]],
    path: Path,
    title: str,
) -> None:
    """The simulated p99 of all settings, and what was measured of some, by what each is called."""
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    for window_ms in (None, *_WINDOWS_MS):
        found = [each for each in tried if each.setting.window_ms == window_ms]
        name = "auto" if window_ms is None else f"window of {window_ms:g} ms"
        axes.plot(
            [each.setting.max_batch_size for each in found],
            [each.p99_s * 1e3 for each in found],
            linewidth=2.4 if window_ms is None else 0.9,
            label=name,
        )
    for marker, (name, (setting, p99_s)) in zip("*P", live_s.items(), strict=False):
        at = [setting.max_batch_size], [p99_s * 1e3]
        axes.plot(*at, marker, color="black", markersize=10, label=f"{name}, measured: {setting}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    use_plain_decades(axes, "y")
    shown_s = [
        _SHOWN * min(each.p99_s for each in tried),
        *(2 * p99_s for _, p99_s in live_s.values()),
    ]
    axes.set_ylim(top=1e3 * max(shown_s))
    axes.set_xlabel("max_batch_size")
    axes.set_ylabel("p99, ms, simulated")
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(figure, path, title)


def _outcome(setting: TunedSetting, scenario: Scenario) -> Outcome:
    if setting.window_ms is None:
        policy = scenario.policy(Firing.AUTO, max_rows=setting.max_batch_size)
    else:
        policy = scenario.policy(
            Firing.WINDOW, max_wait_s=setting.window_ms / 1e3, max_rows=setting.max_batch_size
        )
    return simulate(scenario, policy)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
