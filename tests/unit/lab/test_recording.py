"""Pages of batches become a trace that simulate reads."""

import json
from pathlib import Path
from typing import Any

from headway.lab.recording import Recording
from headway.lab.traces import read_outputs, read_sizes, read_tenants, read_trace


def item(number: int, at: float, **more: Any) -> dict[str, Any]:
    usual = {"id": number, "arrived_at": at, "rows": 1, "size": 7, "priority": "normal"}
    return {**usual, "tenant": "acme", **more}


def batch(*items: dict[str, Any], model: str = "m") -> dict[str, Any]:
    return {"model": model, "version": "1", "items": list(items)}


def page(
    *batches: dict[str, Any], answers: tuple[dict[str, Any], ...] = (), left_out: int = 0
) -> dict[str, Any]:
    found = {"left_out": left_out, "has_gap": False}
    return {**found, "batches": list(batches), "answers": list(answers)}


def lines(recording: Recording) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recording.lines()]


def test_requests_are_in_the_order_of_arrival_from_the_first_on() -> None:
    recording = Recording()
    recording.add(page(batch(item(2, 100.5), item(1, 100.25))), since=0.0)
    recording.add(page(batch(item(3, 100.3))), since=0.0)
    assert [each["timestamp"] for each in lines(recording)] == [0.0, 50.0, 250.0]


def test_tenants_get_names_that_mean_nothing_unless_they_are_to_be_kept() -> None:
    for keeps, names in ((False, {"t1", "t2"}), (True, {"acme", "other"})):
        recording = Recording(keeps_tenants=keeps)
        recording.add(page(batch(item(1, 1.0), item(2, 2.0, tenant="other"))), since=0.0)
        assert {each["tenant"] for each in lines(recording)} == names


def test_what_ran_again_is_one_request() -> None:
    recording = Recording()
    recording.add(page(batch(item(1, 1.0)), batch(item(1, 1.0))), since=0.0)
    recording.add(page(batch(item(1, 1.0), model="other")), since=0.0)
    assert len(recording) == 2


def test_what_came_before_is_left_out() -> None:
    recording = Recording()
    recording.add(page(batch(item(1, 1.0), item(2, 5.0))), since=4.0)
    assert len(recording) == 1


def test_what_the_server_forgot_is_counted() -> None:
    recording = Recording()
    recording.add(page(left_out=3), since=0.0)
    assert recording.missed == 3


def test_a_recording_is_a_trace(tmp_path: Path) -> None:
    answer = {"model": "chat", "version": "1", "sequence": 1, "arrived_at": 2.5}
    recording = Recording()
    told = ({**answer, "prompt_tokens": 20, "tokens": 9},)
    recording.add(page(batch(item(1, 1.0, size=0)), answers=told), since=0.0)
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(recording.lines()))
    assert read_trace(path).tolist() == [0.0, 1.5]
    assert read_sizes(path).tolist() == [1, 20]
    assert read_outputs(path).tolist() == [1, 9]
    assert read_tenants(path) == ["t1", ""]
