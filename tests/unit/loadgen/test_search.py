"""The highest rate that meets an objective, on servers whose law is known."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
from benchmarks import known_law

from headway.errors import ConfigError
from headway.lab.workload import Times
from headway.loadgen.against import in_turns, ratios, told
from headway.loadgen.report import Point, table, to_json
from headway.loadgen.room import ClientRoom
from headway.loadgen.samples import Samples
from headway.loadgen.search import Found, Objective, Search
from headway.loadgen.statistics import Interval, Summary, Window, open_summary

CAPACITY = 1000.0


def point(
    rate: float,
    seed: int,
    *,
    busy: float = 0.1,
    service_s: float = 1 / CAPACITY,
    seconds: float = 5.0,
) -> Point:
    """One server, first come first served: each request takes as long as another."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / rate, int(rate * (1 + seconds))))
    places = np.arange(len(due)) * service_s
    done = np.maximum.accumulate(due - places) + places + service_s
    summary = summary_of(due, done, Window(1.0, seconds), busy=busy)
    return Point(f"{rate:g}/s", rate, None, summary)


def summary_of(due: Times, done: Times, window: Window, *, busy: float = 0.1) -> Summary:
    samples = Samples(
        due_s=due,
        done_s=done,
        late_s=np.zeros(len(due)),
        kind=np.zeros(len(due), np.uint8),
        kinds=("",),
        room=ClientRoom(busy=busy, waiting=0.0),
    )
    return open_summary(samples, window)


