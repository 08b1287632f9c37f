"""What collections leave out, and when they look at it again."""

import gc
from collections.abc import Iterator
from typing import Any, cast

import pytest

from headway.server.pauses import Pauses
from headway.server.serving import Registry, ServedModel


class Model:
    name, version = "model", "1"

    def __init__(self) -> None:
        self.itself = self  # only a collection frees it


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    callbacks = list(gc.callbacks)
    yield
    gc.unfreeze()
    gc.callbacks[:] = callbacks


def test_what_is_there_is_left_out_until_a_model_goes_and_again_once_it_is_freed() -> None:
    registry, going = Registry(), cast(Any, Model())
    registry.add(cast(ServedModel, going))
    Pauses().watch(registry)
    assert gc.get_freeze_count() > 0

    registry.switch("model", None, ())
    assert gc.get_freeze_count() == 0, "its remains must be found"
    gc.collect()
    assert gc.get_freeze_count() == 0, "somebody still has it"
    del going
    gc.collect(1)
    assert gc.get_freeze_count() == 0, "that was no full collection"
    gc.collect()
    assert gc.get_freeze_count() > 0
    assert not [each for each in gc.get_objects() if isinstance(each, Model)]


def test_the_next_one_to_go_is_found_as_well() -> None:
    registry = Registry()
    for _ in range(3):
        registry.add(cast(ServedModel, Model()))
    Pauses().watch(registry)
    for _ in range(2):
        registry.add(cast(ServedModel, Model()))
        assert gc.get_freeze_count() == 0
        gc.collect()
        assert gc.get_freeze_count() > 0
