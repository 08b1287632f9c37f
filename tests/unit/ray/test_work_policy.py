"""How many replicas Ray Serve is told to run. The policy needs no Ray."""

from types import SimpleNamespace
from typing import Any

import pytest

import headway
import headway.ray
from headway.ray.scaling import WorkPolicy


def context(here: int, target: int | None = None, queued: float = 0.0, **said: Any) -> Any:
    """`said`: by each replica, its figures over time."""
    metrics = {
        name: {
            f"replica {n}": [SimpleNamespace(value=each) for each in series]
            for n, series in enumerate(by_replica)
        }
        for name, by_replica in said.items()
    }
    return SimpleNamespace(
        running_replicas=[f"replica {n}" for n in range(here)],
        target_num_replicas=here if target is None else target,
        total_queued_requests=queued,
        raw_metrics=metrics,
    )


def wanted(context: Any) -> int:
    count, state = WorkPolicy(target_wait_s=0.1)(context)
    assert state == {}
    return count


def test_the_latest_words_of_all_replicas_count() -> None:
    assert wanted(context(2, work=[[0.1, 0.9], [0.9, 0.8]], queued_s=[[0.0], [0.0]])) == 3
    assert wanted(context(2, work=[[0.2], [0.1]], queued_s=[[0.0], [0.0]])) == 1
    assert wanted(context(2, work=[[0.2], [0.1]], queued_s=[[0.3], [0.1]])) == 4


def test_while_nothing_is_known_the_number_stays() -> None:
    assert wanted(context(2)) == 2
    assert wanted(context(2, work=[[]], queued_s=[[]])) == 2


def test_replicas_that_start_are_not_taken_away() -> None:
    quiet: dict[str, Any] = {"work": [[0.1]], "queued_s": [[0.0]]}
    assert wanted(context(1, target=3, **quiet)) == 3
    assert wanted(context(3, target=3, **quiet)) == 1


def test_what_waits_for_replicas_that_start_asks_for_no_further_ones() -> None:
    full: dict[str, Any] = {"work": [[1.0]], "queued_s": [[0.9]]}
    assert wanted(context(1, **full)) == 9
    assert wanted(context(1, target=2, **full)) == 2
    assert wanted(context(2, target=3, work=[[1.3], [1.3]], queued_s=[[9.0], [9.0]])) == 4  # work


def test_from_zero_a_request_that_waits_is_enough() -> None:
    assert wanted(context(0, queued=1)) == 1
    assert wanted(context(0)) == 0


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(headway.ConfigError, match=r"pip install 'headway\[ray\]'"):
        headway.ray.deployment("app:Model")
