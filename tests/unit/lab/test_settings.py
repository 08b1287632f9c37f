"""Settings are simulated, ranked, and only recommended where they pay."""

import numpy as np
import pytest

from headway.lab.profiles import PowerProfile
from headway.lab.simulate import Scenario
from headway.lab.tuning import TunedSetting, best_of, grid, highest_rate, scored
from headway.lab.workload import closed_loop, poisson


def scenario(rate: float, *, requests: int = 800, max_rows: int = 8) -> Scenario:
    arrivals = poisson(requests, rate, np.random.default_rng(1))
    return Scenario.build(arrivals, PowerProfile(5e-3, 1e-3), max_rows=max_rows)


def test_the_grid_has_auto_and_windows_at_every_size_up_to_the_largest() -> None:
    settings = list(grid(6))
    assert {each.max_batch_size for each in settings} == {1, 2, 4, 6}
    assert TunedSetting(6) in settings
    assert TunedSetting(1, 5.0) not in settings  # a batch of one waits for nobody
    assert len(settings) == len(set(settings))


def test_a_setting_is_given_to_a_server_and_to_a_file() -> None:
    assert TunedSetting(8).as_flags() == ["--max-batch-size", "8"]
    assert TunedSetting(8, 0.5).as_flags()[2:] == ["--policy", "window", "--max-wait-ms", "0.5"]
    assert TunedSetting(8, 5.0).as_toml() == [
        "max_batch_size = 8",
        'policy = "window"',
        "max_wait_ms = 5",
    ]


def test_the_best_is_never_worse_than_the_default() -> None:
    world = scenario(400.0)
    found = best_of(8, [world], [world])
    assert len(found) == 6
    assert found[0].rank <= scored(TunedSetting(8), [world]).rank
    assert found == sorted(found, key=lambda each: each.rank)


def test_what_is_refused_counts_more_than_what_is_slow() -> None:
    busy = scenario(2000.0)  # no setting of one row can do this
    assert scored(TunedSetting(8), [busy]).lost <= scored(TunedSetting(1), [busy]).lost


def test_closed_loops_are_tuned_too() -> None:
    loop = closed_loop(16, 0.0, 800, np.random.default_rng(1), "constant")
    world = Scenario.build(loop, PowerProfile(5e-3, 1e-3), max_rows=8)
    assert scored(TunedSetting(8), [world]).p99_s < scored(TunedSetting(1), [world]).p99_s


@pytest.mark.parametrize("limit", [3.0, 70.0, 900.0])
def test_the_highest_rate_that_holds_is_found_within_3_percent(limit: float) -> None:
    found = highest_rate(lambda rate: rate <= limit, 100.0)
    assert limit / 1.03 <= found <= limit


def test_where_no_rate_holds_there_is_none() -> None:
    assert highest_rate(lambda rate: False, 100.0) == 0.0
