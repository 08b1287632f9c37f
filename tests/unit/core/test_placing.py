"""Where a model runs."""

from typing import Any

import pytest

from headway.core.lifecycle.placement import place, place_engine
from headway.errors import ConfigError

_AS_ASKED = "as it was asked to"


def placed(asked: str = "auto", **facts: Any) -> str:
    known = {"is_async": False, "workers": 1, "is_python": True, "needs_process": "", **facts}
    return place("m", asked, **known).kind


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({}, "thread"),
        ({"is_async": True}, "inline"),
        ({"workers": 2}, "process"),
        ({"workers": 2, "is_python": False}, "thread"),
        ({"workers": 2, "is_async": True}, "inline"),
        ({"workers": 2, "has_processes": False}, "thread"),
        ({"needs_process": "pin"}, "process"),
        ({"needs_process": "pin", "is_async": True}, "process"),
    ],
)
def test_left_alone_it_goes_where_it_runs_best(facts: dict[str, Any], kind: str) -> None:
    assert placed(**facts) == kind


@pytest.mark.parametrize("kind", ["inline", "thread", "process"])
def test_a_place_that_is_asked_for_is_granted(kind: str) -> None:
    assert placed(kind, workers=1 if kind == "inline" else 2) == kind


def test_an_async_model_may_have_several_workers_inline() -> None:
    assert placed("inline", workers=2, is_async=True) == "inline"


@pytest.mark.parametrize(
    ("asked", "facts", "message"),
    [
        ("thread", {"is_async": True}, "m is async: it runs in the event loop"),
        ("thread", {"needs_process": "pin"}, "pin needs worker 'process'"),
        ("fork", {}, "is not one of"),
        ("inline", {"workers": 2}, "workers: m blocks the event loop while it runs inline"),
        ("process", {"has_processes": False}, "worker: processes of its own need Linux"),
        ("auto", {"has_processes": False, "needs_process": "pin"}, "pin: processes"),
    ],
)
def test_a_place_that_cannot_be_is_a_mistake(
    asked: str, facts: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        placed(asked, **facts)


def test_the_reason_is_for_people() -> None:
    chosen = place("m", "auto", is_async=False, workers=3, is_python=True, needs_process="")
    assert chosen.reason == "3 workers in one process would share its Python lock"


@pytest.mark.parametrize("asked", ["auto", "thread"])
def test_without_processes_a_language_models_engine_is_in_a_thread_and_says_why(asked: str) -> None:
    found = place_engine("chat", asked, needs_process="", has_processes=False)
    assert found.kind == "thread"
    assert found.reason == ("processes of its own need Linux" if asked == "auto" else _AS_ASKED)


@pytest.mark.parametrize(
    ("asked", "needs", "message"),
    [
        ("process", "", "worker: processes of its own need Linux"),
        ("auto", "worker_memory_mb", "worker_memory_mb: processes of its own need Linux"),
        ("inline", "", "worker: chat is a language model: its engine runs in"),
    ],
)
def test_an_engine_that_cannot_be_where_it_must_is_a_mistake(
    asked: str, needs: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        place_engine("chat", asked, needs_process=needs, has_processes=False)
