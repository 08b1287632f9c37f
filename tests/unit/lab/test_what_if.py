"""The last batches, simulated as they were and under other settings."""

import dataclasses
import json
from typing import Any

import pytest

from headway.core.costs import CostTable
from headway.core.policy import Compose, Policy
from headway.errors import ConfigError
from headway.lab.what_if import what_if

ROW_S, BATCH_S, GAP_S = 0.001, 0.008, 0.0005
TABLE = CostTable(
    rows=(1, 64), sizes=None, seconds=((BATCH_S + ROW_S,), (BATCH_S + 64 * ROW_S,))
).to_json()


def batch_of(number: int, rows: int, *, size: int = 0) -> dict[str, Any]:
    """The `rows` items came one after the other, and ran at once when the last was there."""
    begin = number * 0.08
    ran_s = BATCH_S + ROW_S * rows * max(1, size)
    arrivals = [begin + n * GAP_S for n in range(rows)]
    return {
        "rows": rows,
        "padded_rows": rows,
        "size": size,
        "fired_at": arrivals[-1],
        "reruns": 0,
        "lost": None,
        "finished_at": arrivals[-1] + ran_s,
        "items": [
            {
                "arrived_at": at,
                "rows": 1,
                "size": size,
                "priority": "normal",
                "tenant": "",
                "deadline_at": None,
            }
            for at in arrivals
        ],
    }


def ask(
    batches: list[Any], *, table: Any = TABLE, slo_s: float | None = None, **changes: Any
) -> Any:
    return ask_of(Policy(slo_s=slo_s), batches, table=table, **changes)


def ask_of(in_force: Policy, batches: list[Any], *, table: Any = TABLE, **changes: Any) -> Any:
    policy = json.loads(json.dumps(dataclasses.asdict(in_force)))
    return what_if({"batches": batches, "policy": policy, "table": table, "changes": changes})


BATCHES = [batch_of(number, 1 + number % 8) for number in range(60)]


def test_what_was_measured_is_told_and_no_change_changes_nothing() -> None:
    found = ask(BATCHES)
    assert found["items"] == sum(each["rows"] for each in BATCHES)
    assert found["batches"] == len(BATCHES)
    assert found["measured"]["mean_rows"] == pytest.approx(found["items"] / 60, abs=1e-3)
    assert found["simulated"] == found["changed"]
    assert found["simulated"]["refused"] == 0
    assert found["simulated"]["p50_ms"] >= (BATCH_S + ROW_S) * 1e3 - 1e-6


def test_smaller_batches_are_simulated() -> None:
    found = ask(BATCHES, max_batch_size=1)
    assert found["changed"]["mean_rows"] == 1
    assert found["changed"]["p99_ms"] > found["simulated"]["p99_ms"]


def test_a_goal_is_held_against_all_of_them() -> None:
    found = ask(BATCHES, slo_ms=12)
    assert 0 < found["measured"]["in_time"] < 1
    assert ask(BATCHES)["changed"]["in_time"] is None
    assert ask(BATCHES, slo_s=0.5)["changed"]["in_time"] == 1


def test_another_rule_another_order_and_more_workers_are_simulated() -> None:
    waits = ask(BATCHES, policy="window", max_wait_ms=50)
    assert waits["changed"]["p50_ms"] > waits["simulated"]["p50_ms"] + 20
    crowded = [batch_of(number / 8, 8) for number in range(60)]
    two = ask(crowded, workers=2, max_batch_size=8)
    assert two["changed"]["p99_ms"] < ask(crowded, max_batch_size=8)["changed"]["p99_ms"]
    sizes = [batch_of(number / 8, 4 + number % 5, size=1 + number % 3) for number in range(60)]
    for changes in ({"order": "shortest"}, {"compose": "fifo"}, {"max_batch_cost": 8}):
        found = ask(sizes, table=None, **changes)
        assert found["changed"] != found["simulated"]


def test_what_is_not_to_be_trusted_is_said() -> None:
    alone = [batch_of(number, 1) for number in range(120)]
    assert ask(alone)["hints"] == []
    assert ask(alone[:99])["hints"] == ["only a hint: 99 items are too few for a p99"]
    slow = [batch_of(number, 1) for number in range(120)]
    for [item] in (each["items"] for each in slow):
        item["arrived_at"] -= 1
    assert ask(slow)["hints"] == ["only a hint: the simulated p99 of what happened is off by 99%"]
    said = ask(BATCHES, table=None, max_batch_size=32)["hints"][-1]
    assert said == "no batch had more than 8 rows: what larger ones take is a guess"


@pytest.mark.parametrize("size", [0, 7])
def test_without_a_table_of_the_warm_up_batch_times_are_fitted(size: int) -> None:
    batches = [
        batch_of(number, 1 + number % 8, size=size and 1 + number % 5) for number in range(60)
    ]
    found = ask(batches, table=None)
    assert found["simulated"]["p50_ms"] == pytest.approx(found["measured"]["p50_ms"], rel=0.5)


def test_an_item_of_several_rows_is_answered_with_its_last_row() -> None:
    batches = [batch_of(number, 4) for number in range(60)]
    for batch in batches:
        first = batch["items"][0]
        batch["items"] = [{**first, "rows": 4}]
    found = ask(batches, max_batch_size=2)
    assert found["items"] == 60
    assert found["changed"]["mean_rows"] == 2
    assert found["changed"]["p50_ms"] >= 2 * (BATCH_S + 2 * ROW_S) * 1e3 - 1e-6


def test_the_only_batch_sizes_are_those_in_force() -> None:
    policy = Policy(batch_sizes=(4, 16, 64))
    found = ask_of(policy, BATCHES, max_batch_size=4)
    for each in ("simulated", "changed"):
        assert found[each]["p50_ms"] >= (BATCH_S + 4 * ROW_S) * 1e3 - 1e-6
    with pytest.raises(ConfigError, match=r"max_batch_size: is 8, .* batch_sizes: 4, 16, 64"):
        ask_of(policy, BATCHES, max_batch_size=8)


def test_sizes_are_padded_and_kept_apart_as_they_are_in_force() -> None:
    batches = [batch_of(number, 1 + number % 8, size=1 + number % 5) for number in range(60)]
    long = (BATCH_S + 50 * ROW_S) * 1e3
    padded = ask_of(Policy(pad_sizes=(50,)), batches, table=None)["simulated"]
    assert padded["p50_ms"] >= 0.9 * long > ask(batches, table=None)["simulated"]["p50_ms"]
    for size, item in enumerate(item for batch in batches for item in batch["items"]):
        item["size"] = 1 + size % 5
    one, each = (
        ask_of(Policy(compose=Compose.BUCKETS, buckets=bounds), batches, table=None)["simulated"]
        for bounds in [(5,), (1, 2, 3, 4, 5)]
    )
    assert one["mean_rows"] > 1.5 * each["mean_rows"]


@pytest.mark.parametrize(
    ("batches", "table", "changes", "message"),
    [
        (BATCHES[:2], TABLE, {}, "only 3 items are remembered"),
        ([], TABLE, {}, "only 0 items"),
        ([batch_of(number, 3) for number in range(30)], None, {}, "the last batches all had 3"),
        (BATCHES, TABLE, {"colour": 2}, "colour cannot be changed"),
        (BATCHES, TABLE, {"policy": "slow"}, "policy: 'slow' is not one of 'auto'"),
        (BATCHES, TABLE, {"max_batch_size": 0}, "max_batch_size"),
        (BATCHES, TABLE, {"slo_ms": -1}, "slo_ms"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    batches: Any, table: Any, changes: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(batches, table=table, **changes)
