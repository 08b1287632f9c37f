"""The parties of `benchmarks chat-peers` that need no environment of their own, on a tiny model:
each gives every chat as many tokens as it asked for, however many chats run at once."""

from pathlib import Path

import pytest
from benchmarks.peers.engine import Engine
from benchmarks.peers.loads import MIXED_AT_ONCE, Chat, Load, loads
from benchmarks.peers.over_http import Clients
from benchmarks.peers.transformers_batches import continuous, load_model, static
from serving import serving

from headway.engine.starting import EngineOptions, start

LOAD = Load("few", 2, tuple(Chat([5 + each, 9, 7], out) for each, out in enumerate((3, 6, 2))))


def test_every_party_is_given_the_same() -> None:
    assert loads(3) == loads(3)
    assert loads(3)[0].chats != loads(4)[0].chats
    assert [len(batch) for batch in LOAD.batches] == [2, 1]
    mixed = loads(1)[-1]
    assert {len(batch) for batch in mixed.batches} == {MIXED_AT_ONCE}


def test_the_engine_runs_it_continuously_and_in_static_batches(folder: Path) -> None:
    engine = Engine(start(folder, EngineOptions(kv_cache_gib=0.01, device="cpu", threads=1)))
    engine.run(LOAD)
    engine.run_static(LOAD)


@pytest.mark.real_time
def test_the_server_streams_it(folder: Path) -> None:
    with serving(folder) as served:
        Clients(int(served.url.rpartition(":")[2]), "tiny").run(LOAD)


@pytest.mark.real_time
def test_transformers_runs_it(folder: Path) -> None:
    model = load_model(str(folder), "float32")
    static(model, LOAD)
    continuous(model, LOAD)
