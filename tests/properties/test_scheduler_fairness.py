"""Two tenants who always want more get rows in proportion to their weights, item by item."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batching.scheduler import Scheduler
from headway.core.items import Item, Run
from headway.core.policy import Policy

WEIGHTS = st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 10.0])
ROWS = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@pytest.mark.parametrize("partitions", [1, 2])
@given(
    weights=st.tuples(WEIGHTS, WEIGHTS),
    rows=st.tuples(ROWS, ROWS),
    max_batch_size=st.integers(4, 16),
    head_start=st.integers(0, 60),
)
def test_backlogged_tenants_are_served_in_proportion_to_their_weights(
    partitions: int,
    weights: tuple[float, float],
    rows: tuple[list[int], list[int]],
    max_batch_size: int,
    head_start: int,
) -> None:
    """Start-time fair queueing: rows per weight differ by no more than the largest item of each
    (and, where partitions differ, by what one batch takes before the other lane leads)."""
    names = ("a", "b")
    policy = Policy(
        max_batch_size=max_batch_size,
        tenant_weights=dict(zip(names, weights, strict=True)),
        ageing_s=1e6,
        max_queue=10**6,
        max_wait_s=0.0,
    )
    scheduler, ids = Scheduler(policy), itertools.count()
    sizes = {name: itertools.cycle(each) for name, each in zip(names, rows, strict=True)}
    queued = dict.fromkeys(names, 0)

    def refill(name: str, least: int, now: float) -> None:
        while queued[name] < least:
            item = Item(
                next(ids),
                now,
                rows=next(sizes[name]),
                tenant=name,
                partition=names.index(name) % partitions,
            )
            queued[name] += item.rows
            scheduler.submit(item)

    refill("a", head_start, 0.0)
    served = dict.fromkeys(names, 0.0)
    slack = sum(max(each) / weight for each, weight in zip(rows, weights, strict=True))
    slack += (max_batch_size / min(weights)) if partitions > 1 else 0.0
    for turn in range(60):
        for name in names:
            refill(name, 2 * max_batch_size, float(turn))
        action = scheduler.next_action(float(turn))
        assert isinstance(action, Run)
        scheduler.finish(action.batch, turn + 0.5)
        for item in action.batch.items:
            queued[item.tenant] -= item.rows
            served[item.tenant] += item.rows / policy.tenant_weights[item.tenant]
        assert abs(served["a"] - served["b"]) <= slack + 1e-6
