"""Items of different lengths in the laboratory."""

from pathlib import Path

import numpy as np
import pytest

from headway.core.costs import CostTable
from headway.core.policy import Compose, Firing
from headway.errors import ConfigError
from headway.lab import traces, workload
from headway.lab.profiles import (
    PowerProfile,
    TableProfile,
    TokenProfile,
    packed_capacity_rps,
    probe_sizes,
)
from headway.lab.simulate import Lengths, Outcome, Scenario, simulate

FIXED = PowerProfile(4e-3, 0.0)
TOKENS = TokenProfile(FIXED, 4e-6)


def scenario(requests: int, load: float, *, max_cost: int | None = 16_384) -> Scenario:
    sizes = workload.lognormal_sizes(requests, 64, 1.0, 512, np.random.default_rng([0, 3]))
    lengths = Lengths(sizes, TOKENS, max_cost)
    capacity = packed_capacity_rps(TOKENS, lengths.mean, 64, max_cost or 10**9)
    arrivals = workload.poisson(requests, capacity * load, np.random.default_rng([0, 0]))
    return Scenario.build(arrivals, FIXED, max_rows=64, max_queue=512, lengths=lengths)


def played(load: float, compose: Compose, requests: int = 6_000) -> Outcome:
    world = scenario(requests, load)
    return simulate(world, world.policy(Firing.AUTO, compose=compose))


def test_lengths_are_as_asked() -> None:
    sizes = workload.lognormal_sizes(20_000, 64, 1.0, 512, np.random.default_rng(0))
    assert 60 < np.median(sizes) < 68
    assert (sizes.min() >= 1, sizes.max()) == (True, 512)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("size\n3\n4.4\n", [3, 4]),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n0,374,44\n1,0,9\n", [374, 1]),
        ("7\n8\n", [7, 8]),
        ("words\n7\n8\n", [7, 8]),
    ],
)
def test_lengths_are_read_from_a_trace(text: str, sizes: list[int], tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    assert traces.read_sizes(file).tolist() == sizes


@pytest.mark.parametrize("text", ["", "size\n", "size\nx\n", "a,b\n1,2\n", "size\ninf\n"])
def test_a_trace_without_lengths_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"trace\.csv"):
        traces.read_sizes(file)


def test_the_packed_capacity_is_that_of_full_batches_of_the_mean_length() -> None:
    assert packed_capacity_rps(TOKENS, 100, 64) == pytest.approx(64 / (4e-3 + 64 * 100 * 4e-6))
    assert packed_capacity_rps(TOKENS, 100, 64, 1000) == pytest.approx(10 / (4e-3 + 1000 * 4e-6))


def test_a_measured_table_is_read_at_every_length() -> None:
    table = CostTable(rows=(1, 4), sizes=(10, 20), seconds=((0.01, 0.02), (0.04, 0.08)))
    profile = TableProfile(table)
    assert profile.seconds_at(1, 15) == pytest.approx(0.015)
    assert profile.seconds_at(4, 40) == pytest.approx(0.16)  # in proportion beyond the last
    assert profile.seconds_at(8, 10) == pytest.approx(0.08)


def test_probes_cover_the_lengths_there_are() -> None:
    table = probe_sizes(TOKENS, 64, 300, 0.0, np.random.default_rng(0))
    assert table.sizes is not None
    assert (table.sizes[0], table.sizes[-1]) == (1, 300)
    assert table.seconds[-1][-1] == pytest.approx(TOKENS.seconds_at(64, 300))


def test_at_overload_planning_comes_near_packing_and_far_from_arrival_order() -> None:
    rates = {
        compose: played(1.5, compose).throughput_rps
        for compose in (Compose.PACKED, Compose.DP, Compose.FIFO)
    }
    assert rates[Compose.DP] >= 0.83 * rates[Compose.PACKED]  # of a short run; 0.87 of a long one
    assert rates[Compose.DP] >= 3.0 * rates[Compose.FIFO]


def test_at_seven_tenths_little_is_padded_and_the_long_wait_no_longer() -> None:
    outcome = played(0.7, Compose.DP)
    assert outcome.dropped == 0
    assert outcome.padding_waste <= 0.15
    assert outcome.long_p99_s <= 1.3 * outcome.percentile_s(99)


@pytest.mark.parametrize("compose", list(Compose))
def test_everyone_is_answered_or_refused_however_they_are_composed(compose: Compose) -> None:
    outcome = played(0.5, compose, requests=2_000)
    assert len(outcome.answered_s) + outcome.dropped == 2_000
    assert 0.0 <= outcome.padding_waste < 0.9
    if compose is Compose.PACKED:
        assert outcome.padding_waste == 0.0


@pytest.mark.parametrize("firing", [Firing.WINDOW, Firing.STATIC])
def test_buckets_serve_the_textbook_rules_too(firing: Firing) -> None:
    world = scenario(2_000, 0.3)
    wait_s = 0.005 if firing is Firing.WINDOW else None
    in_order = simulate(world, world.policy(firing, max_wait_s=wait_s, compose=Compose.FIFO))
    policy = world.policy(firing, max_wait_s=wait_s, compose=Compose.BUCKETS, quantiles=8)
    in_buckets = simulate(world, policy)
    assert in_buckets.padding_waste < in_order.padding_waste
    assert len(in_buckets.answered_s) + in_buckets.dropped == 2_000
