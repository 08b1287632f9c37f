"""The attacks of `python -m benchmarks attacks`, in short, with honest clients beside them.

Only what happened is looked at, never how long it took; so guessing keys by time is not among them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from benchmarks.attacks.honest import HonestClients
from benchmarks.attacks.run import GRPC_ATTACKS, HTTP_ATTACKS, MOUNTED_ATTACKS, Line
from benchmarks.attacks.scene import Attack, Memory, Scene, attacked

HAS_KEY = [
    pytest.param(False, id="stranger"),
    pytest.param(True, id="tenant", marks=pytest.mark.slow),  # minutes: part of `make test-all`
]
LEAST = 10  # requests of each kind of honest client, beside each attack
MOST_GROWTH_MIB = 100.0  # what an allocator keeps is not known to the byte


class Stage(NamedTuple):
    scene: Scene
    clients: HonestClients
    memory: Memory


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """One at a time, as honest clients ask as long as theirs is there: pytest puts the tests of
    one stack together."""
    with attacked(request.param) as scene:
        target = scene.target
        target.seconds = 0.3
        ports = target.port, target.grpc_port
        with HonestClients(*ports, scene.honest_key, target.prefix) as clients:
            yield Stage(scene, clients, Memory(scene.server.pid))


def on(stack: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("stage", [stack], indirect=True, scope="module")


def attack(stage: Stage, name: str, attack: Attack, *, has_key: bool) -> Line:
    target = stage.scene.target if has_key else stage.scene.target.without_key()
    stage.clients.start_over()
    stage.memory.start_over()
    outcome = attack(target)
    figures = stage.clients.figures(LEAST)
    line = Line(name, "", has_key, outcome, figures, stage.memory.growth_mib)
    assert line.failures == []
    assert all(each.served > 0 for each in figures.values())
    assert line.growth_mib < MOST_GROWTH_MIB
    return line


@on("headway")
@pytest.mark.parametrize("name", HTTP_ATTACKS)
def test_an_attack_is_refused_and_others_are_served(stage: Stage, name: str) -> None:
    line = attack(stage, name, HTTP_ATTACKS[name], has_key=True)
    assert line.outcome.is_refused, line.outcome


@on("mounted")
@pytest.mark.parametrize("has_key", HAS_KEY)
@pytest.mark.parametrize("name", MOUNTED_ATTACKS)
def test_so_it_is_below_a_prefix_of_another_application(
    stage: Stage, name: str, has_key: bool
) -> None:
    line = attack(stage, name, MOUNTED_ATTACKS[name], has_key=has_key)
    assert line.outcome.is_refused, line.outcome


@on("headway")
@pytest.mark.parametrize("has_key", HAS_KEY)
@pytest.mark.parametrize("name", GRPC_ATTACKS)
def test_so_it_is_over_grpc(stage: Stage, name: str, has_key: bool) -> None:
    line = attack(stage, name, GRPC_ATTACKS[name], has_key=has_key)
    assert line.outcome.is_refused, line.outcome
