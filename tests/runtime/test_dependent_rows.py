"""Tensor models whose rows depend on each other: found before traffic, and served alone."""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import numpy
import pytest

from headway import Batcher, ConfigError, InputTooLarge, InvalidInput, Tensor, TensorModel

Arrays = dict[str, Any]


class Applies(TensorModel):
    """A function of `x`, and which shapes it was called with."""

    inputs = (Tensor("x", "float32", (-1, 3)),)
    outputs = (Tensor("y", "float32", (-1, 3)),)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.shapes: list[tuple[int, ...]] = []

    def predict(self, batch: Arrays) -> Arrays:
        self.shapes.append(batch["x"].shape)
        return {"y": self.function(batch["x"]).astype(numpy.float32)}


def softmax_by_all(x: Any) -> Any:
    """Steadied by the largest number of all rows, which leaves nothing of much smaller ones."""
    powers = numpy.exp(x - x.max())
    return powers / powers.sum(1, keepdims=True)


def softmax(x: Any) -> Any:
    powers = numpy.exp(x - x.max(0))
    return powers / powers.sum(0)


DEPENDENT: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x - x.mean(0),
    "norm": lambda x: x / numpy.linalg.norm(x),
    "softmax": softmax,
    "softmax steadied by all": softmax_by_all,
    "room for eight rows": lambda x: x * (numpy.arange(len(x)) < 8)[:, None],
    "cumsum": lambda x: x.cumsum(0),
    "cumsum from the end": lambda x: x[::-1].cumsum(0)[::-1],
    "number of rows": lambda x: x / len(x),
    "rank": lambda x: x.argsort(0).argsort(0),
    "reversed": lambda x: x[::-1],
    "difference from the first": lambda x: x - x[:1],
    "batch norm in training": lambda x: (x - x.mean(0)) / (x.std(0) + 1.0),
    "quantised by the largest": lambda x: numpy.round(x / abs(x).max() * 127) * abs(x).max() / 127,
}
INDEPENDENT: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: x @ numpy.arange(9, dtype=numpy.float32).reshape(3, 3),
    "softmax of each": lambda x: softmax(x.T).T,
    "sum of each": lambda x: numpy.repeat(x.sum(1, keepdims=True), 3, 1),
    "logarithm": lambda x: numpy.log(numpy.abs(x)),
}


def requests(count: int) -> list[Arrays]:
    rng = numpy.random.default_rng(0)
    return [{"x": rng.standard_normal((1 + n % 3, 3)).astype(numpy.float32)} for n in range(count)]


async def answers(batcher: Batcher[Any, Any], values: list[Arrays]) -> list[Any]:
    return await asyncio.gather(*(batcher.submit(value) for value in values))


