"""What each class and each tenant gets of a busy worker, in virtual time."""

import heapq
import itertools
import math
import random
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable, probe_rows
from headway.core.items import Item, Priority, Run, Wait
from headway.core.policy import Policy
from headway.core.queueing.priority import FLOOR
from headway.errors import HeadwayError

MAX_ROWS = 32
WEIGHTS = {"a": 1.0, "b": 1.0, "c": 8.0}


def batch_s(rows: int) -> float:
    return 1e-3 + 0.8e-3 * rows


TABLE = CostTable(
    tuple(probe_rows(MAX_ROWS)), None, tuple((batch_s(rows),) for rows in probe_rows(MAX_ROWS))
)
CAPACITY = MAX_ROWS / batch_s(MAX_ROWS)


class Stream(NamedTuple):
    rate: float  # of the capacity
    tenant: str = ""
    priority: Priority = Priority.NORMAL
    patience_s: tuple[float, ...] = (math.inf,)


class Answer(NamedTuple):
    item: Item
    finished_at: float


def answers(
    policy: Policy,
    streams: list[Stream],
    until: float,
    seed: int = 0,
    waiting: list[Item] | None = None,
) -> list[Answer]:
    """Items that were answered, by one worker, of Poisson arrivals. `waiting` gets the others."""
    rng, scheduler, ids = random.Random(seed), Scheduler(policy, TABLE), itertools.count()
    arrivals = [(rng.expovariate(each.rate * CAPACITY), n) for n, each in enumerate(streams)]
    heapq.heapify(arrivals)
    answered: list[Answer] = []
    running, free_at, wake = None, math.inf, math.inf
    while (now := min(arrivals[0][0], free_at, wake)) <= until:
        if running is not None and free_at <= now:
            answered += [Answer(item, now) for item in running.items]
            scheduler.finish(running, now, ran_s=now - running.fired_at)
            running, free_at = None, math.inf
        elif arrivals[0][0] <= now:
            stream = streams[arrivals[0][1]]
            heapq.heapreplace(
                arrivals, (now + rng.expovariate(stream.rate * CAPACITY), arrivals[0][1])
            )
            due = now + rng.choice(stream.patience_s)
            item = Item(next(ids), now, 1, 0, stream.priority, stream.tenant, due)
            try:
                scheduler.submit(item)
            except HeadwayError:
                continue
        while not isinstance(action := scheduler.next_action(now), Wait):
            if isinstance(action, Run):
                running, free_at = action.batch, now + batch_s(action.batch.rows)
        wake = action.until
    if waiting is not None:
        waiting += scheduler.waiting_items()
    return answered


def jain(answered: list[Answer]) -> float:
    rows = Counter(answer.item.tenant for answer in answered)
    shares = [rows[name] / weight for name, weight in WEIGHTS.items()]
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


@pytest.mark.parametrize("slo_s", [None, 0.1, 0.4], ids=["no SLO", "tight", "wide"])
@pytest.mark.parametrize("max_queue", [200, 4096])
@settings(max_examples=2, deadline=None)
@given(rates=st.permutations([1.0, 1.5, 2.5]), seed=st.integers(0, 99))
@example(rates=[1.5, 1.0, 2.5], seed=94)  # a tenant of departed items was counted as waiting
def test_flooding_tenants_share_by_weight_with_and_without_evictions_and_drops(
    slo_s: float | None, max_queue: int, rates: list[float], seed: int
) -> None:
    policy = Policy(
        max_batch_size=MAX_ROWS, slo_s=slo_s, max_queue=max_queue, tenant_weights=WEIGHTS
    )
    streams = [Stream(rate, name) for rate, name in zip(rates, WEIGHTS, strict=True)]
    answered = [each for each in answers(policy, streams, 2.0, seed) if each.finished_at > 0.8]
    assert len(answered) >= 0.95 * 1.2 * CAPACITY
    assert jain(answered) >= (0.99 if slo_s != 0.1 else 0.95)


@settings(max_examples=3, deadline=None)
@given(share=st.sampled_from([0.3, 0.6, 0.9]), seed=st.integers(0, 99))
def test_a_higher_class_is_not_held_up_and_a_lower_one_does_not_starve(
    share: float, seed: int
) -> None:
    policy = Policy(max_batch_size=MAX_ROWS, max_queue=200)
    high, low = Stream(share, priority=Priority.HIGH), Stream(1.5, priority=Priority.LOW)
    answered = answers(policy, [high, low], 6.0, seed)
    lows = [each for each in answered if each.item.priority is Priority.LOW]
    served = sum(each.finished_at > 2.0 for each in lows)
    assert served >= 0.5 * (1.0 - share) * 4.0 * CAPACITY
    longest_s = max(each.finished_at - each.item.arrived_at for each in lows)
    assert longest_s <= policy.ageing_s + FLOOR * policy.max_queue / CAPACITY  # the stated bound
    alone = answers(policy, [high], 6.0, seed)
    assert p99(answered, Priority.HIGH) <= 3.0 * p99(alone, Priority.HIGH)


@settings(max_examples=4, deadline=None)
@given(share=st.sampled_from([0.6, 1.0, 1.6]), seed=st.integers(0, 99))
def test_no_accepted_item_waits_beyond_the_stated_bound(share: float, seed: int) -> None:
    """Not even where the highest class alone is more than the worker can do: one row in `FLOOR` is
    that of a class that has waited for `ageing_s`."""
    policy = Policy(max_batch_size=MAX_ROWS, max_queue=60, ageing_s=0.3)
    streams = [
        Stream(share, priority=Priority.HIGH),
        Stream(0.2, "a", Priority.NORMAL),
        Stream(0.01, "b", Priority.NORMAL),
        Stream(0.01, priority=Priority.LOW),
    ]
    until, waiting = 6.0, list[Item]()
    answered = answers(policy, streams, until, seed, waiting)
    bound_s = policy.ageing_s + FLOOR * policy.max_queue / CAPACITY
    assert max(each.finished_at - each.item.arrived_at for each in answered) <= bound_s
    assert max((until - item.arrived_at for item in waiting), default=0.0) <= bound_s
    # Where the highest class alone is too much, a full queue refuses the lower ones.
    if share < 1.0:
        assert {each.item.priority for each in answered} == set(Priority)


def p99(answered: list[Answer], priority: Priority) -> float:
    waits = sorted(
        a.finished_at - a.item.arrived_at for a in answered if a.item.priority is priority
    )
    return waits[int(0.99 * len(waits))]


@settings(max_examples=3, deadline=None)
@given(load=st.sampled_from([0.5, 0.9, 2.0]), seed=st.integers(0, 99))
def test_whoever_is_answered_is_in_time_and_overload_costs_nothing(load: float, seed: int) -> None:
    policy = Policy(max_batch_size=MAX_ROWS)
    answered = answers(policy, [Stream(load, patience_s=(0.012, 0.05, 0.3))], 3.0, seed)
    late = sum(each.finished_at > each.item.deadline + 1e-9 for each in answered)
    assert late <= 0.02 * len(answered)
    assert len(answered) / 3.0 >= (0.85 if load < 1.0 else 0.47) * load * CAPACITY
