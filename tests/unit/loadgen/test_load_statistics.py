"""What is made of samples: percentiles, rates, and whether to believe them."""

import math
from typing import Any

import numpy as np
import pytest

from headway.loadgen.room import ClientRoom
from headway.loadgen.samples import Samples, error_of
from headway.loadgen.statistics import (
    Window,
    closed_summary,
    drift,
    open_summary,
    percentile,
    quantile,
)

ROOM = ClientRoom(busy=0.1, waiting=0.0)


def samples(due: np.ndarray, took: np.ndarray, *, late: float = 0.0, room=ROOM, kind=None):
    order = np.argsort(due)
    kinds = np.zeros(len(due), np.uint8) if kind is None else kind
    return Samples(
        due_s=due[order],
        done_s=(due + took)[order],
        late_s=np.full(len(due), late),
        kind=kinds[order],
        kinds=("", "503 queue_full", "connection refused"),
        room=room,
    )


def steady(rate: float, seconds: float, took_s: float, **more):
    due = np.arange(0.0, seconds, 1.0 / rate)
    return samples(due, np.full(len(due), took_s), **more)


def test_a_steady_run_is_valid_and_has_its_rate_and_its_latency() -> None:
    summary = open_summary(steady(100, 11, 0.02), Window(1.0, 11.0, 0.03))
    assert summary.faults == ()
    assert summary.offered == summary.answered == 1000
    assert summary.answered_rps == pytest.approx(100, rel=0.01)
    assert summary.percentiles_s[99.0].value == pytest.approx(0.02)
    assert summary.in_flight == pytest.approx(2.0, abs=0.1)
    assert summary.good == 1.0


def test_a_server_that_does_less_than_is_due_is_saturated() -> None:
    due = np.arange(0.0, 11.0, 0.01)
    done = np.arange(1, len(due) + 1) / 80  # 80/s, in order
    summary = open_summary(samples(due, np.maximum(0.001, done - due)), Window(1.0, 11.0))
    assert summary.is_saturated
    assert summary.answered_rps == pytest.approx(80, rel=0.02)
    assert "80" in summary.faults[0]


def test_a_busy_queue_that_does_not_grow_is_not_saturated() -> None:
    rng = np.random.default_rng(1)
    due = np.cumsum(rng.exponential(0.01, 2000))
    end, took = 0.0, []
    for at in due:  # one server, 8.5 ms each: 85 % load
        end = max(end, at) + 0.0085
        took.append(end - at)
    summary = open_summary(samples(due, np.array(took)), Window(1.0, float(due[-1])))
    assert not summary.is_saturated
    assert summary.is_valid


def test_drift_is_the_growth_a_second_of_what_is_in_flight() -> None:
    due = np.arange(0.0, 10.0, 0.01)
    slope, error = drift(samples(due, np.full(len(due), math.inf)), Window(0.0, 10.0))
    assert slope == pytest.approx(100, rel=0.01)
    assert error < 1


def test_what_was_never_answered_lifts_the_percentiles() -> None:
    due = np.arange(0.0, 10.0, 0.01)
    took = np.full(len(due), 0.02)
    took[::20] = math.inf
    found = samples(due, took, kind=np.isinf(took).astype(np.uint8))
    summary = open_summary(found, Window(0.0, 10.0))
    assert summary.percentiles_s[90.0].value == pytest.approx(0.02)
    assert summary.percentiles_s[99.0].value == math.inf
    assert summary.failed == 50


def test_refused_requests_are_errors_by_kind_and_have_no_latency() -> None:
    due = np.arange(0.0, 10.0, 0.01)
    kind = np.zeros(len(due), np.uint8)
    kind[::4] = 1
    took = np.where(kind, 5.0, 0.02)
    summary = open_summary(samples(due, took, kind=kind), Window(0.0, 10.0))
    assert summary.errors == {"503 queue_full": 250}
    assert summary.max_s == pytest.approx(0.02)
    assert summary.error_share == 0.25


@pytest.mark.parametrize(
    ("late", "room", "fault"),
    [
        (0.005, ROOM, "late"),
        (0.0, ClientRoom(busy=0.95, waiting=0.0), "95% of a core"),
        (0.0, ClientRoom(busy=0.1, waiting=0.4), "waited for a CPU 40%"),
    ],
)
def test_a_client_without_room_makes_a_run_invalid(
    late: float, room: ClientRoom, fault: str
) -> None:
    summary = open_summary(steady(100, 10, 0.02, late=late, room=room), Window(0.0, 10.0))
    assert len(summary.faults) == 1
    assert fault in summary.faults[0]


def test_nothing_answered_is_no_measurement() -> None:
    due = np.arange(0.0, 2.0, 0.01)
    found = samples(due, np.full(len(due), 0.01), kind=np.ones(len(due), np.uint8))
    assert not open_summary(found, Window(0.0, 2.0)).is_valid
    assert not closed_summary(found, Window(0.0, 2.0)).is_valid


@pytest.mark.parametrize("summary", [open_summary, closed_summary])
def test_a_server_that_was_away_was_not_measured(summary: Any) -> None:
    due = np.arange(0.0, 10.0, 0.01)
    found = samples(due, np.full(len(due), 0.01), kind=(due >= 8).astype(np.uint8) * 2)
    told = summary(found, Window(0.0, 10.0))
    assert told.has_room
    [fault] = told.faults
    assert fault == f"the server was away: {told.failed} × connection refused"


def test_a_percentile_has_an_interval_once_there_are_enough_samples() -> None:
    rng = np.random.default_rng(0)
    few = rng.exponential(1.0, 100)
    assert math.isnan(percentile(few, np.linspace(0, 10, 100), 99).low)
    many = rng.exponential(1.0, 20_000)
    found = percentile(many, np.linspace(0, 20, 20_000), 99)
    assert found.low < -math.log(0.01) < found.high
    assert found.high - found.low < 0.6


def test_the_interval_of_alike_seconds_is_wider_than_that_of_alike_requests() -> None:
    """Every fifth second is bad: 20,000 requests are then only 20 samples."""
    begun = np.linspace(0, 20, 20_000, endpoint=False)
    latencies = np.where(begun.astype(int) % 5 == 0, 1.0, 0.1)
    found = percentile(latencies, begun, 75)
    assert (found.low, found.high) == (pytest.approx(0.1, rel=0.02), pytest.approx(1.0, rel=0.02))


def test_a_quantile_is_a_sample_even_where_that_is_infinite() -> None:
    assert quantile(np.array([1.0, 2.0, math.inf]), 50) == 2.0
    assert quantile(np.array([1.0, 2.0, math.inf]), 99) == math.inf
    assert math.isnan(quantile(np.array([]), 99))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b'HTTP/1.1 503 X\r\n\r\n{"error":"the queue is full"}', "503 the queue is full"),
        (b'HTTP/1.1 429 X\r\n\r\n{"error":{"code":"quota","message":"m"}}', "429 quota"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>", "502"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "another request's answer"),
        (b"\x16\x03\x01", "no HTTP"),
    ],
)
def test_an_error_is_known_by_its_status_and_its_code(answer: bytes, kind: str) -> None:
    assert error_of(answer) == kind
