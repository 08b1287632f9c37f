"""The account of the chaos runs can fail: it sees what is lost, double, crossed or hurt."""

import pytest
from benchmarks.chaos.accounting import ANSWERED, Ledger
from benchmarks.chaos.scenario import Request, plan


def request(number: int, behaviour: str = "fine", **more: object) -> Request:
    given = {"due_at": 0.0, "model": "texts", "transport": "http", "content": b"", **more}
    return Request(id=number, behaviour=behaviour, digests=(f"digest {number}",), **given)  # type: ignore[arg-type]


def sent(*requests: Request) -> Ledger:
    ledger = Ledger()
    for each in requests:
        ledger.sent(each, 0.0)
    return ledger


def broken(ledger: Ledger) -> list[str]:
    return [each.what for each in ledger.broken()]


def test_right_answers_and_refusals_by_overload_are_no_cause_for_complaint() -> None:
    first, second, third = request(1), request(2), request(3, leaves_after_s=0.1)
    ledger = sent(first, second, third)
    ledger.answered(first, first.digests, 0.1)
    ledger.failed(second, "queue_full", "the queue is full", 0.1)
    ledger.left(third, 0.1)
    assert not broken(ledger)
    assert ledger.counts() == {ANSWERED: 1, "queue_full": 1, "left": 1}
    assert ledger.sent_count == 3


def test_a_lost_answer_is_seen() -> None:
    ledger = sent(request(1))
    assert broken(ledger) == ["requests without an outcome"]


def test_a_second_answer_is_seen_and_the_first_one_stays() -> None:
    ledger = sent(request(1))
    ledger.answered(request(1), ["digest 1"], 0.1)
    ledger.failed(request(1), "model_failed", "", 0.2)
    assert broken(ledger) == ["requests with two outcomes"]
    assert ledger.counts() == {ANSWERED: 1}


def test_an_answer_to_the_wrong_caller_is_seen_with_its_owner() -> None:
    ledger = sent(request(1), request(2))
    ledger.answered(request(1), ["digest 2"], 0.1)
    ledger.answered(request(2), ["digest 2"], 0.1)
    assert broken(ledger) == ["answers to the wrong caller", "healthy requests that failed"]
    assert ledger.broken()[0].example == "request 1 got an answer with the digests of [2]"


def test_an_answer_that_nobody_asked_for_is_seen() -> None:
    ledger = sent()
    ledger.stray(b"HTTP/1.1 200 OK")
    assert broken(ledger) == ["answers that nobody waited for"]


@pytest.mark.parametrize("kind", ["model_failed", "poison", "not_ready", "hung_up", "left"])
def test_a_healthy_request_that_fails_is_seen(kind: str) -> None:
    ledger = sent(request(1))
    ledger.failed(request(1), kind, "why", 0.1)
    assert broken(ledger) == ["healthy requests that failed"]


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [("exit", "model_failed"), ("raise", "poison"), ("hang", "not_ready"), ("huge", "answered")],
)
def test_a_misbehaving_request_that_ends_otherwise_is_seen(behaviour: str, outcome: str) -> None:
    ledger = sent(request(1, behaviour))
    ledger.failed(request(1, behaviour), outcome, "", 0.1)
    assert broken(ledger) == ["misbehaving requests that ended otherwise than they should"]


def test_a_seed_decides_everything() -> None:
    assert plan(7, 20.0) == plan(7, 20.0)
    assert plan(7, 20.0).requests != plan(8, 20.0).requests
    assert plan(7, 20.0).faults != plan(8, 20.0).faults


def test_no_two_requests_of_a_plan_are_alike() -> None:
    digests = [digest for each in plan(1, 60.0).requests for digest in each.digests]
    assert len(set(digests)) == len(digests)


def test_the_load_is_three_times_as_high_in_the_surge() -> None:
    made = plan(1, 60.0)
    start, end = made.surge
    inside = sum(start <= each.due_at < end for each in made.requests) / (end - start)
    outside = sum(not start <= each.due_at < end for each in made.requests) / (60.0 - end + start)
    assert 2.5 < inside / outside < 3.3


def test_a_minute_has_every_kind_of_fault() -> None:
    from benchmarks.chaos.scenario import FAULTS

    happened = {(fault.model, fault.kind) for fault in plan(1, 60.0).faults}
    assert happened >= {(model, kind) for model, kinds in FAULTS.items() for kind in kinds}
