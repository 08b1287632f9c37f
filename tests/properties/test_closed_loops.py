"""Clients that come back together: in step, or because they wait for each other. Virtual time."""

import pytest
from benchmarks.worlds import Clients, Curve, World

from headway.core.policy import Firing
from headway.lab.oracle import best_of, score_grid
from headway.lab.simulate import Outcome, simulate

CPU, MIXED, GPU = Curve(1, 0.8, 32), Curve(2, 0.2, 32), Curve(5, 0.05, 64)
REQUESTS = 4_000


def served(world: World) -> Outcome:
    scenario = world.scenario(0, REQUESTS)
    return simulate(scenario, scenario.policy(Firing.AUTO))


def closed(curve: Curve, count: int, think_ms: float, thinking: str) -> World:
    jitter_ms = 0.3 if thinking == "barrier" else 0.0
    return World("clients", curve, clients=Clients(count, think_ms, thinking, jitter_ms))


@pytest.mark.parametrize(
    ("curve", "count", "groups"), [(CPU, 4, 4), (MIXED, 4, 2), (MIXED, 24, 2), (GPU, 24, 2)]
)
def test_clients_in_step_are_served_apart_while_others_think(
    curve: Curve, count: int, groups: int
) -> None:
    outcome = served(closed(curve, count, 6.0, "constant"))
    alone_s = curve.profile.seconds(count // groups)
    assert outcome.mean_s <= 1.03 * alone_s
    assert outcome.percentile_s(97) <= 1.01 * alone_s


@pytest.mark.parametrize("curve", [CPU, MIXED, GPU], ids=str)
@pytest.mark.parametrize("count", [4, 24])
@pytest.mark.parametrize("think_ms", [0.2, 2.0, 6.0])
def test_clients_that_wait_for_each_other_lose_at_most_a_few_percent(
    curve: Curve, count: int, think_ms: float
) -> None:
    world = closed(curve, count, think_ms, "barrier")
    outcome = served(world)
    grid = score_grid(world.scenario(0, REQUESTS), (0.0, 0.0005, 0.001), (count, 32))
    best = grid[best_of(grid)]
    assert outcome.span_s <= 1.03 * min(score.span_s for score in grid.values())
    assert outcome.mean_s <= 1.03 * best.mean_s
