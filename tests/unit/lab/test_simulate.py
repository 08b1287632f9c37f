import math

import numpy as np
import pytest

from headway.core.costs import CostTable
from headway.core.items import FireReason
from headway.core.policy import Firing
from headway.errors import ConfigError
from headway.lab import workload
from headway.lab.profiles import (
    PowerProfile,
    TableProfile,
    batch_seconds,
    capacity_rps,
    noise_factors,
    probe,
)
from headway.lab.simulate import Outcome, Scenario, simulate

GPU = PowerProfile(0.005, 0.00005)
CPU = PowerProfile(0.001, 0.0008)


def poisson(requests: int, rate_rps: float, seed: int = 1) -> workload.Times:
    return workload.poisson(requests, rate_rps, np.random.default_rng([seed, 0]))


def run(scenario: Scenario, firing: Firing, max_wait_s: float | None = None) -> Outcome:
    return simulate(scenario, scenario.policy(firing, max_wait_s=max_wait_s))


# ---- profiles


def test_capacity_is_the_best_rate_of_any_batch_size() -> None:
    assert capacity_rps(batch_seconds(GPU, 64)) == pytest.approx(64 / 0.0082)
    beyond_the_knee = PowerProfile(0.001, 0.0001, 2.0)
    assert capacity_rps(batch_seconds(beyond_the_knee, 64), workers=2) == pytest.approx(
        2 * 3 / 0.0019
    )


def test_a_table_is_a_line_between_its_points_and_in_proportion_beyond() -> None:
    table = CostTable.from_json({"rows": [2, 4], "sizes": None, "ms": [[10], [16]]})
    profile = TableProfile(table)
    times = [profile.seconds(rows) for rows in (1, 2, 3, 4, 8)]
    assert times == pytest.approx([0.010, 0.010, 0.013, 0.016, 0.032])


def test_a_table_with_sizes_is_read_at_the_middle_one_or_where_asked() -> None:
    table = CostTable.from_json({"rows": [1], "sizes": [10, 20, 40], "ms": [[1, 2, 4]]})
    assert TableProfile(table).seconds(1) == pytest.approx(0.002)
    assert TableProfile(table, size=30).seconds(1) == pytest.approx(0.003)


@pytest.mark.parametrize("bad", [(0, 0), (-1, 1), (1, math.nan), (1, 1, -1)])
def test_a_law_without_time_is_refused(bad: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError):
        PowerProfile(*bad)


def test_noise_has_mean_one_and_the_spread_asked_for() -> None:
    factors = noise_factors(200_000, 0.3, np.random.default_rng(1))
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert factors.std() == pytest.approx(0.3, abs=0.01)


def test_probes_see_the_noise_and_not_the_truth() -> None:
    seconds = batch_seconds(GPU, 64)
    table = probe(seconds, 0.2, np.random.default_rng(1))
    assert {1, 2, 4, 8, 16, 17, 32, 33, 64} <= set(table.rows)
    assert len(table.errors) == 5 * len(table.rows)
    assert max(table.errors) > 0.05
    for rows, (measured,) in zip(table.rows, table.seconds, strict=True):
        assert measured != seconds[rows]
        assert measured == pytest.approx(seconds[rows], rel=0.5)


# ---- the driver


def test_by_hand_fire_when_idle_takes_everyone_who_came_meanwhile() -> None:
    scenario = Scenario.build(np.array([1.0, 1.001, 1.002]), PowerProfile(0.010, 0.001), max_rows=4)
    outcome = run(scenario, Firing.AUTO, max_wait_s=0)
    assert outcome.latencies_s == pytest.approx([0.011, 0.022, 0.021])
    assert outcome.batches == 2
    assert outcome.span_s == pytest.approx(0.023)
    assert outcome.fire_reasons == {FireReason.IDLE: 2}


def test_all_who_arrive_at_one_instant_share_a_batch() -> None:
    scenario = Scenario.build(np.full(5, 3.0), PowerProfile(0.010, 0.001), max_rows=8)
    for firing, max_wait_s in ((Firing.AUTO, 0.0), (Firing.WINDOW, 0.0)):
        outcome = run(scenario, firing, max_wait_s)
        assert outcome.mean_batch == 5
        assert outcome.latencies_s == pytest.approx(0.015)


def test_static_leaves_full_and_its_rest_at_the_end() -> None:
    scenario = Scenario.build(np.array([0.0, 1.0, 2.0, 3.0, 4.0]), GPU, max_rows=2)
    outcome = run(scenario, Firing.STATIC)
    assert outcome.fire_reasons == {FireReason.FULL: 2, FireReason.DRAIN: 1}
    assert outcome.dropped == 0


def test_static_under_an_slo_sends_its_rest_in_time() -> None:
    scenario = Scenario.build(poisson(500, 100.0), GPU, max_rows=64, slo_s=0.1)
    outcome = run(scenario, Firing.STATIC)
    assert FireReason.DEADLINE in outcome.fire_reasons
    assert outcome.percentile_s(100) <= 0.1 + 1e-9
    assert outcome.within(0.1) == len(outcome.answered_s)


def test_several_workers_run_batches_side_by_side() -> None:
    arrivals = np.array([0.0, 0.001, 0.002])
    two = Scenario.build(arrivals, PowerProfile(0.010, 0.0), max_rows=1, workers=2)
    outcome = run(two, Firing.WINDOW, max_wait_s=0)
    assert outcome.latencies_s == pytest.approx([0.010, 0.010, 0.018])


