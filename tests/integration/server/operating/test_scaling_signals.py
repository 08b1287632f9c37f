"""The benchmark `scaling` in short: the shipped files scale real servers up, behind a real HAProxy,
by what a real Prometheus says. And the formula that it obeys."""

import asyncio
import shutil

import pytest
from benchmarks.lab.scalers import HorizontalPodAutoscaler, ScaledMetric, Scaler
from benchmarks.lab.scaling import MOST, UP_ONLY, play

PROGRAMS = ("prometheus", "haproxy", "helm")
TWO = Scaler([ScaledMetric("load", 0.7), ScaledMetric("queue", 0.1)], 1, 4, down_s=300.0)


def test_the_formula_takes_the_largest_and_leaves_alone_what_is_near() -> None:
    rule = HorizontalPodAutoscaler(TWO)
    assert rule.replicas(0.0, 1, [0.76, 0.0]) == 1  # within a tenth
    assert rule.replicas(15.0, 1, [0.8, 0.0]) == 2
    assert rule.replicas(30.0, 2, [0.8, 0.31]) == 4
    assert rule.replicas(45.0, 4, [9.0, 9.0]) == 4  # the most


def test_fewer_only_after_the_window_and_none_while_a_figure_is_missing() -> None:
    rule = HorizontalPodAutoscaler(TWO)
    assert rule.replicas(0.0, 4, [2.5, 0.0]) == 4
    assert rule.replicas(15.0, 4, [0.1, 0.0]) == 4
    assert rule.replicas(299.0, 4, [None, 0.0]) == 4
    assert rule.replicas(601.0, 4, [0.1, 0.0]) == 1
    assert rule.replicas(602.0, 1, [None, 0.3]) == 3


@pytest.mark.slow
@pytest.mark.skipif(
    any(shutil.which(each) is None for each in PROGRAMS), reason=f"needs {', '.join(PROGRAMS)}"
)
def test_the_shipped_files_scale_servers_and_lose_no_request() -> None:
    run = asyncio.run(play(UP_ONLY))
    assert run.failures == []
    assert run.path[0] == 1
    assert run.path[-1] == MOST
    assert set(run.exits) == {0}
    assert len(run.readings.most) == 5  # the HPA, KEDA and KServe have two each, one in common
    assert set(run.readings.most.values()) == {1}
