"""Which versions are loaded, which one answers, and when that changes."""

import math

import pytest

from headway.core.items import Wait
from headway.core.lifecycle.versions import (
    RETRY_S,
    Lifecycle,
    Load,
    Offer,
    Retire,
    VersionPolicy,
    VersionState,
)

V1, V2, V3 = (Offer(version, "a") for version in (1, 2, 3))


def steps(life: Lifecycle, now: float = 0.0) -> list[Load | Retire]:
    """Everything to do now."""
    found: list[Load | Retire] = []
    while not isinstance(action := life.next_action(now), Wait):
        found.append(action)
    return found


def serving(*offers: Offer, policy: VersionPolicy | None = None, **more: object) -> Lifecycle:
    """With everything loaded that the policy chooses."""
    life = Lifecycle(policy, **more)  # type: ignore[arg-type]
    life.offer(offers)
    life.want()
    while loads := steps(life):
        for load in loads:
            assert isinstance(load, Load)
            life.ready(load.id, 0.0)
    return life


def answers(life: Lifecycle, version: int | None = None) -> int | None:
    """The version that answers, by the id of its copy."""
    id_ = life.resolve(version)
    return next((each for each, found in life.serving().items() if found == id_), None)


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (VersionPolicy(), (7,)),
        (VersionPolicy(latest=2), (7, 3)),
        (VersionPolicy(latest=None), (7, 3, 1)),
        (VersionPolicy(latest=9), (7, 3, 1)),
        (VersionPolicy(listed=(1, 3, 5)), (3, 1)),
    ],
)
def test_a_policy_chooses_highest_first(policy: VersionPolicy, chosen: tuple[int, ...]) -> None:
    assert policy.choose([1, 7, 3]) == chosen


def test_nothing_is_loaded_before_it_is_wanted() -> None:
    life = Lifecycle()
    life.offer([V1])
    assert steps(life) == []
    assert life.resolve() is None
    life.want()
    assert steps(life) == [Load(1, V1)]
    assert life.resolve() is None  # still loading
    life.warming(1)
    assert life.resolve() is None
    life.ready(1, 0.0)
    assert life.resolve() == 1


def test_versions_load_one_after_the_other_highest_first() -> None:
    life = Lifecycle(VersionPolicy(latest=None))
    life.offer([V1, V2])
    life.want()
    assert steps(life) == [Load(1, V2)]
    assert steps(life) == []
    life.ready(1, 0.0)
    assert steps(life) == [Load(2, V1)]


def test_a_new_version_takes_over_when_it_is_ready_and_not_before() -> None:
    life = serving(V1)
    life.offer([V1, V2])
    assert steps(life) == [Load(2, V2)]
    assert answers(life) == 1
    life.ready(2, 1.0)
    assert answers(life) == 2
    assert steps(life) == [Retire(1)]
    assert life.resolve(1) is None
    life.closed(1)
    assert [status.version for status in life.index()] == [1, 2]


def test_a_new_version_that_fails_leaves_the_old_one_in_place() -> None:
    life = serving(V1)
    life.offer([V1, V2])
    steps(life)
    life.failed(2, "no weights", 1.0)
    assert steps(life, 1.0) == []
    assert answers(life) == 1
    [first, second] = life.index()
    assert (first.state, second.state, second.reason) == (VersionState.READY, None, "no weights")


def test_the_same_version_with_other_files_is_loaded_beside_the_running_one() -> None:
    life = serving(V1)
    changed = Offer(1, "b")
    life.offer([changed])
    assert steps(life) == [Load(2, changed)]
    assert life.resolve() == life.resolve(1) == 1
    life.ready(2, 1.0)
    assert life.resolve() == life.resolve(1) == 2
    assert steps(life) == [Retire(1)]


def test_a_reload_that_fails_is_told_beside_the_version_that_answers() -> None:
    life = serving(V1)
    life.offer([Offer(1, "b")])
    steps(life)
    life.failed(2, "bad file", 1.0)
    [status] = life.index()
    assert status.state is VersionState.READY
    assert status.reason == "the last reload failed: bad file"


def test_with_several_versions_the_oldest_goes_once_its_successor_is_there() -> None:
    life = serving(V1, V2, policy=VersionPolicy(latest=2))
    life.offer([V1, V2, V3])
    assert steps(life) == [Load(3, V3)]
    assert life.serving() == {1: 2, 2: 1}
    life.ready(3, 1.0)
    assert steps(life) == [Retire(2)]
    assert life.serving() == {2: 1, 3: 3}


def test_a_version_taken_away_is_replaced_by_an_older_one_first() -> None:
    life = serving(V2, V1)
    life.offer([V1])
    assert steps(life) == [Load(2, V1)]
    assert answers(life) == 2
    life.ready(2, 1.0)
    assert answers(life) == 1
    assert steps(life) == [Retire(1)]


def test_a_model_that_is_taken_away_is_unloaded() -> None:
    life = serving(V1)
    life.offer([])
    assert steps(life) == [Retire(1)]
    assert life.resolve() is None


