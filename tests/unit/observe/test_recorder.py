"""What is recorded of a batch agrees with what its event says of each item."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.items import Batch, FireReason, Item, Priority
from headway.events import (
    BatchFinished,
    BatchLost,
    BatchStarted,
    Cancelled,
    Crashed,
    OutOfMemory,
    Refused,
)
from headway.observe.histogram import Histogram
from headway.observe.recorder import MetricsRecorder


def batch_of(items: list[Item], *, idle_since: float, fired_at: float, **more: object) -> Batch:
    rows = sum(item.rows for item in items)
    fields = {
        "id": 1,
        "items": tuple(items),
        "rows": rows,
        "size": max(item.size for item in items),
        "padded_rows": rows,
        "reason": FireReason.IDLE,
        "fired_at": fired_at,
        "idle_since": idle_since,
        "batch_cap": 64,
        "linger_cap_s": 0.002,
        "predicted_s": None,
        **more,
    }
    return Batch(**fields)  # type: ignore[arg-type]


def finished(batch: Batch, *, ran_s: float = 0.010, failed: int = 0) -> BatchFinished:
    return BatchFinished("m", batch, batch.fired_at + ran_s, ran_s, 0, failed)


def recorder(slo_s: float | None = None, tenants: tuple[str, ...] = ()) -> MetricsRecorder:
    made = MetricsRecorder()
    made.configure(slo_s=slo_s, tenants=tenants, workers=1)
    return made


def count(histogram: Histogram) -> int:
    return sum(histogram.counts)


ticks = st.integers(0, 2**12).map(lambda each: each / 1024)


@given(
    arrivals=st.lists(ticks, min_size=1, max_size=20),
    priorities=st.lists(st.sampled_from(Priority), min_size=20, max_size=20),
    idle_after=ticks,
    lingered=ticks,
)
def test_times_add_up_to_what_the_event_says_of_each_item(
    arrivals: list[float], priorities: list[Priority], idle_after: float, lingered: float
) -> None:
    fired_at = max(arrivals) + lingered
    idle_since = min(min(arrivals) + idle_after, fired_at)
    items = [
        Item(number, arrival, priority=priority)
        for number, (arrival, priority) in enumerate(zip(arrivals, priorities, strict=False))
    ]
    event = finished(batch_of(items, idle_since=idle_since, fired_at=fired_at))
    recorded = recorder()
    recorded.observe(event)
    for priority in Priority:
        mine = [
            times
            for item, times in zip(items, event.items, strict=True)
            if item.priority is priority
        ]
        times = recorded.times[priority]
        if times is None:
            assert not mine
            continue
        assert times.queued.sum == pytest.approx(sum(each.queued_s for each in mine))
        assert times.lingered.sum == pytest.approx(sum(each.lingered_s for each in mine))
        assert times.executed.sum == pytest.approx(sum(each.ran_s for each in mine))
        assert times.end_to_end.sum == pytest.approx(
            sum(each.queued_s + each.lingered_s + each.ran_s for each in mine)
        )
        for histogram in (times.queued, times.lingered, times.executed, times.end_to_end):
            assert count(histogram) == len(mine)


def test_rows_are_told_by_why_the_batch_left() -> None:
    recorded = recorder()
    for rows, reason in ((1, FireReason.IDLE), (3, FireReason.FULL), (4, FireReason.FULL)):
        batch = batch_of([Item(1, 0.0, rows=rows)], idle_since=1, fired_at=1, reason=reason)
        recorded.observe(finished(batch))
    assert {reason: each.sum for reason, each in recorded.batch_rows.items()} == {
        FireReason.IDLE: 1,
        FireReason.FULL: 7,
    }


def test_padding_is_a_share_of_the_batch() -> None:
    recorded = recorder()
    items = [Item(1, 0.0, size=1), Item(2, 0.0, size=4)]
    recorded.observe(finished(batch_of(items, idle_since=0, fired_at=0)))
    fixed = batch_of([Item(3, 0.0, rows=3)], idle_since=0, fired_at=0, padded_rows=4)
    recorded.observe(finished(fixed))
    assert recorded.padding.sum == pytest.approx(3 / 8 + 1 / 4)


def test_the_latency_goal_is_met_missed_or_refused() -> None:
    recorded = recorder(slo_s=0.050)
    items = [Item(1, 0.900), Item(2, 0.970), Item(3, 0.980)]
    recorded.observe(finished(batch_of(items, idle_since=1, fired_at=1)))
    recorded.observe(Refused("m", "shed", ""))
    recorded.observe(Refused("m", "invalid_input", ""))
    assert (recorded.in_time, recorded.late, recorded.refused_by_slo) == (2, 1, 1)


def test_only_configured_tenants_have_a_label() -> None:
    recorded = recorder(tenants=("acme",))
    items = [Item(1, 0.0, rows=2, tenant="acme"), *(Item(n, 0.0, tenant=f"t{n}") for n in (2, 3))]
    recorded.observe(finished(batch_of(items, idle_since=0, fired_at=0)))
    assert recorded.tenant_rows == {"acme": 2, "other": 2}
    recorded.configure(slo_s=None, tenants=("beta",), workers=1)
    assert recorded.tenant_rows == {"beta": 0, "other": 2}


def test_without_tenants_none_are_told_apart() -> None:
    recorded = recorder()
    recorded.observe(finished(batch_of([Item(1, 0.0, tenant="anybody")], idle_since=0, fired_at=0)))
    assert recorded.tenant_rows == {}


def test_reasons_are_bounded_whatever_a_model_raises() -> None:
    recorded = recorder()
    for number in range(1000):
        recorded.observe(Refused("m", f"own_word_{number}", ""))
    assert len(recorded.refused) <= 65
    assert sum(recorded.refused.values()) == 1000


def test_the_rest_is_counted() -> None:
    recorded = recorder()
    batch = batch_of([Item(1, 0.0)], idle_since=0, fired_at=0)
    for event in (
        BatchStarted("m", batch),
        finished(batch, failed=1),
        Cancelled("m", started=True),
        Cancelled("m", started=False),
        Crashed("m", RuntimeError()),
    ):
        recorded.observe(event)
    assert (recorded.failed, recorded.crashes) == (1, 1)
    assert (recorded.cancelled_queued, recorded.cancelled_started) == (1, 1)
    assert (recorded.batch_cap_rows, recorded.linger_cap_s) == (64, 0.002)


def test_lost_batches_and_those_that_did_not_fit_are_counted() -> None:
    made, batch = recorder(), batch_of([Item(1, 0.0)], idle_since=0.0, fired_at=0.0)
    made.observe(BatchLost("m", batch, 1.0, "killed", out_of_memory=False, failed=0))
    made.observe(BatchLost("m", batch, 2.0, "killed", out_of_memory=True, failed=2))
    made.observe(OutOfMemory("m", batch, limit_rows=4))
    assert (made.lost, made.out_of_memory, made.failed) == (2, 2, 2)
