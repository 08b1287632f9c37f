"""The watch on an engine that says nothing, by a clock of the test's own."""

from collections.abc import Callable
from typing import Any

import pytest

from headway.runtime.generation import connection
from headway.runtime.generation.connection import SilenceWatch


class Clock:
    """Runs one timer at a time, when the test says, and as late as it says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._due_at = 0.0
        self._callback: Callable[[], None] | None = None

    def call_later(self, seconds: float, callback: Callable[[], None]) -> "Clock":
        self._due_at, self._callback = self.now + seconds, callback
        return self

    def cancel(self) -> None:
        self._callback = None

    def fire(self, *, late_s: float = 0.0) -> None:
        assert self._callback is not None
        self.now, callback, self._callback = self._due_at + late_s, self._callback, None
        callback()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(connection.time, "monotonic", lambda: found.now)
    return found


def watching(clock: Any) -> tuple[SilenceWatch, list[float]]:
    late: list[float] = []

    def is_late(limit_s: float) -> bool:
        late.append(limit_s)
        return True

    watch = SilenceWatch(clock, 300.0, is_late)
    watch.begin()
    return watch, late


def test_an_engine_that_says_nothing_is_late_after_the_limit(clock: Clock) -> None:
    watch, late = watching(clock)
    clock.now += 100.0
    watch.heard()
    clock.fire()
    assert late == []
    clock.fire()
    assert late == [300.0]
    assert clock.now == 1400.0


def test_an_engine_is_not_late_where_the_front_itself_did_not_run(clock: Clock) -> None:
    """The whole machine, or the container, was stopped for a while: so was the engine."""
    _, late = watching(clock)
    clock.fire(late_s=900.0)
    assert late == []
    clock.fire(late_s=0.1)
    assert late == [300.0]
