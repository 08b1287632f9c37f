"""What a live server adds to a profile, told from two looks at it."""

from typing import Any

import numpy as np
import pytest

from headway.core.costs import CostTable
from headway.core.policy import Firing
from headway.lab import workload
from headway.lab.overhead import Look, live_costs
from headway.lab.profiles import TableProfile
from headway.lab.replay import AnswerDelay
from headway.lab.simulate import Scenario, simulate

TABLE = CostTable((1, 16), None, ((0.010,), (0.025,)))  # 9 ms, and 1 ms a row
EXTRA_S, FIXED_S, EACH_S = 0.002, 0.0005, 0.0001


def looked(rows: int, batches: int = 40) -> Look:
    """Full batches, one after the other; each takes 2 ms more than in the profile."""
    found: list[dict[str, Any]] = []
    latencies = []
    for number in range(batches):
        begin = float(number)
        end = begin + 0.009 + 0.001 * rows + EXTRA_S
        item = {"arrived_at": begin, "rows": 1, "size": 0, "priority": "normal"}
        items = [{**item, "tenant": "", "deadline_at": None}] * rows
        batch = {"fired_at": begin, "finished_at": end, "rows": rows, "padded_rows": rows}
        found.append({**batch, "size": 0, "reruns": 0, "lost": None, "items": items})
        latencies += [end - begin + FIXED_S + EACH_S * place for place in range(rows)]
    return Look(np.array(latencies), found)


def test_what_batches_and_answers_take_longer_is_found() -> None:
    costs = live_costs(TABLE, looked(1), looked(9))
    assert costs is not None
    assert costs.table.seconds[0][0] == pytest.approx(0.012)
    assert costs.factors == pytest.approx(np.ones(40))
    assert costs.delay.fixed_s == pytest.approx(FIXED_S)
    assert costs.delay.each_s == pytest.approx(EACH_S)


def test_small_batches_do_not_tell_what_each_answer_takes() -> None:
    costs = live_costs(TABLE, looked(1), looked(2))
    assert costs is not None
    assert costs.delay == AnswerDelay(pytest.approx(FIXED_S + EACH_S / 2))


def test_of_few_items_nothing_is_told() -> None:
    assert live_costs(TABLE, looked(1, batches=5), looked(9)) is None


def test_callers_in_a_closed_loop_come_back_when_they_have_their_answers() -> None:
    costs = live_costs(TABLE, looked(1), looked(9))
    assert costs is not None
    arrivals = workload.closed_loop(1, 0.0, 100, np.random.default_rng(0), "constant")
    scenario = costs.applied(Scenario.build(arrivals, TableProfile(costs.table), max_rows=16))
    outcome = simulate(scenario, scenario.policy(Firing.AUTO))
    assert outcome.latencies_s == pytest.approx(np.full(100, 0.012 + FIXED_S))
    assert outcome.span_s == pytest.approx(100 * (0.012 + FIXED_S))