class Clock:
    """A probe takes 4 s."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def probe(self, rate: float, seed: int, times: int) -> Point:
        self.now += 1.0 + 3.0 * times
        return point(rate, seed, seconds=10.0 * times)


def search(text: str, first: float, *, precision: float = 0.03) -> Found:
    clock = Clock()
    found = Search(
        clock.probe,
        Objective.parse(text),
        text=text,
        precision=precision,
        budget_s=80.0,
        probe_s=4.0,
        clock=clock,
    ).run(first)
    assert clock.now <= 80.0
    return found


@functools.cache
def fine_sweep(text: str) -> float:
    objective = Objective.parse(text)
    passed = (
        rate
        for rate in np.arange(940.0, 500.0, -20.0)
        if objective.strain(point(float(rate), 99, seconds=40.0).summary) <= 0
    )
    return float(next(passed))


@pytest.mark.parametrize("first", [100.0, 5000.0])
@pytest.mark.parametrize("text", ["p99<=20ms", "mean<3ms,errors<=1%"])
def test_the_rate_is_found_from_wherever_the_search_begins(text: str, first: float) -> None:
    found = search(text, first)
    objective = Objective.parse(text)
    assert found.rate_rps == pytest.approx(fine_sweep(text), rel=0.08)
    assert found.failed_rps is not None
    assert found.failed_rps > found.rate_rps
    assert f"{found.rate_rps:.4g}/s is the highest rate" in found.told()
    held = [each for each in found.probes if each.rate_rps == found.rate_rps]
    assert any(each.summary.seconds > 25 and objective.strain(each.summary) <= 0 for each in held)


@pytest.mark.parametrize("stalled", [0.0, 0.25])
@pytest.mark.parametrize("seed", [0, 1000, 2000])
def test_the_sleeping_models_rate_is_found_within_3_percent(seed: int, stalled: float) -> None:
    """5 ms and 0.05 ms a row, at most 64 rows: 6,168/s have a p99 of 15 ms, by a fine sweep of the
    law itself (`bench_command._exact_rate`). Each probe lasts 1 s; in some, the machine does
    something else for a while."""

    def probe(rate: float, number: int, times: int) -> Point:
        clock.now += 0.3 + times
        rng = np.random.default_rng(seed + number)
        due = np.cumsum(rng.exponential(1 / rate, int(rate * (0.3 + times))))
        done = due + known_law.latencies(due, 0.005, 0.000_05, 64)
        if rng.random() < stalled:
            begin = rng.uniform(0.3, 0.3 + times)
            done = np.maximum(done, np.where(due > begin, begin + rng.exponential(0.1), 0.0))
        return Point("", rate, None, summary_of(due, done, Window(0.3, 0.3 + times)))

    clock, text = Clock(), "p99<=15ms"
    found = Search(
        probe, Objective.parse(text), text=text, budget_s=58.0, probe_s=1.3, clock=clock
    ).run(4000.0)
    assert found.rate_rps == pytest.approx(6168, rel=0.03)
    assert clock.now < 58


def test_one_bad_moment_of_the_machine_does_not_end_the_search() -> None:
    clock, objective = Clock(), Objective.parse("p99<=20ms")

    def probe(rate: float, seed: int, times: int) -> Point:
        measured = clock.probe(rate, seed, times)
        if seed != 2:
            return measured
        slow = {each: Interval(0.05) for each in measured.summary.percentiles_s}
        return replace(measured, summary=replace(measured.summary, percentiles_s=slow))

    found = Search(probe, objective, text="p99<=20ms", budget_s=80.0, probe_s=4.0, clock=clock).run(
        400.0
    )
    assert objective.broken_by(found.probes[1].summary) is not None
    assert found.rate_rps is not None
    assert found.rate_rps > 1.5 * (found.probes[1].rate_rps or 0.0)


def test_where_no_rate_passes_none_is_named() -> None:
    found = search("p99<=0.5ms", 700.0)
    assert found.rate_rps is None
    assert found.told().startswith("no rate of ")


def test_a_failure_without_room_for_the_client_is_said() -> None:
    clock = Clock()
    found = Search(
        lambda rate, seed, times: point(rate, seed, busy=0.95),
        Objective.parse("p99<=20ms"),
        text="p99<=20ms",
        clock=clock,
    ).run(700.0)
    assert not found.had_room
    assert "the client had no room" in found.told()


def test_a_search_ends_where_the_server_goes_away() -> None:
    def probe(rate: float, seed: int, times: int) -> Point:
        if seed == 1:
            return point(rate, seed)
        due = np.arange(0.0, 6.0, 0.01)
        gone = Samples(
            due_s=due,
            done_s=due + 0.001,
            late_s=np.zeros(len(due)),
            kind=(due > 3).astype(np.uint8),
            kinds=("", "connection refused"),
            room=ClientRoom(busy=0.1, waiting=0.0),
        )
        return Point(f"{rate:g}/s", rate, None, open_summary(gone, Window(1.0, 5.0)))

    found = Search(probe, Objective.parse("p99<=20ms"), text="p99<=20ms").run(700.0)
    assert found.rate_rps is None
    assert len(found.probes) == 2
    assert found.stopped == "the server went away"
    assert found.was_away


@pytest.mark.parametrize("text", ["", "p98<=5ms", "p99>=5ms", "p99<=5", "errors<=5ms", "p99<=1%"])
def test_what_is_no_objective_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="form"):
        Objective.parse(text)


def test_an_objective_without_a_latency_has_no_limit_to_find() -> None:
    with pytest.raises(ConfigError, match="bounds no latency"):
        Objective.parse("errors<=1%")


def test_two_servers_are_compared_round_by_round() -> None:
    pairs = in_turns(
        lambda number: point(500, number), lambda number: point(500, number, service_s=0.0015), 5
    )
    found = {each.name: each for each in ratios(*pairs)}
    assert found["answers/s"].value == pytest.approx(1.0, abs=0.02)
    assert not found["answers/s"].is_a_difference
    assert found["mean"].is_a_difference
    assert found["mean"].value > 1.4
    assert "no difference that shows" in told(list(found.values()), "a", "b")


def test_who_is_first_changes_from_round_to_round() -> None:
    order: list[str] = []

    def measure(name: str, number: int) -> Point:
        order.append(name)
        return point(100, number)

    in_turns(lambda number: measure("a", number), lambda number: measure("b", number), 3)
    assert "".join(order) == "abbaab"


def test_a_saturated_point_has_no_percentiles_in_the_table() -> None:
    rows = table([point(500, 1), point(1500, 1)], None).splitlines()
    assert rows[2].split()[-1] == "–"
    assert "–" not in rows[1]
    assert any("not valid: the rate was not held" in row for row in rows)


def test_json_has_no_infinities() -> None:
    made = to_json(point(500, 1))
    assert made["valid"]
    assert math.isfinite(made["latency_ms"]["p99"]["high"])
    assert to_json(point(1500, 1))["saturated"]
