"""Triton's `nv_inference_*` counters, from what a server counts of its requests.

They agree with `/v2/models/stats`: both are read from the same figures.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from headway.observe import families
from headway.observe.exposition import Exposition, MetricFamily

REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
_DURATIONS: dict[str, MetricFamily] = {
    "success": families.NV_REQUEST_US,
    "queue": families.NV_QUEUE_US,
    "compute_input": families.NV_INPUT_US,
    "compute_infer": families.NV_INFER_US,
    "compute_output": families.NV_OUTPUT_US,
}


class RequestFigures(Protocol):
    """The outcomes of one model's requests."""

    @property
    def failures(self) -> Mapping[str, int]:
        """Counts by Triton's reasons."""

    def as_triton(self, name: str, version: str) -> Mapping[str, Any]: ...


class TritonCounters:
    """The sum of several figures: a model that is loaded again goes on counting."""

    def __init__(self, *sums: "TritonCounters | RequestFigures") -> None:
        self._counts: Counter[MetricFamily] = Counter()
        self._failures: Counter[str] = Counter()
        for each in sums:
            self.add(each)

    def add(self, other: "TritonCounters | RequestFigures") -> None:
        if isinstance(other, TritonCounters):
            self._counts.update(other._counts)
            self._failures.update(other._failures)
            return
        figures = other.as_triton("", "")
        stats = figures["inference_stats"]
        self._failures.update(other.failures)
        self._counts.update(
            {
                families.NV_SUCCESS: stats["success"]["count"],
                families.NV_COUNT: figures["inference_count"],
                families.NV_EXECUTIONS: figures["execution_count"],
                **{family: stats[name]["ns"] for name, family in _DURATIONS.items()},
            }
        )

    def add_to(self, page: Exposition, where: str) -> None:
        for family, value in self._counts.items():
            is_duration = family.name.endswith("_us")
            page.add(family, where, value // 1000 if is_duration else value)
        for reason in REASONS:
            page.add(families.NV_FAILURE, f'{where},reason="{reason}"', self._failures[reason])
