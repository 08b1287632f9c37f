"""The engine's adapters, as commands come."""

import threading
from pathlib import Path
from typing import Any, cast

from headway.core.generation.limits import EngineLimits
from headway.core.generation.scheduler import GenerationScheduler
from headway.errors import UnknownModel
from headway.runtime.generation.loaded_adapters import (
    AdapterRead,
    AdapterStore,
    LoadAdapter,
    LoadedAdapters,
    UnloadAdapter,
)


class Store:
    def read(self, folder: Path) -> str:
        return f"weights of {folder}"


def test_who_loads_an_adapter_that_is_unloaded_while_it_is_read_is_told() -> None:
    returned: dict[int, Any] = {}
    read: list[AdapterRead] = []
    was_read = threading.Event()

    def post(word: AdapterRead) -> None:
        read.append(word)
        was_read.set()

    adapters = LoadedAdapters(
        lambda: cast(AdapterStore, Store()),
        GenerationScheduler(EngineLimits(blocks=8, block_size=4, max_context=16)),
        post=post,
        returns=returned.__setitem__,
        enter=lambda submit: None,
    )
    adapters.obey(LoadAdapter(1, "a", "/folder"))
    adapters.obey(UnloadAdapter(2, "a"))
    assert was_read.wait(10)
    adapters.obey(read[0])
    adapters.close()
    assert isinstance(returned.pop(1), UnknownModel)
    assert returned == {2: None}
