"""What collections leave out, and when they look at it again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import headway
from headway.hosting.registry import Registry, ServedModel
from headway.server.garbage import GarbagePauses, is_frozen


class Shout(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return [item.upper() for item in items]


class Model:
    name, version = "model", "1"

    def __init__(self) -> None:
        self.batcher = Batcher(self)


class Batcher:
    def __init__(self, model: Model) -> None:
        self.model = model  # in a circle: only a collection frees them


def add(registry: Registry) -> Model:
    model = Model()
    registry.add(cast(ServedModel, model))
    return model


@contextmanager
def watching(registry: Registry) -> Iterator[None]:
    pauses = GarbagePauses(registry)
    pauses.start()
    try:
        yield
    finally:
        pauses.stop()


def test_what_is_there_is_left_out_until_a_model_goes_and_again_once_it_is_freed() -> None:
    registry = Registry()
    kept = [add(registry)]
    with watching(registry):
        assert is_frozen()
        registry.switch("model", None, ())
        assert not is_frozen(), "its remains must be found"
        gc.collect()
        assert not is_frozen(), "somebody still has it"
        kept.clear()
        gc.collect(1)
        assert not is_frozen(), "that was no full collection"
        gc.collect()
        assert is_frozen()
        assert not [each for each in gc.get_objects() if isinstance(each, Model)]


def test_a_batcher_that_outlives_its_model_is_waited_for() -> None:
    registry = Registry()
    batcher = add(registry).batcher
    with watching(registry):
        registry.switch("model", None, ())
        del batcher.model
        gc.collect()
        assert not is_frozen()


def test_the_next_one_to_go_is_found_as_well() -> None:
    registry = Registry()
    add(registry)
    with watching(registry):
        for _ in range(2):
            add(registry)  # in place of the last
            assert not is_frozen()
            gc.collect()
            assert is_frozen()


def test_a_server_that_has_stopped_leaves_nothing_behind() -> None:
    before = list(gc.callbacks)
    with watching(Registry()):
        pass
    assert not is_frozen()
    assert gc.callbacks == before
    GarbagePauses(Registry()).stop()  # that never started


def test_a_guest_leaves_the_thresholds_alone() -> None:
    gc.unfreeze()
    before, guest = gc.get_threshold(), GarbagePauses(Registry(), is_guest=True)
    guest.start()
    assert is_frozen()
    assert gc.get_threshold() == before
    guest.stop()
    assert not is_frozen()


def test_a_guest_leaves_what_its_host_has_frozen() -> None:
    gc.freeze()
    before, guest = list(gc.callbacks), GarbagePauses(Registry(), is_guest=True)
    guest.start()
    assert gc.callbacks == before
    guest.stop()
    assert is_frozen()


async def test_an_application_that_is_mounted_leaves_out_what_was_loaded() -> None:
    """A collection of all that a program has imported held its event loop up for 50 ms."""
    gc.unfreeze()
    app = headway.asgi(Shout, warm_up=False)
    async with app.lifespan():
        assert is_frozen()
    assert not is_frozen()
