"""Prometheus' text format and OpenMetrics, written by hand: a page of samples, by family.

Sample lines are the same in both. What differs is the head of each family: OpenMetrics names a
counter without its `_total`, and has no counters whose names do not end in it (Triton's do not).
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, TypeAlias

from headway.observe.histogram import Bounds, Histogram

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class MetricFamily(NamedTuple):
    """A metric: its name, what it is and which labels its samples have."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def labels(names: Sequence[str], values: Sequence[str]) -> str:
    """The text between the braces."""
    pairs = zip(names, values, strict=True)
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def wants_openmetrics(accept: str) -> bool:
    return "application/openmetrics-text" in accept


def histogram_starts(family: MetricFamily, labels: str, bounds: Bounds) -> tuple[str, ...]:
    """The lines of a histogram, but for their values."""
    name = family.name
    buckets = (f'{name}_bucket{{{labels},le="{le}"}} ' for le in bounds.labels)
    return (*buckets, f"{name}_sum{{{labels}}} ", f"{name}_count{{{labels}}} ")


class Exposition:
    """Collects samples from one model after the other, and writes them out family by family."""

    def __init__(
        self, shows: Callable[[str], bool] = lambda model: True, *, shows_all: bool = True
    ) -> None:
        """`shows`: whether the reader may see the model of that name; `shows_all`: and sums over
        all models."""
        self.shows, self.shows_all = shows, shows_all
        self._lines: dict[MetricFamily, list[str]] = {}

    def add(self, family: MetricFamily, labels: str, value: float) -> None:
        braces = f"{{{labels}}}" if labels else ""
        self._of(family).append(f"{family.name}{braces} {value!r}")

    def add_histogram(
        self, family: MetricFamily, starts: Sequence[str], histogram: Histogram
    ) -> None:
        """`starts`: of its lines, from `histogram_starts`; made once, they are most of the work."""
        values: list[float] = list(accumulate(histogram.counts))
        values += (histogram.sum, values[-1])
        lines = self._of(family)
        lines += [f"{start}{value!r}" for start, value in zip(starts, values, strict=True)]

    def _of(self, family: MetricFamily) -> list[str]:
        lines = self._lines.get(family)
        if lines is None:
            lines = self._lines[family] = []
        return lines

    def text(self, *, openmetrics: bool = False) -> str:
        written: list[str] = []
        for family, lines in self._lines.items():
            name, kind = family.name, str(family.kind)
            if openmetrics and kind == "counter":
                if name.endswith("_total"):
                    name = name.removesuffix("_total")
                else:
                    kind = "unknown"
            written += (f"# HELP {name} {family.help}", f"# TYPE {name} {kind}", *lines)
        if openmetrics:
            written.append("# EOF")
        return "\n".join(written) + "\n"
