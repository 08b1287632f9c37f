"""What `headway tune` says of its live runs."""

from types import SimpleNamespace
from typing import Any

from headway.cli.tune import why_not_valid


def run(*faults: str) -> Any:
    return SimpleNamespace(summary=SimpleNamespace(faults=faults))


def test_a_fault_is_told_once_for_each_setting() -> None:
    busy = [run("the client used 93% of a core"), run("the client used 87% of a core"), run()]
    assert why_not_valid({"default": busy, "best": busy}) == [
        "not a valid live run (default): the client used 93% of a core"
    ]
    other = [run("no request was answered")]
    assert why_not_valid({"default": busy, "best": other})[1:] == [
        "not a valid live run (best): no request was answered"
    ]
    assert why_not_valid({}) == []
