"""The short form of `make faults`: some seeds' worth of trouble, and two hours of it."""

import pytest
from world import LongWorld, World

SEEDS = 90


@pytest.mark.parametrize("first", range(0, SEEDS, 30))
def test_no_seed_breaks_what_must_hold(first: int) -> None:
    for seed in range(first, first + 30):
        try:
            World(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_hours_of_trouble_leave_nothing_behind() -> None:
    world = LongWorld(1, hours=2.0)
    world.run()
    early, late = world.held[2], world.held[-1]
    assert late.objects <= 1.2 * early.objects + 500
