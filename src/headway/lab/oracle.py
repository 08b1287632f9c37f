"""The best fixed setting in hindsight: every window and batch size of a grid, tried out.

Nobody can serve with it: it is chosen for the very load and sample it is then judged on. With
one worker and open-loop arrivals the grid is searched by a replay of the textbook rule, written
apart from the scheduler; otherwise the scheduler itself runs every setting.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import numpy as np

from headway.core import Firing, Policy, probe_rows
from headway.lab.simulate import Outcome, Scenario, percentile_s, simulate
from headway.lab.workload import ClosedLoop, Times

WINDOWS_S = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.010)


class Fixed(NamedTuple):
    """Fire at `max_rows`, or when the oldest has waited `window_s`."""

    window_s: float
    max_rows: int

    def __str__(self) -> str:
        """As one types it after `--policy`."""
        return f"window:{self.window_s * 1e3:g},{self.max_rows}"


class Score(NamedTuple):
    """How a setting did. The fewest drops win, then the lowest p99, then the lowest mean."""

    dropped: float  # infinite: some were, and nobody counted
    p99_s: float
    mean_s: float


class Replay(NamedTuple):
    latencies_s: Times  # by item, in the order of arrival
    largest: int  # the most rows in one batch


def oracle(scenario: Scenario, *, record: bool = False) -> tuple[Fixed, Outcome]:
    """The best setting of the grid for this scenario, and what the scheduler makes of it."""
    best = best_of(score_grid(scenario))
    return best, simulate(scenario, fixed_policy(scenario, best), record=record)


def fixed_policy(scenario: Scenario, fixed: Fixed) -> Policy:
    return scenario.policy(Firing.WINDOW, max_wait_s=fixed.window_s, max_rows=fixed.max_rows)


def best_of(grid: Mapping[Fixed, Score]) -> Fixed:
    return min(grid, key=lambda fixed: grid[fixed])


def best_single(grids: Sequence[Mapping[Fixed, Score]]) -> tuple[Fixed, float]:
    """The one setting that does best over several loads, and its worst ratio to their oracles.

    The grids are those of the same settings at different loads.
    """
    oracles_s = [grid[best_of(grid)].p99_s for grid in grids]

    def worst_ratio(fixed: Fixed) -> tuple[float, float]:
        scores = [grid[fixed] for grid in grids]
        ratios = [score.p99_s / best_s for score, best_s in zip(scores, oracles_s, strict=True)]
        return sum(score.dropped for score in scores), max(ratios)

    best = min(grids[0], key=worst_ratio)
    return best, worst_ratio(best)[1]


def score_grid(scenario: Scenario, windows_s: Sequence[float] = WINDOWS_S) -> dict[Fixed, Score]:
    """Every window with every batch size: powers of two, and the largest."""
    is_open = not isinstance(scenario.arrivals, ClosedLoop)
    if scenario.workers == 1 and is_open and scenario.lengths is None:
        scores = _score_all(scenario, windows_s, _replayed)
        if any(score.dropped == 0 for score in scores.values()):
            return scores
    return _score_all(scenario, windows_s, _simulated)


def replay_window(
    arrivals: Times,
    seconds: Sequence[float],
    fixed: Fixed,
    *,
    factors: Times | None = None,
    max_queue: int | None = None,
) -> Replay | None:
    """The textbook rule with one worker, item by item. None: the queue ran over.

    A batch leaves when it is full or its oldest item has waited the window; if the worker is
    busy then, as soon as it is free, with whoever has come by that moment.
    """
    window_s, max_rows = fixed
    count = len(arrivals)
    limit = count if max_queue is None else min(max_queue, count)
    times: list[float] = [*arrivals.tolist(), *repeat(math.inf, max(max_rows, limit))]
    noise = iter(repeat(1.0) if factors is None else factors.tolist())
    ends: list[float] = []
    firsts: list[int] = []
    free_at, first = -math.inf, 0
    while first < count:
        start = times[first] + window_s
        full_at = times[first + max_rows - 1]
        if full_at < start:
            start = full_at
        if free_at > start:
            start = free_at
        if times[first + limit] <= start:
            return None
        beyond = bisect_right(times, start, first + 1, first + max_rows)
        free_at = start + seconds[beyond - first] * next(noise)
        ends.append(free_at)
        firsts.append(first)
        first = beyond
    rows = np.diff([*firsts, count])
    return Replay(np.repeat(ends, rows) - arrivals, int(rows.max(initial=0)))


# ---- the grid


class _Scored(NamedTuple):
    score: Score
    largest: int  # the most rows in one batch
    max_rows: int


def _score_all(
    scenario: Scenario, windows_s: Sequence[float], score: Callable[[Scenario, Fixed], _Scored]
) -> dict[Fixed, Score]:
    grid: dict[Fixed, Score] = {}
    sizes = probe_rows(scenario.max_rows)
    for window_s in windows_s:
        last: _Scored | None = None
        for max_rows in sizes:
            fixed = Fixed(window_s, max_rows)
            if last is None or last.largest >= last.max_rows:
                last = score(scenario, fixed)
            # otherwise no batch reached the smaller limit: a larger one changes nothing
            grid[fixed] = last.score
    return grid


def _replayed(scenario: Scenario, fixed: Fixed) -> _Scored:
    assert not isinstance(scenario.arrivals, ClosedLoop)
    replay = replay_window(
        scenario.arrivals,
        scenario.seconds,
        fixed,
        factors=scenario.factors,
        max_queue=scenario.max_queue,
    )
    if replay is None:
        return _Scored(Score(math.inf, math.inf, math.inf), fixed.max_rows, fixed.max_rows)
    latencies_s = replay.latencies_s
    score = Score(0, percentile_s(latencies_s, 99), float(latencies_s.mean()))
    return _Scored(score, replay.largest, fixed.max_rows)


def _simulated(scenario: Scenario, fixed: Fixed) -> _Scored:
    quiet = replace(scenario, on_progress=None)  # only the run that is reported counts
    outcome = simulate(quiet, fixed_policy(scenario, fixed))
    score = Score(outcome.dropped, outcome.percentile_s(99), outcome.mean_s)
    return _Scored(score, outcome.largest_batch, fixed.max_rows)
