"""Serve's router by expected finish, without a cluster. It needs Ray, which is too large for
`dev`."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="Ray Serve is not installed")

from headway.ray.routing import FinishFirst

FAST, SLOW = (
    SimpleNamespace(
        replica_id=name, routing_stats={"batch_s": batch_s, "more_s": 0.0, "most": 16.0}
    )
    for name, batch_s in (("fast", 0.01), ("slow", 0.03))
)


def request(number: str) -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(internal_request_id=number))


@pytest.fixture
def router() -> Any:
    router = object.__new__(FinishFirst)  # Serve makes it in its event loop
    router.initialize_state()
    return router


def first(router: Any) -> str:
    ranks = asyncio.run(router.choose_replicas([FAST, SLOW]))
    assert len(ranks) == 2
    return str(ranks[0][0].replica_id)


def test_the_one_that_is_expected_to_answer_first_comes_first(router: Any) -> None:
    assert {first(router) for _ in range(20)} == {"fast"}
    for number in range(40):
        router.on_request_routed(request(f"r{number}"), "fast", None)
    assert first(router) == "slow"


def test_a_completion_that_overtakes_its_routing_leaves_nothing_in_flight(router: Any) -> None:
    router.on_request_completed("fast", "early")
    router.on_request_routed(request("early"), "fast", None)
    router.on_request_routed(request("late"), "fast", None)
    router.on_request_completed("fast", "late")
    assert [view.in_flight for view in router._views.values()] == [0]
    for number in range(5000):  # refused by a full replica, and so never routed
        router.on_request_completed("fast", f"refused {number}")
    assert len(router._early) <= 1024
