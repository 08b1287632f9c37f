"""The attacks of `python -m benchmarks attacks`, with an honest client beside them.

Only what happened is looked at, never how long it took; so guessing keys by time is not among them.
"""

from collections.abc import Iterator

import pytest
from benchmarks.attacks import ATTACKS, HonestClient, Target, attacked


@pytest.fixture(scope="module")
def scene() -> Iterator[tuple[Target, HonestClient]]:
    with attacked() as made:
        yield made


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_and_others_are_served(
    scene: tuple[Target, HonestClient], name: str
) -> None:
    target, client = scene
    client.start_over()
    outcome = ATTACKS[name](target)
    assert outcome.is_refused, outcome
    served, _, _ = client.figures()
    assert client.failures == []
    assert served > 0