def test_refused_items_are_counted_and_have_no_latency() -> None:
    scenario = Scenario.build(np.zeros(10), PowerProfile(0.010, 0.0), max_rows=2, max_queue=4)
    outcome = run(scenario, Firing.WINDOW, max_wait_s=0)
    assert outcome.dropped == 6
    assert len(outcome.answered_s) == 4
    assert np.isnan(outcome.latencies_s[4:]).all()


def test_the_noise_is_that_of_the_batch_whoever_rides_in_it() -> None:
    scenario = Scenario.build(np.array([0.0, 1.0]), GPU, max_rows=2, noise_cv=0.5, seed=4)
    assert scenario.factors is not None
    outcome = run(scenario, Firing.AUTO, max_wait_s=0)
    assert outcome.latencies_s == pytest.approx(0.00505 * scenario.factors)


def test_two_runs_of_one_scenario_are_equal() -> None:
    scenario = Scenario.build(poisson(2_000, 3_000.0), GPU, max_rows=64, noise_cv=0.2, slo_s=0.02)
    first, second = (run(scenario, Firing.AUTO) for _ in range(2))
    np.testing.assert_array_equal(first.latencies_s, second.latencies_s)


def test_a_record_holds_every_batch_in_order() -> None:
    scenario = Scenario.build(poisson(2_000, 3_000.0), GPU, max_rows=64)
    outcome = simulate(scenario, scenario.policy(Firing.AUTO), record=True)
    assert outcome.fired is not None
    assert len(outcome.fired) == outcome.batches
    assert sum(batch.rows for batch in outcome.fired) == 2_000
    times = [batch.fired_at for batch in outcome.fired]
    assert times == sorted(times)
    assert all(0 < batch.rows <= batch.batch_cap <= 64 for batch in outcome.fired)


# ---- closed loops


def test_by_hand_a_client_thinks_between_its_answers() -> None:
    loop = workload.ClosedLoop(1, np.array([0.5, 0.25, 0.125]))
    scenario = Scenario.build(loop, PowerProfile(0.010, 0.0), max_rows=4)
    outcome = run(scenario, Firing.AUTO, max_wait_s=0)
    assert outcome.arrived_at == pytest.approx([0.5, 0.76, 0.895])
    assert outcome.latencies_s == pytest.approx(0.010)


def test_a_refused_client_thinks_and_comes_again() -> None:
    loop = workload.closed_loop(10, 0.001, 300, np.random.default_rng(1))
    scenario = Scenario.build(loop, PowerProfile(0.010, 0.0), max_rows=2, max_queue=2)
    outcome = run(scenario, Firing.WINDOW, max_wait_s=0)
    assert len(outcome.latencies_s) == 300
    assert outcome.dropped > 50
    assert outcome.dropped + len(outcome.answered_s) == 300


def test_never_more_items_than_clients_are_under_way() -> None:
    loop = workload.closed_loop(6, 0.002, 500, np.random.default_rng(1))
    outcome = run(Scenario.build(loop, GPU, max_rows=64), Firing.AUTO)
    ends = outcome.arrived_at + outcome.latencies_s
    for now in outcome.arrived_at:
        assert np.sum((outcome.arrived_at <= now) & (ends > now)) <= 6


def test_static_is_stuck_when_all_clients_together_fill_no_batch() -> None:
    loop = workload.closed_loop(4, 0.001, 100, np.random.default_rng(1))
    outcome = run(Scenario.build(loop, GPU, max_rows=8), Firing.STATIC)
    assert outcome.is_stuck
    assert len(outcome.answered_s) == 0
    assert outcome.throughput_rps == 0
    assert math.isnan(outcome.percentile_s(99))


# ---- known figures (scheduling research, section 4.2 and 4.3)


@pytest.mark.parametrize(
    ("profile", "max_rows", "load", "mean_ms", "p99_ms"),
    [(GPU, 64, 0.1, 7.85, 10.47), (GPU, 64, 0.5, 9.37, 12.70), (CPU, 32, 0.3, 2.75, 6.00)],
)
def test_fire_when_idle_has_the_latency_that_theory_gives(
    profile: PowerProfile, max_rows: int, load: float, mean_ms: float, p99_ms: float
) -> None:
    rate_rps = load * capacity_rps(batch_seconds(profile, max_rows))
    scenario = Scenario.build(poisson(20_000, rate_rps), profile, max_rows=max_rows)
    outcome = run(scenario, Firing.AUTO, max_wait_s=0)
    assert outcome.mean_s * 1e3 == pytest.approx(mean_ms, rel=0.02)
    assert outcome.percentile_s(99) * 1e3 == pytest.approx(p99_ms, rel=0.04)


def test_fire_when_idle_serves_a_closed_loop_in_two_halves() -> None:
    loop = workload.closed_loop(8, 0.0001, 4_000, np.random.default_rng(1))
    outcome = run(Scenario.build(loop, GPU, max_rows=64), Firing.AUTO, max_wait_s=0)
    assert outcome.throughput_rps == pytest.approx(769, rel=0.01)
    assert outcome.mean_batch == pytest.approx(4, rel=0.01)


def test_a_size_that_is_tried_again_changes_no_batch_of_fewer_rows() -> None:
    """While a larger size waited for its trial, batches of all sizes below it left."""
    profile = PowerProfile(0.0, 40e-3, 1.1)
    arrivals = workload.poisson(5_000, 12.5, np.random.default_rng(2))
    scenario = Scenario.build(arrivals, profile, max_rows=32)
    outcome = simulate(scenario, scenario.policy(Firing.AUTO), record=True)
    assert outcome.fired is not None
    assert sum(each.rows > 1 for each in outcome.fired) <= 5
