"""What `/metrics` says, read as a person reads it: counters as rates, buckets as percentiles.

Pure: two pages of text in, figures out.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

_SERIES = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# The label that divides a family; over others (priority) it is summed.
_DIVIDES = ("le", "reason", "state", "outcome")

LATENCY = "headway_item_end_to_end_seconds"
FIRST_TOKEN = "headway_time_to_first_token_seconds"
Samples = Mapping[str, float]  # by "name", or by "name|value of the label that divides it"


@dataclass(frozen=True, slots=True)
class Reading:
    """One page, read at a moment."""

    at: float
    server: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    models: dict[str, dict[str, float]] = field(default_factory=dict)  # by "name version"


def read(text: str, at: float) -> Reading:
    """Raises ValueError."""
    reading = Reading(at)
    for line in text.splitlines():
        found = None if line.startswith("#") else _SERIES.fullmatch(line)
        if found is None or not found[1].startswith(("headway_", "process_")):
            continue
        labels = dict(_LABEL.findall(found[2] or ""))
        key = found[1]
        for label in _DIVIDES:
            if label in labels:
                key = f"{key}|{labels[label]}"
                break
        samples = reading.server
        if "model" in labels:
            owner = f"{labels['model']} {labels.get('version', '')}".strip()
            samples = reading.models.setdefault(owner, defaultdict(float))
        float(labels.get("le", "inf"))
        samples[key] += float(found[3])
    return reading


@dataclass(frozen=True, slots=True)
class Span:
    """What happened to a model between two readings."""

    now: Samples
    before: Samples
    seconds: float

    def gauge(self, name: str) -> float | None:
        return self.now.get(name)

    def count(self, name: str) -> float:
        return max(0.0, self.now.get(name, 0.0) - self.before.get(name, 0.0))

    def rate(self, name: str) -> float:
        return self.count(name) / self.seconds

    def divided(self, name: str) -> dict[str, float]:
        begin = f"{name}|"
        return {key[len(begin) :]: self.count(key) for key in self.now if key.startswith(begin)}

    def total(self, name: str) -> float:
        return sum(self.divided(name).values())

    def mean(self, name: str) -> float | None:
        count = self.count(f"{name}_count")
        return self.count(f"{name}_sum") / count if count else None

    def quantile(self, share: float, name: str) -> float | None:
        """As Prometheus' `histogram_quantile` has it; None: nothing happened."""
        divided = self.divided(f"{name}_bucket")
        buckets = sorted((float(edge), count) for edge, count in divided.items())
        rank = share * buckets[-1][1] if buckets else 0.0
        if not rank:
            return None
        lower = below = 0.0
        for edge, count in buckets:
            if count >= rank:
                if math.isinf(edge):
                    return lower
                return lower + (edge - lower) * (rank - below) / ((count - below) or 1.0)
            lower, below = edge, count
        return lower


def spans_of(now: Reading, before: Reading) -> dict[str, Span]:
    """By model. A counter that fell is another process's: `before` counts as nothing then."""
    start = "process_start_time_seconds"
    is_new = now.server.get(start) != before.server.get(start)
    earlier = {} if is_new else before.models
    seconds = max(1e-9, now.at - before.at)
    return {
        name: Span(samples, earlier.get(name, {}), seconds)
        for name, samples in sorted(now.models.items())
    }
