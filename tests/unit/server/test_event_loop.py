"""Threads hand Python's lock over sooner while a server runs, and as before when it has ended."""

import sys

import pytest

from headway.server.event_loop import HAND_OVER_S, run, short_turns_of_the_lock


async def interval() -> float:
    return sys.getswitchinterval()


@pytest.mark.parametrize("before_s", [0.005, 0.0005])
def test_turns_of_the_lock_are_short_while_it_serves(before_s: float) -> None:
    found = sys.getswitchinterval()
    sys.setswitchinterval(before_s)
    try:
        assert run(interval()) == pytest.approx(min(before_s, HAND_OVER_S))
        with short_turns_of_the_lock():
            assert sys.getswitchinterval() == pytest.approx(min(before_s, HAND_OVER_S))
        assert sys.getswitchinterval() == pytest.approx(before_s)
    finally:
        sys.setswitchinterval(found)
