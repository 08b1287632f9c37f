"""perf_analyzer reads statistics without checking: every field there, whole, counts equal."""

import math
import time
from typing import Any

import pytest

from headway.core.items import Batch, FireReason, Item
from headway.errors import ModelFailed
from headway.events import BatchFinished, Refused
from headway.hosting.statistics import ModelStatistics

COMPUTE = ("compute_input", "compute_infer", "compute_output")


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in leaves(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in leaves(each)]
    return [value]


def test_a_wall_clock_that_jumps_ages_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = ModelStatistics()
    assert statistics.idle_s == math.inf
    statistics.record(rows=1, queue_ns=1, compute_ns=1, ok=True)
    before = statistics.as_triton("m", "1")["last_inference"]
    right, jump = time.time_ns, 86_400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: right() + jump)
    assert 0.0 <= statistics.idle_s < 3600.0
    assert statistics.as_triton("m", "1")["last_inference"] >= before + jump // 10**6 - 1000


def test_all_numbers_are_whole_and_compute_counts_equal() -> None:
    statistics = ModelStatistics()
    statistics.record(rows=2, queue_ns=100, compute_ns=50, ok=True)
    statistics.record(rows=1, queue_ns=10, compute_ns=5, ok=True)
    statistics.record(rows=9, queue_ns=7, compute_ns=0, ok=False)
    statistics.record_batch(rows=3, compute_ns=50)
    found = statistics.as_triton("m", "1")
    assert (found["inference_count"], found["execution_count"]) == (3, 1)
    stats = found["inference_stats"]
    assert stats["success"] == {"count": 2, "ns": 165}
    assert stats["fail"] == {"count": 1, "ns": 7}
    assert stats["queue"] == {"count": 2, "ns": 110}
    assert {stats[name]["count"] for name in COMPUTE} == {2}
    (batch,) = found["batch_stats"]
    assert batch["batch_size"] == 3
    assert {batch[name]["count"] for name in COMPUTE} == {1}
    del found["name"], found["version"]
    assert all(type(leaf) is int and leaf >= 0 for leaf in leaves(found))


def test_a_request_of_known_whole_time_waited_what_its_batch_did_not_take() -> None:
    statistics = ModelStatistics()
    batch = Batch(
        id=1,
        items=(Item(1, arrived_at=0.0),),
        rows=1,
        size=0,
        padded_rows=1,
        reason=FireReason.FULL,
        fired_at=0.5,
        idle_since=0.5,
        batch_cap=1,
        linger_cap_s=0.0,
        predicted_s=None,
    )
    statistics.observe(Refused("m", "shed", "no"))
    statistics.observe(BatchFinished("m", batch, finished_at=0.75, ran_s=0.25, reruns=0, failed=0))
    statistics.record_request(rows=1, seconds=1.0, error=None)
    statistics.record_request(rows=1, seconds=1.0, error=ModelFailed("no"))
    found = statistics.as_triton("m", "1")
    assert found["execution_count"] == 1
    assert found["inference_stats"]["queue"] == {"count": 1, "ns": 750_000_000}
    assert found["inference_stats"]["compute_infer"] == {"count": 1, "ns": 250_000_000}
    assert found["inference_stats"]["fail"]["count"] == 1


def test_without_word_of_batches_each_request_is_its_own() -> None:
    statistics = ModelStatistics()
    statistics.record(rows=2, queue_ns=0, compute_ns=0, ok=True)
    assert statistics.as_triton("m", "1")["execution_count"] == 1
