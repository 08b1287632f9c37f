"""The best fixed setting in hindsight, among every window and batch size of a grid.

No server can use it: it is chosen on the same load and sample that it is judged on. With
one worker and open-loop arrivals the grid is searched by a replay of the textbook rule, written
apart from the scheduler; otherwise the scheduler itself runs every setting.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headway.core.policy import Compose, Firing, Policy
from headway.lab.profiles import doubled
from headway.lab.replay import Fixed, Replay, replay_window
from headway.lab.simulate import Outcome, Scenario, percentile_s, simulate

__all__ = ["Fixed", "Replay", "Score", "best_of", "oracle", "replay_window", "score_grid"]

WINDOWS_S = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.010, 0.020, 0.050)


class Score(NamedTuple):
    """The result of a setting. The fewest drops win, then the lowest p99, then the lowest mean."""

    dropped: float  # infinite: some items were dropped, but not counted
    p99_s: float
    mean_s: float
    in_time: float = math.nan  # the share answered within the SLO; NaN without an SLO
    span_s: float = math.nan  # from the first arrival to the last answer


def oracle(
    scenario: Scenario,
    *,
    by_mean: bool = False,
    compose: Compose = Compose.DP,
) -> tuple[Fixed, Outcome]:
    """The best setting of the grid for this scenario, and its outcome with the scheduler."""
    best = best_of(score_grid(scenario, compose=compose), by_mean=by_mean)
    return best, simulate(scenario, fixed_policy(scenario, best, compose))


def fixed_policy(scenario: Scenario, fixed: Fixed, compose: Compose = Compose.DP) -> Policy:
    return scenario.policy(
        Firing.WINDOW, max_wait_s=fixed.window_s, max_rows=fixed.max_rows, compose=compose
    )


def best_of(grid: Mapping[Fixed, Score], *, by_mean: bool = False) -> Fixed:
    if by_mean:
        return min(grid, key=lambda fixed: (grid[fixed].dropped, grid[fixed].mean_s))
    return min(grid, key=lambda fixed: grid[fixed])


def score_grid(
    scenario: Scenario,
    windows_s: Sequence[float] = WINDOWS_S,
    caps: Sequence[int] | None = None,
    *,
    compose: Compose = Compose.DP,
) -> dict[Fixed, Score]:
    """The score of every window with every batch size: powers of two, and the largest."""
    caps = caps or doubled(scenario.max_rows)
    if scenario.is_plain:
        scores = _score_all(scenario, windows_s, caps, _replayed)
        if any(score.dropped == 0 for score in scores.values()):
            return scores
    return _score_all(
        scenario, windows_s, caps, lambda each, fixed: _simulated(each, fixed, compose)
    )


# ---- the grid


class _Scored(NamedTuple):
    score: Score
    largest: int  # the most rows in one batch
    max_rows: int


def _score_all(
    scenario: Scenario,
    windows_s: Sequence[float],
    caps: Sequence[int],
    score: Callable[[Scenario, Fixed], _Scored],
) -> dict[Fixed, Score]:
    grid: dict[Fixed, Score] = {}
    for window_s in windows_s:
        last: _Scored | None = None
        for max_rows in caps:
            fixed = Fixed(window_s, max_rows)
            if last is None or last.largest >= last.max_rows:
                last = score(scenario, fixed)
            # otherwise no batch reached the smaller limit: a larger one changes nothing
            grid[fixed] = last.score
    return grid


def _replayed(scenario: Scenario, fixed: Fixed) -> _Scored:
    replay = replay_window(
        scenario.arrivals,
        scenario.seconds_by_rows,
        fixed,
        pace=scenario.pace,
        max_queue=scenario.max_queue,
    )
    if replay is None:
        score = Score(math.inf, math.inf, math.inf, 0.0)
        return _Scored(score, fixed.max_rows, fixed.max_rows)
    latencies_s = replay.latencies_s
    in_time = math.nan
    if scenario.slo_s is not None:
        in_time = float((latencies_s <= scenario.slo_s + 1e-9).mean())
    score = Score(
        0, percentile_s(latencies_s, 99), float(latencies_s.mean()), in_time, replay.span_s
    )
    return _Scored(score, replay.largest, fixed.max_rows)


def _simulated(scenario: Scenario, fixed: Fixed, compose: Compose) -> _Scored:
    quiet = replace(scenario, on_progress=None)  # only the run that is reported counts
    outcome = simulate(quiet, fixed_policy(scenario, fixed, compose))
    score = Score(
        outcome.dropped,
        outcome.percentile_s(99),
        outcome.mean_s,
        outcome.within(scenario.slo_s) / max(1, len(outcome.latencies_s)),
        outcome.span_s,
    )
    return _Scored(score, outcome.largest_batch, fixed.max_rows)
