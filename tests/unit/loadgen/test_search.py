"""The highest rate that meets an objective, on servers whose law is known."""

import math

import numpy as np
import pytest

from headway.errors import ConfigError
from headway.loadgen.against import in_turns, ratios, told
from headway.loadgen.report import Point, table, to_json
from headway.loadgen.room import ClientRoom
from headway.loadgen.samples import Samples
from headway.loadgen.search import Found, Objective, Search
from headway.loadgen.statistics import Window, open_summary

CAPACITY = 1000.0


def point(rate: float, seed: int, *, busy: float = 0.1, service_s: float = 1 / CAPACITY) -> Point:
    """One server, first come first served: each request takes as long as another."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / rate, int(rate * 6)))
    places = np.arange(len(due)) * service_s
    done = np.maximum.accumulate(due - places) + places + service_s
    samples = Samples(
        due_s=due,
        done_s=done,
        late_s=np.zeros(len(due)),
        kind=np.zeros(len(due), np.uint8),
        kinds=("",),
        room=ClientRoom(busy=busy, waiting=0.0),
    )
    return Point(f"{rate:g}/s", rate, None, open_summary(samples, Window(1.0, 5.0)))


class Clock:
    """A probe takes 4 s."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def probe(self, rate: float, seed: int) -> Point:
        self.now += 4.0
        return point(rate, seed)


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


@pytest.mark.parametrize("first", [100.0, 700.0, 5000.0])
@pytest.mark.parametrize("text", ["p99<=20ms", "mean<3ms,errors<=1%"])
def test_the_rate_is_found_from_wherever_the_search_begins(text: str, first: float) -> None:
    found = search(text, first)
    objective = Objective.parse(text)
    fine = [
        rate
        for rate in np.arange(500.0, 1000.0, 5.0)
        if sum(objective.broken_by(point(rate, seed).summary) is None for seed in range(5)) >= 3
    ]
    assert found.rate_rps == pytest.approx(max(fine), rel=0.06)
    assert found.failed_rps is not None
    assert found.failed_rps > found.rate_rps
    assert f"{found.rate_rps:.4g}/s is the highest rate" in found.told()
    passes = [
        each
        for each in found.probes
        if each.rate_rps == found.rate_rps and objective.broken_by(each.summary) is None
    ]
    assert len(passes) >= 3


def test_where_no_rate_passes_none_is_named() -> None:
    found = search("p99<=0.5ms", 700.0)
    assert found.rate_rps is None
    assert found.told().startswith("none of ")


def test_a_failure_without_room_for_the_client_is_said() -> None:
    clock = Clock()
    found = Search(
        lambda rate, seed: point(rate, seed, busy=0.95),
        Objective.parse("p99<=20ms"),
        text="p99<=20ms",
        clock=clock,
    ).run(700.0)
    assert not found.had_room
    assert "the client had no room" in found.told()


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
