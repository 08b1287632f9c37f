"""What users implement: defaults, the order in which it is called, and what counts as written."""

import threading
from typing import Any

import pytest

import headway
from headway import END, Batcher, Model, Tensor, TensorModel
from headway.model import overrides
from headway.testing import run


class Logged(Model[int, int]):
    def __init__(self) -> None:
        self.log: list[str] = []

    def setup(self) -> None:
        self.log.append("setup")

    def load(self) -> None:
        self.log.append("load")

    def prepare(self, raw: int) -> int:
        self.log.append("prepare")
        return raw

    def size(self, item: int) -> int:
        self.log.append("size")
        return item

    def predict(self, items: list[int]) -> list[int]:
        self.log.append("predict")
        return items

    def finish(self, result: int) -> int:
        self.log.append("finish")
        return -result


def test_everything_is_called_in_its_order() -> None:
    model = Logged()

    async def main() -> int:
        async with Batcher(model) as batcher:
            assert model.log == ["setup", "load"]
            return await batcher.submit(3)

    assert run(main()) == -3
    assert model.log == ["setup", "load", "prepare", "size", "predict", "finish"]


def test_a_class_is_made_into_a_model() -> None:
    class Echo(Model[int, int]):
        def predict(self, items: list[int]) -> list[int]:
            return items

    async def main() -> int:
        async with Batcher(Echo) as batcher:
            assert batcher.name == "Echo"
            return await batcher.submit(1)

    assert run(main()) == 1


@pytest.mark.real_time
async def test_load_runs_off_the_event_loop() -> None:
    class Where(Model[int, int]):
        def load(self) -> None:
            self.thread = threading.current_thread()

        def predict(self, items: list[int]) -> list[int]:
            return items

    model = Where()
    async with Batcher(model):
        assert model.thread is not threading.current_thread()


@pytest.mark.parametrize("method", ["setup", "load"])
def test_a_model_that_cannot_start_says_so_when_it_is_opened(method: str) -> None:
    class Broken(Model[int, int]):
        def predict(self, items: list[int]) -> list[int]:
            return items

    def fail(self: Any) -> None:
        raise FileNotFoundError("weights.bin")

    setattr(Broken, method, fail)

    async def main() -> None:
        async with Batcher(Broken()):
            raise AssertionError("it must not open")

    with pytest.raises(FileNotFoundError, match=r"weights\.bin"):
        run(main())


def test_a_model_without_predict_says_what_is_missing() -> None:
    class Empty(Model[int, int]):
        pass

    async def main() -> None:
        async with Batcher(Empty()) as batcher:
            await batcher.submit(1)

    with pytest.raises(headway.ModelFailed, match=r"Empty does not define predict\(\)"):
        run(main())
    with pytest.raises(NotImplementedError, match="stream"):
        Empty().stream([1])
    with pytest.raises(NotImplementedError, match="predict"):
        TensorModel().predict({})


def test_defaults_leave_everything_as_it_is() -> None:
    model = Model[int, int]()
    assert model.setup() is None  # type: ignore[func-returns-value]
    assert model.load() is None  # type: ignore[func-returns-value]
    assert (model.prepare(1), model.size(1), model.finish(1)) == (1, 0, 1)
    assert model.rerun


def test_overrides_knows_what_the_user_wrote() -> None:
    class Base(Model[int, int]):
        def predict(self, items: list[int]) -> list[int]:
            return items

    class Child(Base):
        pass

    class Arrays(TensorModel):
        def predict(self, batch: Any) -> Any:
            return batch

    assert overrides(Child(), "predict")
    assert not overrides(Child(), "stream")
    assert not overrides(Child(), "size")
    assert overrides(Arrays(), "predict")
    assert not overrides(Arrays(), "load")
    assert not overrides(lambda values: values, "stream")


def test_end_is_one_thing_with_a_readable_name() -> None:
    assert repr(END) == "headway.END"
    assert headway.END is END


def test_a_tensor_is_a_frozen_value() -> None:
    tensor = Tensor("x", "float32", (-1, 3))
    assert tensor == Tensor("x", "float32", (-1, 3))
    assert hash(tensor) == hash(Tensor("x", "float32", (-1, 3)))
    with pytest.raises(AttributeError):
        tensor.name = "y"  # type: ignore[misc]
