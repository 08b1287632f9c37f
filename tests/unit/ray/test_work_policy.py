"""How many replicas Ray Serve is told to run. The policy needs no Ray."""

from types import SimpleNamespace
from typing import Any

import pytest

import headway
import headway.ray
from headway.ray.scaling import WorkPolicy


def context(here: int, target: int | None = None, queued: float = 0.0, **said: Any) -> Any:
    """`said`: by each replica, its figures, one a second."""
    metrics = {
        name: {
            f"replica {n}": [
                SimpleNamespace(timestamp=float(at), value=each) for at, each in enumerate(series)
            ]
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


def test_the_latest_words_of_the_replicas_that_run_count() -> None:
    assert wanted(context(2, work=[[0.1, 0.9], [0.9, 0.8]], queued_s=[[0.0], [0.0]])) == 3
    assert wanted(context(2, work=[[0.2], [0.1]], queued_s=[[0.0], [0.0]])) == 1
    assert wanted(context(2, work=[[0.2], [0.1], [1.0]], queued_s=[[0.0], [0.0], [9.0]])) == 1


def test_a_queue_that_grows_is_load_and_one_that_is_worked_off_is_none() -> None:
    full: dict[str, Any] = {"work": [[1.0] * 6]}
    assert wanted(context(1, **full, queued_s=[[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])) == 2  # 1.1
    assert wanted(context(1, **full, queued_s=[[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]])) == 3  # 2
    assert wanted(context(1, **full, queued_s=[[3.0, 2.5, 2.0, 1.5, 1.0, 0.5]])) == 1  # 0.5


def test_what_those_by_load_will_have_worked_off_asks_for_no_further_ones() -> None:
    assert wanted(context(2, work=[[0.5], [0.5]], queued_s=[[5.0], [4.5]])) == 2
    assert wanted(context(2, work=[[0.5], [0.5]], queued_s=[[5.0], [5.5]])) == 5


def test_a_load_at_the_edge_of_a_number_changes_nothing() -> None:
    assert wanted(context(1, work=[[0.75]], queued_s=[[0.0]])) == 1
    assert wanted(context(1, work=[[0.78]], queued_s=[[0.0]])) == 2
    assert wanted(context(2, work=[[0.38], [0.38]], queued_s=[[0.0], [0.0]])) == 2


def test_while_nothing_is_known_the_number_stays() -> None:
    assert wanted(context(2)) == 2
    assert wanted(context(2, work=[[]], queued_s=[[]])) == 2


def test_replicas_that_start_are_not_taken_away() -> None:
    quiet: dict[str, Any] = {"work": [[0.1]], "queued_s": [[0.0]]}
    assert wanted(context(1, target=3, **quiet)) == 3
    assert wanted(context(3, target=3, **quiet)) == 1


def test_what_waits_for_replicas_that_start_asks_for_no_further_ones() -> None:
    full: dict[str, Any] = {"work": [[1.0]], "queued_s": [[20.0]]}
    assert wanted(context(1, **full)) == 100
    assert wanted(context(1, target=2, **full)) == 2
    assert wanted(context(2, target=3, work=[[1.3], [1.3]], queued_s=[[9.0], [9.0]])) == 4  # work


@pytest.mark.parametrize("starts_s", [6.0, 25.0])
def test_a_step_of_the_load_in_virtual_time(starts_s: float) -> None:
    """As fluid: 0.3 replicas' work, 1.1, and 0.2; Serve asks ten times a second, and goes up after
    three seconds of wishing."""
    policy, said = WorkPolicy(target_wait_s=0.3), Said()
    serving, target, ready_at, wishes_since = 1, 1, 0.0, None
    path = [serving]
    for tick in range(1500):
        now = tick / 10
        said.work(now, serving, 0.3 if now < 15 else 1.1 if now < 90 else 0.2)
        here = context(serving, target)
        here.raw_metrics = said.metrics
        count, _ = policy(here)
        if count == target:
            wishes_since = None
        elif now - (wishes_since := now if wishes_since is None else wishes_since) >= 3.0:
            target, ready_at, wishes_since = count, now + starts_s, None
        if target < serving or now >= ready_at:
            serving = target
        if path[-1] != serving:
            path.append(serving)
    assert path == [1, 2, 1]


class Said:
    """What replicas that share the work say; what they do not manage waits."""

    def __init__(self) -> None:
        self.metrics: dict[str, dict[str, list[Any]]] = {"work": {}, "queued_s": {}}
        self._queued_s = 0.0

    def work(self, now: float, serving: int, load: float) -> None:
        done = min(float(serving), load + self._queued_s * 10)  # in a tenth of a second
        self._queued_s += (load - done) / 10
        if round(now * 10) % 10 == 0:
            for name, value in (("work", done), ("queued_s", self._queued_s)):
                for n in range(serving):
                    point = SimpleNamespace(timestamp=now, value=value / serving)
                    self.metrics[name].setdefault(f"replica {n}", []).append(point)


def test_from_zero_a_request_that_waits_is_enough() -> None:
    assert wanted(context(0, queued=1)) == 1
    assert wanted(context(0)) == 0


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(headway.ConfigError, match=r"pip install 'headway\[ray\]'"):
        headway.ray.deployment("app:Model")