@pytest.mark.parametrize("name", DEPENDENT)
async def test_a_model_whose_rows_depend_on_each_other_runs_each_request_alone(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    function, values = DEPENDENT[name], requests(40)
    async with Batcher(Applies(function), name="odd") as batcher:
        found = await answers(batcher, values)
    for value, answer in zip(values, found, strict=True):
        numpy.testing.assert_allclose(answer["y"], function(value["x"]), rtol=1e-5, atol=1e-6)
    assert "odd: its rows depend on each other: in a batch a row has another y" in caplog.text


@pytest.mark.parametrize("name", INDEPENDENT)
async def test_a_model_whose_rows_do_not_is_batched(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, values = Applies(INDEPENDENT[name]), requests(40)
    async with Batcher(model) as batcher:
        model.shapes.clear()
        found = await answers(batcher, values)
    assert max(shape[0] for shape in model.shapes) > 30
    for value, answer in zip(values, found, strict=True):
        expected = model.function(value["x"])
        numpy.testing.assert_allclose(answer["y"], expected, rtol=1e-4, atol=1e-5)
    assert not caplog.text


async def test_such_a_model_may_be_refused_or_batched_all_the_same() -> None:
    with pytest.raises(ConfigError, match="dependent_rows: mean: its rows depend on each other"):
        async with Batcher(Applies(DEPENDENT["mean"]), name="mean", dependent_rows="refuse"):
            pass
    model = Applies(DEPENDENT["mean"])
    async with Batcher(model, dependent_rows="batch") as batcher:
        await answers(batcher, requests(8))
    assert len(model.shapes) == 1
    with pytest.raises(ConfigError, match="dependent_rows: 'never' is not one of 'alone'"):
        Batcher(model, dependent_rows="never")  # type: ignore[arg-type]


async def test_a_request_that_runs_alone_is_never_cut() -> None:
    async with Batcher(Applies(DEPENDENT["mean"]), max_batch_size=4) as batcher:
        [found] = await answers(batcher, [{"x": numpy.eye(4, 3, dtype=numpy.float32)}])
        numpy.testing.assert_allclose(found["y"].sum(0), 0, atol=1e-6)
        with pytest.raises(InputTooLarge, match="at most 4 rows, not 5"):
            await batcher.submit({"x": numpy.eye(5, 3, dtype=numpy.float32)})


async def test_to_a_request_that_runs_alone_no_row_is_added() -> None:
    model = Applies(DEPENDENT["mean"])
    async with Batcher(model, max_batch_size=4, batch_sizes=(4,)) as batcher:
        await batcher.submit({"x": numpy.eye(4, 3, dtype=numpy.float32)})
        with pytest.raises(InvalidInput, match="a request needs 4 rows, not 2"):
            await batcher.submit({"x": numpy.eye(2, 3, dtype=numpy.float32)})


async def test_a_model_that_answers_all_rows_at_once_answers_each_request() -> None:
    """Its first axis is not rows."""
    async with Batcher(Applies(lambda x: x.mean(0, keepdims=True))) as batcher:
        found = await answers(batcher, requests(5))
    assert [answer["y"].shape for answer in found] == [(1, 3)] * 5


async def test_a_model_that_never_answers_twice_alike_is_batched() -> None:
    rng = numpy.random.default_rng(0)
    model = Applies(lambda x: x + rng.standard_normal(x.shape))
    async with Batcher(model) as batcher:
        for _ in range(8):
            await answers(batcher, requests(8))
        model.shapes.clear()
        await answers(batcher, requests(8))
    assert len(model.shapes) == 1


class Picky(Applies):
    """Takes nothing that can be made up."""

    def predict(self, batch: Arrays) -> Arrays:
        if (batch["x"] != numpy.round(batch["x"])).any():
            raise ValueError("whole numbers only")
        return super().predict(batch)


@pytest.mark.parametrize("is_async", [False, True])
async def test_where_no_rows_can_be_made_real_requests_show_it(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Later(Picky):
        async def predict(self, batch: Arrays) -> Arrays:  # type: ignore[override]
            return super().predict(batch)

    model = (Later if is_async else Picky)(DEPENDENT["mean"])
    values = [{"x": numpy.round(4 * value["x"])} for value in requests(20)]
    async with Batcher(model) as batcher:
        for _ in range(2):
            found = await answers(batcher, values)
            for value, answer in zip(values, found, strict=True):
                expected = DEPENDENT["mean"](value["x"])
                numpy.testing.assert_allclose(answer["y"], expected, atol=1e-6)
    assert "its rows depend on each other" in caplog.text


async def test_real_requests_are_looked_at_four_times_at_most() -> None:
    model = Picky(lambda x: 2 * x)
    values = [{"x": numpy.round(4 * value["x"])} for value in requests(20)]
    async with Batcher(model) as batcher:
        model.shapes.clear()
        for _ in range(10):
            await answers(batcher, values)
    assert len(model.shapes) == 10 + 4


async def test_indices_are_tried_that_every_table_has() -> None:
    class Looks(TensorModel):
        inputs = (Tensor("ids", "int64", (-1, 2)), Tensor("name", "object", (-1,)))
        outputs = (Tensor("y", "float32", (-1, 2)),)
        table: ClassVar[Any] = numpy.array([[2.0]], numpy.float32)  # of one entry

        def predict(self, batch: Arrays) -> Arrays:
            numbers = numpy.array([float(name) for name in batch["name"]], numpy.float32)
            found = self.table[batch["ids"]][:, :, 0] + numbers[:, None]
            return {"y": found - found.mean(0)}

    with pytest.raises(ConfigError, match="its rows depend on each other"):
        async with Batcher(Looks(), dependent_rows="refuse"):
            pass


async def test_a_model_that_must_not_run_twice_is_not_tried() -> None:
    class Once(Applies):
        rerun = False

    model = Once(DEPENDENT["mean"])
    async with Batcher(model):
        assert model.shapes == []
