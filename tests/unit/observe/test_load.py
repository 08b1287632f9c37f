"""The load of a process, as it is read."""

import json

import pytest

from headway.core.lifecycle.scaling import LOADING_WORK
from headway.observe.exposition import Exposition
from headway.observe.load import LoadSignals, ServerLoad


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_reading_is_the_sum_of_its_sources_and_serves_for_a_moment() -> None:
    clock, asked = Clock(), []
    signals = LoadSignals(clock=clock)
    signals.add_source(lambda: asked.append(1) or ServerLoad(3, 2, 0.25, 10.0))  # type: ignore[func-returns-value]
    signals.add_source(lambda: ServerLoad(1, 0, 0.5, 0.5))
    assert signals.read().load == ServerLoad(4, 2, 0.75, 10.5)
    clock.now += 0.005
    signals.read()
    assert len(asked) == 1
    clock.now += 0.006
    signals.read()
    assert len(asked) == 2


def test_loading_is_work_from_the_start_to_the_last_reading_that_found_it() -> None:
    clock, is_loading = Clock(), True
    signals = LoadSignals(clock=clock)
    signals.is_loading = lambda: is_loading
    for _ in range(10):
        clock.now += 1.0
        assert signals.read().utilization == pytest.approx(
            LOADING_WORK if clock.now > 101.0 else 0.0
        )
    is_loading = False
    clock.now += 1.0
    assert signals.read().load.work_s == pytest.approx(10 * LOADING_WORK)
    is_loading = True
    clock.now += 100.0
    assert signals.read().load.work_s == pytest.approx(10 * LOADING_WORK)


def test_the_figures_are_written_for_prometheus_and_for_orca() -> None:
    signals = LoadSignals(clock=Clock())
    signals.add_source(lambda: ServerLoad(4, 2, 0.75, 10.5))
    page = Exposition()
    signals.add_to(page)
    assert "headway_load_queue_seconds 0.75\n" in page.text()
    assert "headway_load_work_seconds_total 10.5\n" in page.text()
    text = signals.orca("TEXT") or ""
    assert text.startswith("TEXT application_utilization=0.0, named_metrics.queue_seconds=0.75")
    form, _, figures = (signals.orca("JSON") or "").partition(" ")
    assert form == "JSON"
    assert json.loads(figures)["named_metrics"] == {
        "queue_seconds": 0.75,
        "queued_requests": 4,
        "running_requests": 2,
    }
    assert signals.orca("BIN") is None
