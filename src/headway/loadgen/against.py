"""Two servers under the same load, in turns: what else the machine does meets both."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headway.loadgen.report import Point
from headway.loadgen.statistics import Summary

_T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
_FIGURES: dict[str, Callable[[Summary], float]] = {
    "answers/s": lambda summary: summary.answered_rps,
    "mean": lambda summary: summary.mean_s,
    "p50": lambda summary: summary.percentiles_s[50.0].value,
    "p99": lambda summary: summary.percentiles_s[99.0].value,
}


@dataclass(frozen=True, slots=True)
class Ratio:
    """The second server's figure over the first's, and where it lies with 95 % certainty."""

    name: str
    value: float
    low: float
    high: float

    @property
    def is_a_difference(self) -> bool:
        return not self.low <= 1.0 <= self.high


def in_turns(
    ours: Callable[[int], Point], theirs: Callable[[int], Point], rounds: int
) -> tuple[list[Point], list[Point]]:
    """Each server in each round, with the same arrivals; who is first changes."""
    first: list[Point] = []
    second: list[Point] = []
    for number in range(rounds):
        order = [(ours, first), (theirs, second)]
        for measure, points in order if number % 2 == 0 else reversed(order):
            points.append(measure(number))
    return first, second


def ratios(first: Sequence[Point], second: Sequence[Point]) -> list[Ratio]:
    """By the geometric mean over the rounds, each of which compares the two."""
    found = []
    for name, figure in _FIGURES.items():
        pairs = [
            (figure(one.summary), figure(other.summary))
            for one, other in zip(first, second, strict=True)
        ]
        logs = np.log([b / a for a, b in pairs if 0 < a < math.inf and 0 < b < math.inf])
        if len(logs) < 2:
            continue
        half = _T_95.get(len(logs), 2.0) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
        mean = float(logs.mean())
        found.append(Ratio(name, math.exp(mean), math.exp(mean - half), math.exp(mean + half)))
    return found


def told(found: Sequence[Ratio], first: str, second: str) -> str:
    """A line for each figure."""
    lines = [f"{second} compared with {first}:"]
    for each in found:
        verdict = "" if each.is_a_difference else ", no difference that shows"
        interval = f"{each.low:.3f} to {each.high:.3f}"
        lines.append(f"  {each.name:<9}  × {each.value:.3f} ({interval}){verdict}")
    return "\n".join(lines)
