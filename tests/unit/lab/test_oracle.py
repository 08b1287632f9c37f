import numpy as np
import pytest

from headway.core.policy import Firing
from headway.lab import workload
from headway.lab.oracle import (
    Fixed,
    best_of,
    fixed_policy,
    oracle,
    replay_window,
    score_grid,
)
from headway.lab.profiles import PowerProfile
from headway.lab.replay import RunPace
from headway.lab.simulate import Scenario, simulate

GPU = PowerProfile(0.005, 0.00005)
CPU = PowerProfile(0.001, 0.0008)


def random_scenario(seed: int) -> Scenario:
    """Any law, load, profile and noise; every third with many arrivals at the same instant."""
    rng = np.random.default_rng(seed)
    max_rows = int(rng.integers(1, 40))
    profile = PowerProfile(rng.uniform(0, 0.01), rng.uniform(1e-5, 0.001), rng.uniform(0.5, 1.2))
    capacity = max_rows / profile.seconds(max_rows)
    draw = workload.OPEN_LOOPS[str(rng.choice(sorted(workload.OPEN_LOOPS)))]
    times = draw(400, capacity * rng.uniform(0.02, 1.3), rng)
    if seed % 3 == 0:
        times = np.round(times, 2)
    noise_cv = float(rng.choice([0.0, 0.3]))
    return Scenario.build(times, profile, max_rows=max_rows, seed=seed, noise_cv=noise_cv)


def random_fixed(seed: int, max_rows: int) -> Fixed:
    rng = np.random.default_rng(seed + 10_000)
    window_s = float(rng.choice([0.0, 0.0005, 0.002, 0.01, 0.1]))
    return Fixed(window_s, int(rng.integers(1, max_rows + 1)))


@pytest.mark.parametrize("seed", range(40))
def test_the_replay_agrees_with_the_production_window_policy_item_by_item(seed: int) -> None:
    scenario = random_scenario(seed)
    fixed = random_fixed(seed, scenario.max_rows)
    assert isinstance(scenario.arrivals, np.ndarray)
    replay = replay_window(
        scenario.arrivals, scenario.seconds_by_rows, fixed, pace=RunPace(factors=scenario.factors)
    )
    outcome = simulate(scenario, fixed_policy(scenario, fixed))
    assert replay is not None
    assert outcome.dropped == 0
    np.testing.assert_allclose(outcome.latencies_s, replay.latencies_s, rtol=0, atol=1e-9)
    assert outcome.largest_batch == replay.largest


@pytest.mark.parametrize("seed", range(15))
def test_the_replay_says_when_the_queue_runs_over_as_the_scheduler_does(seed: int) -> None:
    scenario = random_scenario(seed)
    fixed = random_fixed(seed, scenario.max_rows)
    assert isinstance(scenario.arrivals, np.ndarray)
    for max_queue in (1, 5, 30):
        replay = replay_window(
            scenario.arrivals,
            scenario.seconds_by_rows,
            fixed,
            pace=RunPace(factors=scenario.factors),
            max_queue=max_queue,
        )
        bounded = Scenario(
            scenario.arrivals,
            scenario.seconds_by_rows,
            scenario.table,
            factors=scenario.factors,
            max_queue=max_queue,
        )
        outcome = simulate(bounded, fixed_policy(bounded, fixed))
        assert (replay is None) == (outcome.dropped > 0)


def test_by_hand_a_lone_item_waits_its_window_and_a_full_batch_does_not() -> None:
    arrivals = np.array([1.0, 2.0, 2.001, 2.002, 2.5])
    replay = replay_window(arrivals, (0.0, 0.01, 0.02, 0.03), Fixed(0.005, 3))
    assert replay is not None
    assert replay.latencies_s == pytest.approx([0.015, 0.032, 0.031, 0.030, 0.015])


def test_by_hand_a_batch_grows_while_the_worker_is_busy() -> None:
    arrivals = np.array([0.0, 0.001, 0.009, 0.010, 0.011])
    replay = replay_window(arrivals, (0.0, 0.010, 0.010, 0.010), Fixed(0.0, 3))
    assert replay is not None
    assert replay.latencies_s == pytest.approx([0.010, 0.019, 0.011, 0.010, 0.019])


def test_the_oracle_is_the_best_of_every_setting_tried_by_the_scheduler() -> None:
    times = workload.poisson(1_500, 700.0, np.random.default_rng(3))
    scenario = Scenario.build(times, CPU, max_rows=12, noise_cv=0.1)
    grid = score_grid(scenario, windows_s=(0.0, 0.002))
    assert {fixed.max_rows for fixed in grid} == {1, 2, 4, 8, 12}
    for fixed, score in grid.items():
        outcome = simulate(scenario, fixed_policy(scenario, fixed))
        assert outcome.percentile_s(99) == pytest.approx(score.p99_s, abs=1e-9)
        assert outcome.mean_s == pytest.approx(score.mean_s, abs=1e-9)
    best, outcome = oracle(scenario)
    assert outcome.percentile_s(99) <= min(score.p99_s for score in grid.values()) + 1e-9
    assert outcome.percentile_s(99) == pytest.approx(score_grid(scenario)[best].p99_s)


def test_settings_that_refuse_items_rank_behind_those_that_do_not() -> None:
    times = workload.poisson(3_000, 6_000.0, np.random.default_rng(3))
    scenario = Scenario.build(times, GPU, max_rows=64, max_queue=200)
    grid = score_grid(scenario, windows_s=(0.0,))
    assert grid[Fixed(0.0, 1)].dropped > 0
    assert grid[best_of(grid)].dropped == 0


def test_where_every_setting_refuses_items_the_fewest_win() -> None:
    times = workload.poisson(2_000, 30_000.0, np.random.default_rng(3))
    scenario = Scenario.build(times, GPU, max_rows=8, max_queue=50)
    grid = score_grid(scenario, windows_s=(0.0, 0.005))
    assert grid[best_of(grid)].dropped == min(score.dropped for score in grid.values()) > 0


@pytest.mark.parametrize("workers", [1, 2])
def test_closed_loops_and_pools_have_an_oracle_too(workers: int) -> None:
    loop = workload.closed_loop(8, 0.0001, 400, np.random.default_rng(3))
    scenario = Scenario.build(loop, GPU, max_rows=8, workers=workers)
    best, outcome = oracle(scenario)
    idle = simulate(scenario, scenario.policy(Firing.AUTO, max_wait_s=0))
    assert outcome.percentile_s(99) <= idle.percentile_s(99)
    assert best.max_rows <= 8


def test_a_setting_reads_as_it_is_typed() -> None:
    assert str(Fixed(0.0005, 16)) == "window:0.5,16"
