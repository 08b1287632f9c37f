"""Several replicas behind a router, in virtual time."""

from dataclasses import replace

import numpy as np
import pytest

from headway.core.policy import Firing
from headway.core.routing import RoutingRule
from headway.errors import ConfigError
from headway.lab import workload
from headway.lab.fleet import Autoscale, Fleet, FleetOutcome, simulate_fleet
from headway.lab.profiles import PowerProfile, TokenProfile
from headway.lab.simulate import Lengths, Scenario

GPU = PowerProfile(0.005, 0.00005)
ALIKE = (1.0, 1.0, 1.0, 1.0)
ONE_SLOW = (1.0, 1.0, 1.0, 3.0)


def scenario(rate_rps: float, requests: int = 3000, seed: int = 1) -> Scenario:
    arrivals = workload.poisson(requests, rate_rps, np.random.default_rng([seed, 0]))
    return Scenario.build(arrivals, GPU, max_rows=64)


def run(world: Scenario, fleet: Fleet) -> FleetOutcome:
    return simulate_fleet(world, world.policy(Firing.AUTO), fleet)


def test_one_replica_is_the_simulator_without_replicas() -> None:
    from headway.lab.simulate import simulate

    world = scenario(1000.0)
    alone = simulate(world, world.policy(Firing.AUTO))
    fleet = run(world, Fleet((1.0,), RoutingRule.FINISH))
    assert fleet.latencies_s == pytest.approx(alone.latencies_s)
    assert fleet.shares == [1.0]


def test_a_router_that_predicts_leaves_a_slow_replica_alone() -> None:
    world = scenario(0.5 * 4 * 7805)
    p99 = {
        route: run(world, Fleet(ONE_SLOW, route)).percentile_s(99)
        for route in (RoutingRule.ROUND_ROBIN, RoutingRule.TWO_CHOICES, RoutingRule.FINISH)
    }
    assert p99[RoutingRule.FINISH] < p99[RoutingRule.ROUND_ROBIN] / 2
    assert p99[RoutingRule.TWO_CHOICES] < p99[RoutingRule.ROUND_ROBIN] / 2


@pytest.mark.parametrize("load", [0.05, 0.8])
def test_with_equal_replicas_it_is_no_worse_than_turns(load: float) -> None:
    world = scenario(load * 4 * 7805)
    turns, finish = (
        run(world, Fleet(ALIKE, each)) for each in (RoutingRule.ROUND_ROBIN, RoutingRule.FINISH)
    )
    assert finish.answered_s.mean() <= turns.answered_s.mean()
    assert finish.percentile_s(99) <= 1.01 * turns.percentile_s(99)


def test_what_a_lost_replica_held_is_answered_by_others() -> None:
    world = scenario(0.6 * 4 * 7805)
    lost = run(world, Fleet(ALIKE, RoutingRule.FINISH, cold_start_s=0.05, lost_at=0.05))
    assert lost.retried > 0
    assert lost.dropped == 0
    assert len(lost.shares) == 5  # one was started in its place


def test_a_lone_replica_that_is_lost_has_its_requests_wait_for_the_next() -> None:
    world = scenario(1000.0, requests=500)
    lost = run(world, Fleet((1.0,), RoutingRule.FINISH, cold_start_s=0.2, lost_at=0.1))
    assert lost.dropped == 0
    assert 0.2 <= lost.percentile_s(100) < 0.3


def test_the_number_of_replicas_follows_the_load() -> None:
    times = np.concatenate(
        [np.arange(0, 600, 0.2), np.arange(600, 1200, 0.04), np.arange(1200, 2400, 0.2)]
    )
    world = Scenario.build(times, PowerProfile(0.5, 0.1), max_rows=32)  # 8.6 a second
    scale = Autoscale(1, 10, target_wait_s=8.0)
    done = run(world, Fleet((1.0,), RoutingRule.FINISH, cold_start_s=20.0, autoscale=scale))

    def here(at: float) -> int:
        return [count for since, count in done.replicas if since <= at][-1]

    assert (here(590.0), here(1100.0), here(2300.0)) == (1, 5, 1)
    assert done.turns == 1  # up, and down
    assert done.dropped == 0


def test_a_full_queue_refuses_and_lengths_count() -> None:
    sizes = np.array([10, 1000] * 1000)
    lengths = Lengths(sizes, TokenProfile(PowerProfile(0.001, 0.0), 1e-6))
    times = np.arange(2000) * 0.0001
    world = Scenario.build(times, PowerProfile(0.001, 0.0), max_rows=8, lengths=lengths)
    done = run(world, Fleet((1.0, 1.0), RoutingRule.FINISH))
    assert done.dropped == 0
    full = run(replace(world, max_queue=16), Fleet((1.0, 1.0), RoutingRule.FINISH))
    assert full.dropped > 0
    assert len(full.answered_s) + full.dropped == 2000


def test_partial_batches_of_static_leave_at_the_end() -> None:
    world = scenario(1000.0, requests=100)
    done = simulate_fleet(
        world, world.policy(Firing.STATIC, max_rows=64), Fleet((1.0,), RoutingRule.RANDOM)
    )
    assert done.dropped == 0


def test_clients_that_wait_are_refused() -> None:
    loop = workload.closed_loop(4, 0.01, 100, np.random.default_rng(1), "constant")
    world = Scenario.build(loop, GPU, max_rows=64)
    with pytest.raises(ConfigError, match="open arrivals"):
        run(world, Fleet((1.0,), RoutingRule.FINISH))
