"""Minutes of lost engines on virtual time; `make faults` runs a day."""

import pytest
from generation_world import GenerationWorld


@pytest.mark.parametrize("seed", range(2))
def test_no_token_is_lost_and_nothing_grows(seed: int) -> None:
    world = GenerationWorld(seed, hours=0.7)
    world.run()
    assert world.outcomes["engines lost"] > 0
    assert min(world.outcomes[name] for name in ("stop", "length", "left", "too long")) > 0
    assert not world.outcomes["given up"]
    early, late = world.held[len(world.held) // 2], world.held[-1]
    assert late.blocks < 1.02 * early.blocks
