"""Closed loops through the scheduler: how many a batch waits for, and who is served in parts."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.worlds import Clients, Curve, World

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable
from headway.core.items import Item, Run
from headway.core.policy import Firing, Policy
from headway.lab.profiles import PowerProfile
from headway.lab.simulate import Outcome, Scenario, simulate
from headway.lab.workload import ClosedLoop, closed_loop

GPU = PowerProfile(5e-3, 0.05e-3)


def served(loop: ClosedLoop) -> Outcome:
    scenario = Scenario.build(loop, GPU, max_rows=64)
    return simulate(scenario, scenario.policy(Firing.AUTO), record=True)


def test_two_groups_of_callers_become_one_within_twenty_batches() -> None:
    """Half of 64 callers come while the others are being served: 62 of them share a batch soon."""
    loop = closed_loop(64, 1e-3, 6_000, np.random.default_rng(3))
    think_s = loop.think_s.copy()
    think_s[:32], think_s[32:64] = 0.0, GPU.seconds(32) / 2
    outcome = served(replace(loop, think_s=think_s))
    assert outcome.fired is not None
    assert outcome.fired[0].rows == 32
    assert max(batch.rows for batch in outcome.fired[:20]) >= 48
    assert sum(batch.rows for batch in outcome.fired[20:60]) / 40 >= 50


def test_callers_that_leave_are_not_waited_for() -> None:
    """The last requests are of ever fewer callers."""
    loop = closed_loop(48, 1e-3, 3_000, np.random.default_rng(4))
    outcome = served(loop)
    assert not outcome.is_stuck
    assert not np.isnan(outcome.latencies_s).any()


@pytest.mark.parametrize("think_ms", [2.0, 6.0])
def test_callers_that_wait_for_each_other_are_not_served_in_parts_for_long(think_ms: float) -> None:
    clients = Clients(24, think_ms, "barrier", 0.3)
    scenario = World("clients", Curve(5, 0.05, 64), clients=clients).scenario(0, 4_000)
    outcome = simulate(scenario, scenario.policy(Firing.AUTO), record=True)
    assert outcome.fired is not None
    assert sum(batch.rows == 24 for batch in outcome.fired[20:]) >= 0.9 * len(outcome.fired[20:])


@pytest.mark.parametrize("seed", [2, 3, 5, 6])
def test_callers_in_step_that_were_late_once_come_together_again(seed: int) -> None:
    """Pinned: parts were compared with one batch for all as it was while some were late."""
    rng = np.random.default_rng(seed)
    think_s = rng.uniform(0.9e-3, 1.5e-3, 3_000)
    late = rng.integers(8, 120, rng.integers(2, 16))
    think_s[late] = rng.uniform(5e-3, 14.0e-3)
    outcome = served(ClosedLoop(16, think_s))
    assert outcome.fired is not None
    assert sum(batch.rows == 16 for batch in outcome.fired[100:]) >= 0.9 * len(outcome.fired[100:])


def test_on_drain_what_waits_leaves_in_batches_as_large_as_may_be() -> None:
    """Pinned: a size that callers in step had been served in stayed in force, and 32 rows left as
    eleven batches."""
    seconds = {rows: 0.001 + 0.001 * rows for rows in (1, 2, 4, 8, 16, 32)}
    table = CostTable(tuple(seconds), None, tuple((each,) for each in seconds.values()))
    scheduler = Scheduler(Policy(max_batch_size=32), table)
    now, number = 0.0, 0
    waiting = [(0.0, caller) for caller in range(16)]
    for _ in range(60):  # 16 callers that all think for 20 ms
        now = max(now, waiting[0][0])
        while waiting and waiting[0][0] <= now:
            scheduler.submit(Item(number, waiting.pop(0)[0]))
            number += 1
        action = scheduler.next_action(now)
        if not isinstance(action, Run):
            now = min(action.until, waiting[0][0]) if waiting else action.until  # type: ignore[union-attr]
            continue
        ran_s = 0.001 + 0.001 * action.batch.rows
        now += ran_s
        scheduler.finish(action.batch, now, ran_s=ran_s)
        waiting += [(now + 0.020, 0)] * action.batch.rows
    while isinstance(action := scheduler.next_action(now), Run):
        scheduler.finish(action.batch, now)
    for each in range(32):
        scheduler.submit(Item(number + each, now))
    scheduler.drain()
    sizes = []
    while isinstance(action := scheduler.next_action(now), Run):
        sizes.append(action.batch.rows)
        now += 0.033
        scheduler.finish(action.batch, now, ran_s=0.033)
    assert sum(sizes) >= 32
    assert len(sizes) <= 2
