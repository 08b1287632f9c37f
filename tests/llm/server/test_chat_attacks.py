"""`python -m benchmarks attacks-chat`, short: a language model under attack, with honest clients of
another model beside it. Only what happened is looked at, never how long it took."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from benchmarks.attacks import over_chat
from benchmarks.attacks.honest import HonestClients
from benchmarks.attacks.scene import Scene, attacked
from models import build

pytestmark = pytest.mark.real_time


class Stage(NamedTuple):
    scene: Scene
    clients: HonestClients


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder: Path = build("llama", tmp_path_factory.mktemp("chat") / "tiny")
    with attacked(chat=folder) as scene:
        target = scene.target
        target.seconds = 0.3
        with HonestClients(target.port, target.grpc_port, scene.honest_key) as clients:
            yield Stage(scene, clients)


@pytest.mark.parametrize("has_key", [False, True])
@pytest.mark.parametrize("name", over_chat.ATTACKS)
def test_it_is_refused_and_others_are_served(stage: Stage, name: str, has_key: bool) -> None:
    target = stage.scene.target if has_key else stage.scene.target.without_key()
    stage.clients.start_over()
    outcome = over_chat.ATTACKS[name](target)
    assert outcome.is_refused, outcome
    figures = stage.clients.figures(least=10)
    assert {name: each.failures for name, each in figures.items() if each.failures} == {}
