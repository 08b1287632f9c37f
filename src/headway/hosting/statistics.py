"""A model's totals so far, in Triton's shape. Only sums: cheap to add to, and constant in size but
for the batch sizes seen."""

import asyncio
import math
import time
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from headway.errors import ModelFailed, Unavailable
from headway.runtime.events import BatchFinished, Event

Count = Annotated[int, Meta(ge=0)]


class Stat(TypedDict):
    count: Count
    ns: Count


class BatchStatistics(TypedDict):
    """The batches of one size."""

    batch_size: Count
    compute_input: Stat
    compute_infer: Stat
    compute_output: Stat


class TritonStatistics(TypedDict):
    """A model's statistics, under Triton's names. `/openapi.json` describes these types."""

    name: str
    version: str
    last_inference: Count  # milliseconds since 1970
    inference_count: Count
    execution_count: Count
    inference_stats: dict[str, Stat]
    response_stats: dict[str, Any]
    batch_stats: list[BatchStatistics]
    memory_usage: list[Any]


class ModelStatistics:
    """Owned by a served model, which records each request and, where it can, each batch."""

    __slots__ = (
        *("_batches", "_compute_ns", "_executions", "_fail_ns", "_fails", "_last_ns"),
        *("_last_ran_ns", "_queue_ns", "_rows", "_successes", "failures"),
    )

    def __init__(self) -> None:
        self._successes = self._fails = self._rows = self._executions = 0
        self._last_ns: int | None = None  # monotonic: the wall clock may jump
        self._queue_ns = self._compute_ns = self._fail_ns = 0
        self._last_ran_ns = 0
        self.failures: dict[str, int] = {}  # by Triton's reasons
        self._batches: dict[int, Stat] = {}  # as many as there are batch sizes

    def record(self, *, rows: int, queue_ns: int, compute_ns: int, ok: bool) -> None:
        """Count an answered request."""
        self._last_ns = time.monotonic_ns()
        if not ok:
            self._fails += 1
            self._fail_ns += queue_ns + compute_ns
            return
        self._successes += 1
        self._rows += rows
        self._queue_ns += queue_ns
        self._compute_ns += compute_ns

    def record_request(self, *, rows: int, seconds: float, error: BaseException | None) -> None:
        """Count an answered request whose total time alone is known: the time that its batch (the
        last one seen to finish) did not take counts as waiting."""
        if error is not None:
            reason = _reason_of(error)
            self.failures[reason] = self.failures.get(reason, 0) + 1
        total_ns = round(seconds * 1e9)
        compute_ns = min(total_ns, self._last_ran_ns)
        self.record(
            rows=rows, queue_ns=total_ns - compute_ns, compute_ns=compute_ns, ok=error is None
        )

    def observe(self, event: Event) -> None:
        """Count batches; to be passed to `Batcher.observe`."""
        if isinstance(event, BatchFinished):
            self._last_ran_ns = round(event.ran_s * 1e9)
            self.record_batch(rows=event.batch.rows, compute_ns=self._last_ran_ns)

    def record_batch(self, *, rows: int, compute_ns: int) -> None:
        self._executions += 1
        batch = self._batches.setdefault(rows, _stat())
        batch["count"] += 1
        batch["ns"] += compute_ns

    @property
    def idle_s(self) -> float:
        """Since the last request that was answered; infinite where there was none."""
        return math.inf if self._last_ns is None else (time.monotonic_ns() - self._last_ns) / 1e9

    def _last_ms(self) -> int:
        """The time of the last request by the present wall clock; 0: there was none."""
        if self._last_ns is None:
            return 0
        return (time.time_ns() - time.monotonic_ns() + self._last_ns) // 1_000_000

    def as_triton(self, name: str, version: str) -> TritonStatistics:
        """perf_analyzer reads every field unchecked: all there, whole, compute counts equal."""
        count = self._successes
        return {
            "name": name,
            "version": version,
            "last_inference": self._last_ms(),
            "inference_count": self._rows,
            # Without word of batches, a request is its own.
            "execution_count": self._executions or count,
            "inference_stats": {
                "success": _stat(count, self._queue_ns + self._compute_ns),
                "fail": _stat(self._fails, self._fail_ns),
                "queue": _stat(count, self._queue_ns),
                "compute_input": _stat(count),
                "compute_infer": _stat(count, self._compute_ns),
                "compute_output": _stat(count),
                "cache_hit": _stat(),
                "cache_miss": _stat(),
            },
            "response_stats": {},
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": _stat(batch["count"]),
                    "compute_infer": batch.copy(),
                    "compute_output": _stat(batch["count"]),
                }
                for rows, batch in sorted(self._batches.items())
            ],
            "memory_usage": [],
        }


def _reason_of(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "CANCELED"
    if isinstance(error, Unavailable):
        return "REJECTED"
    return "BACKEND" if isinstance(error, ModelFailed) else "OTHER"


def _stat(count: int = 0, ns: int = 0) -> Stat:
    return {"count": count, "ns": ns}