def test_unloading_stops_the_answers_at_once_even_while_it_loads() -> None:
    life = serving(V1)
    life.offer([V1, V2])
    steps(life)
    life.dismiss()
    assert life.resolve() is None
    assert steps(life) == [Retire(1)]
    life.ready(2, 1.0)  # it could not be stopped
    assert life.resolve() is None
    assert steps(life) == [Retire(2)]


def test_a_failed_load_is_tried_again_less_and_less_often_and_then_no_more() -> None:
    life = Lifecycle()
    life.offer([V1])
    life.want()
    now = 0.0
    for pause_s in RETRY_S:
        [load] = steps(life, now)
        life.failed(load.id, "no", now)
        assert life.next_action(now) == Wait(now + pause_s)
        assert life.retry_after_s(now) == pause_s
        now += pause_s
    [load] = steps(life, now)
    life.failed(load.id, "no", now)
    assert life.next_action(now + 1e6) == Wait(math.inf)
    assert life.failure() == "no"
    life.want()
    assert len(steps(life, now)) == 1


def test_other_files_are_tried_at_once_after_a_failure() -> None:
    life = Lifecycle()
    life.offer([V1])
    life.want()
    steps(life)
    life.failed(1, "no", 0.0)
    life.offer([Offer(1, "b")])
    assert steps(life) == [Load(2, Offer(1, "b"))]


def test_files_that_changed_while_they_were_loaded_are_no_failure_of_the_new_ones() -> None:
    life = Lifecycle()
    life.offer([V1])
    life.want()
    steps(life)
    life.offer([Offer(1, "b")])
    life.failed(1, "changed while it was loaded", 0.0)
    assert steps(life) == [Load(2, Offer(1, "b"))]


def test_on_request_a_model_sleeps_until_somebody_asks_and_again_when_nobody_does() -> None:
    life = Lifecycle(is_on_request=True, unload_after_s=10.0)
    life.offer([V1])
    assert steps(life) == []
    assert life.wake(1.0)
    assert steps(life, 1.0) == [Load(1, V1)]
    life.ready(1, 3.0)
    assert life.next_action(3.0) == Wait(13.0)
    life.used(12.0)
    assert life.next_action(13.0) == Wait(22.0)
    assert steps(life, 22.0) == [Retire(1)]
    assert life.resolve() is None
    assert life.wake(23.0)
    assert steps(life, 23.0) == [Load(2, V1)]


def test_a_sleeping_model_that_cannot_be_loaded_is_not_tried_for_every_request() -> None:
    life = Lifecycle(is_on_request=True)
    life.offer([V1])
    life.wake(0.0)
    steps(life)
    life.failed(1, "no", 0.0)
    assert not life.is_wanted
    assert not life.wake(RETRY_S[0] - 0.1)
    assert steps(life, RETRY_S[0] - 0.1) == []
    assert life.wake(RETRY_S[0])
    assert steps(life, RETRY_S[0]) == [Load(2, V1)]


def test_settled_means_ready_or_failed() -> None:
    life = Lifecycle(VersionPolicy(latest=None))
    assert life.is_settled  # not wanted
    life.offer([V1, V2])
    life.want()
    assert not life.is_settled
    steps(life)
    life.ready(1, 0.0)
    assert not life.is_settled
    steps(life)
    life.failed(2, "no", 0.0)
    assert life.is_settled


def test_the_index_says_why_a_version_is_not_there() -> None:
    life = Lifecycle()
    life.offer([V1, V2])
    reasons = [status.reason for status in life.index()]
    assert reasons == ["not chosen by the version policy", "unloaded"]
    life.want()
    assert life.index()[1].reason == "waits to be loaded"
    steps(life)
    assert life.index()[1].state is VersionState.LOADING
    life.ready(1, 0.0)
    life.dismiss()
    steps(life)
    assert life.index()[1].state is VersionState.DRAINING


def test_a_copy_that_has_died_is_replaced_by_the_same_version() -> None:
    life = serving(V1)
    old = life.resolve()
    assert old is not None
    assert steps(life) == []
    life.died(old)
    (load,) = steps(life)
    assert isinstance(load, Load)
    assert load.offer == V1
    assert not life.is_settled
    assert life.resolve() == old  # until there is another
    life.ready(load.id, 1.0)
    assert life.is_settled
    assert life.resolve() == load.id
    assert steps(life, 1.0) == [Retire(old)]


def test_a_replacement_that_fails_leaves_the_dead_and_is_tried_again() -> None:
    life = serving(V1)
    old = life.resolve()
    assert old is not None
    life.died(old)
    (load,) = steps(life)
    life.failed(load.id, "torn", 1.0)
    assert life.is_settled
    assert life.failure() == "torn"
    assert life.resolve() == old
    assert [type(each) for each in steps(life, 1.0 + RETRY_S[0])] == [Load]


def test_what_is_meant_to_be_served_is_what_is_wanted_and_what_is_there() -> None:
    life = serving(V1, V2, V3, policy=VersionPolicy(latest=2))
    assert life.meant() == [2, 3]
    life.offer([V1])
    assert life.meant() == [1, 2, 3]  # the others still answer
    life.dismiss()
    assert life.meant() == []
