"""When is a model at its full rate again? From the account alone."""

from benchmarks.chaos.accounting import ANSWERED, Entry
from benchmarks.chaos.recovery import Recovery, recoveries
from benchmarks.chaos.scenario import Fault, Plan, Request

FAULT = Fault(1.0, "texts", "kill")


def entry(due_at: float, latency_s: float = 0.01, outcome: str = ANSWERED) -> Entry:
    request = Request(
        id=int(due_at * 1000),
        due_at=due_at,
        model="texts",
        transport="http",
        behaviour="fine",
        content=b"",
        digests=(),
    )
    return Entry(request, outcome, due_at + latency_s)


def recovery(entries: list[Entry], *more: Fault) -> Recovery:
    plan = Plan(1, 3.0, [], [FAULT, *more], (3.0, 3.0))
    return recoveries(plan, entries)[0]


def steady(start: float, end: float, **more: object) -> list[Entry]:
    """A request every 10 ms."""
    times = range(round(start * 100), round(end * 100))
    return [entry(time / 100, **more) for time in times]  # type: ignore[arg-type]


def test_a_fault_that_nobody_notices_takes_no_time() -> None:
    assert recovery(steady(0.0, 3.0)).full_rate_s == 0.0


def test_late_answers_count_until_the_first_that_is_prompt_again() -> None:
    late = steady(1.0, 1.5, latency_s=0.4)
    found = recovery([*steady(0.0, 1.0), *late, *steady(1.5, 3.0)])
    assert found.full_rate_s == 0.5
    assert round(found.slowest_s, 3) == 0.4


def test_one_prompt_answer_among_late_ones_is_not_the_end() -> None:
    late = steady(1.0, 1.5, latency_s=0.4)
    late[20] = entry(1.2)
    assert recovery([*steady(0.0, 1.0), *late, *steady(1.5, 3.0)]).full_rate_s == 0.5


def test_a_refusal_is_not_full_rate_either() -> None:
    refused = steady(1.2, 1.3, outcome="queue_full")
    found = recovery([*steady(0.0, 1.2), *refused, *steady(1.3, 3.0)])
    assert round(found.full_rate_s or 0.0, 3) == 0.3
    assert found.refused == 10


def test_not_before_the_next_fault_is_told_as_such() -> None:
    late = steady(1.0, 3.0, latency_s=0.4)
    assert recovery([*steady(0.0, 1.0), *late], Fault(2.0, "texts", "stop")).full_rate_s is None
