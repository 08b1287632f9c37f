"""Tensor models whose lengths vary: padded where that changes no answer, and only there."""

import asyncio
from typing import Any, ClassVar

import numpy
import pytest

from headway import Batcher, Tensor, TensorModel
from headway.testing import Recorder

Arrays = dict[str, Any]
IDS = (Tensor("input_ids", "int64", (-1, -1)), Tensor("attention_mask", "int64", (-1, -1)))


class Attention(TensorModel):
    """A small encoder: embeddings, attention under the mask, a vector for each token and text."""

    inputs = IDS
    outputs = (Tensor("tokens", "float32", (-1, -1, 8)), Tensor("text", "float32", (-1, 8)))
    minds_mask = True

    def __init__(self) -> None:
        rng = numpy.random.default_rng(0)
        self.table = rng.standard_normal((50, 8)).astype(numpy.float32)
        self.shapes: list[tuple[int, ...]] = []

    def predict(self, batch: Arrays) -> Arrays:
        self.shapes.append(batch["input_ids"].shape)
        states = self.table[batch["input_ids"]]
        mask = batch["attention_mask"] if self.minds_mask else numpy.ones_like(batch["input_ids"])
        scores = states @ states.transpose(0, 2, 1) - 1e4 * (1 - mask[:, None, :])
        weights = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
        tokens = weights @ states / weights.sum(axis=-1, keepdims=True)
        real = mask[:, :, None].astype(numpy.float32)
        text = (tokens * real).sum(axis=1) / real.sum(axis=1)
        return {"tokens": tokens.astype(numpy.float32), "text": text.astype(numpy.float32)}


def request(*lengths: int, rows: int = 1) -> list[Arrays]:
    rng = numpy.random.default_rng(sum(lengths))
    return [
        {
            "input_ids": rng.integers(0, 50, (rows, length)),
            "attention_mask": numpy.ones((rows, length), numpy.int64),
        }
        for length in lengths
    ]


async def together(batcher: Batcher[Any, Any], values: list[Arrays]) -> list[Any]:
    return await asyncio.gather(*(batcher.submit(value) for value in values))


async def test_lengths_share_a_batch_and_answers_are_as_alone() -> None:
    model = Attention()
    values = request(3, 7, 5, 20)
    async with Batcher(model, compose="fifo") as batcher:
        alone = [await batcher.submit(value) for value in values]
        model.shapes.clear()
        batched = await together(batcher, values)
    assert model.shapes[0] == (4, 20)  # the first is compared with one of its rows alone
    for one, other, value in zip(alone, batched, values, strict=True):
        assert other["tokens"].shape == (1, value["input_ids"].shape[1], 8)
        for name in one:
            numpy.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5)


async def test_a_model_that_does_not_mind_its_mask_is_not_padded() -> None:
    class Careless(Attention):
        minds_mask = False

    model = Careless()
    async with Batcher(model) as batcher:
        model.shapes.clear()
        await together(batcher, request(3, 7, 3))
    assert sorted(model.shapes) == [(1, 7), (2, 3)]


async def test_a_model_that_takes_the_last_token_is_not_padded() -> None:
    class Last(Attention):
        def predict(self, batch: Arrays) -> Arrays:
            answer = super().predict(batch)
            return {**answer, "text": answer["tokens"][:, -1]}

    model = Last()
    async with Batcher(model) as batcher:
        model.shapes.clear()
        await together(batcher, request(3, 7))
    assert sorted(model.shapes) == [(1, 3), (1, 7)]


async def test_a_model_that_fails_on_samples_is_served_by_exact_shape() -> None:
    class Picky(Attention):
        def predict(self, batch: Arrays) -> Arrays:
            if batch["input_ids"].max() < 2:
                raise ValueError("not a text")
            return super().predict(batch)

    model = Picky()
    async with Batcher(model) as batcher:
        answers = await together(batcher, request(3, 7))
    assert [answer["tokens"].shape[1] for answer in answers] == [3, 7]
    assert sorted(model.shapes) == [(1, 3), (1, 7)]


async def test_without_a_mask_nothing_is_padded() -> None:
    class Sum(TensorModel):
        inputs = (Tensor("x", "float32", (-1, -1)),)
        shapes: ClassVar[list[tuple[int, ...]]] = []

        def predict(self, batch: Arrays) -> Arrays:
            self.shapes.append(batch["x"].shape)
            return {"y": batch["x"].max(axis=1)}

    model = Sum()
    values = [{"x": -numpy.ones((1, length), numpy.float32)} for length in (2, 5)]
    async with Batcher(model) as batcher:
        model.shapes.clear()
        answers = await together(batcher, values)
    assert [float(answer["y"][0]) for answer in answers] == [-1.0, -1.0]
    assert sorted(model.shapes) == [(1, 2), (1, 5)]


async def test_a_model_may_say_how_it_is_padded() -> None:
    class Max(TensorModel):
        inputs = (Tensor("x", "float32", (-1, -1)),)
        outputs = (Tensor("y", "float32", (-1,)), Tensor("x2", "float32", (-1, -1)))
        pads: ClassVar[Any] = {"x": -numpy.inf}
        shapes: ClassVar[list[tuple[int, ...]]] = []

        def predict(self, batch: Arrays) -> Arrays:
            self.shapes.append(batch["x"].shape)
            return {"y": batch["x"].max(axis=1), "x2": 2 * batch["x"]}

    model = Max()
    values = [{"x": -numpy.ones((1, length), numpy.float32)} for length in (2, 5)]
    async with Batcher(model, compose="fifo") as batcher:
        model.shapes.clear()
        answers = await together(batcher, values)
    assert [float(answer["y"][0]) for answer in answers] == [-1.0, -1.0]
    assert [answer["x2"].tolist() for answer in answers] == [[[-2.0] * 2], [[-2.0] * 5]]
    assert model.shapes == [(2, 5)]


async def test_a_model_may_say_that_it_is_never_padded() -> None:
    class Never(Attention):
        pads: ClassVar[Any] = {}

    model = Never()
    async with Batcher(model) as batcher:
        model.shapes.clear()
        await together(batcher, request(3, 7))
    assert sorted(model.shapes) == [(1, 3), (1, 7)]


async def test_only_lengths_that_the_model_runs_at_are_run() -> None:
    class Compiled(Attention):
        pad_sizes = (8, 32)

    model, recorder = Compiled(), Recorder()
    async with Batcher(model, compose="fifo", observers=[recorder]) as batcher:
        model.shapes.clear()
        answers = await together(batcher, request(3, 7, 5, rows=2))
        answers += await together(batcher, request(40))
    assert [model.shapes[0], model.shapes[-1]] == [(6, 8), (1, 40)]
    assert [answer["tokens"].shape[1] for answer in answers] == [3, 7, 5, 40]


async def test_rows_of_one_request_that_is_cut_have_their_length_back() -> None:
    model = Attention()
    async with Batcher(model, max_batch_size=4) as batcher:
        answer = (await together(batcher, request(6, rows=10)))[0]
    assert answer["tokens"].shape == (10, 6, 8)


async def test_inputs_of_one_request_that_differ_run_as_they_are() -> None:
    """The model says what is wrong with them; a neighbour is not hurt."""
    model = Attention()
    bad = {**request(3)[0], "attention_mask": numpy.ones((1, 4), numpy.int64)}
    async with Batcher(model) as batcher:
        results = await asyncio.gather(
            batcher.submit(bad), batcher.submit(request(3)[0]), return_exceptions=True
        )
    assert isinstance(results[0], Exception)
    assert results[1]["tokens"].shape == (1, 3, 8)


async def test_one_bad_row_in_a_padded_batch_fails_alone() -> None:
    model = Attention()
    good, bad = request(3)[0], request(9)[0]
    bad["input_ids"] = bad["input_ids"] + 1000  # no such token
    async with Batcher(model, compose="fifo") as batcher:
        results = await asyncio.gather(
            batcher.submit(good), batcher.submit(bad), return_exceptions=True
        )
    assert results[0]["tokens"].shape == (1, 3, 8)
    assert isinstance(results[1], Exception)


@pytest.mark.parametrize("compose", ["dp", "buckets", "sort", "fifo", "packed"])
async def test_every_way_to_compose_answers_everyone(compose: Any) -> None:
    model = Attention()
    values = request(*range(1, 40))
    async with Batcher(model, compose=compose, buckets=[4, 16, 64], max_batch_size=8) as batcher:
        answers = await together(batcher, values)
    assert [answer["tokens"].shape[1] for answer in answers] == list(range(1, 40))


# ---- padding that does harm


class Pools(TensorModel):
    """Takes a mask, and pools over everything."""

    inputs = IDS
    outputs = (Tensor("text", "float32", (-1, 8)),)

    def __init__(self, pool: Any, seed: int = 0) -> None:
        self.pool = pool
        self.table = numpy.random.default_rng(seed).standard_normal((50, 8)).astype(numpy.float32)
        self.shapes: list[tuple[int, ...]] = []

    def predict(self, batch: Arrays) -> Arrays:
        self.shapes.append(batch["input_ids"].shape)
        return {"text": self.pool(self.table[batch["input_ids"]], axis=1)}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("pool", [numpy.max, numpy.min, numpy.mean, numpy.sum, numpy.median])
async def test_a_model_that_pools_over_its_padding_is_not_padded(pool: Any, seed: int) -> None:
    model = Pools(pool, seed)
    values = request(*range(2, 34))
    async with Batcher(model) as batcher:
        model.shapes.clear()
        answers = await together(batcher, values)
    assert len(model.shapes) == 32
    for answer, value in zip(answers, values, strict=True):
        expected = pool(model.table[value["input_ids"]], axis=1)
        numpy.testing.assert_allclose(answer["text"], expected, rtol=1e-5)


async def test_a_model_that_cannot_tell_the_samples_apart_is_not_padded() -> None:
    """Nothing that it is shown makes a difference: so does padding, but that shows nothing."""
    model = Pools(numpy.max)
    model.table[1] = model.table[0]
    async with Batcher(model) as batcher:
        model.shapes.clear()
        await together(batcher, request(3, 7))
    assert sorted(model.shapes) == [(1, 3), (1, 7)]


async def test_one_that_fills_up_by_itself_where_an_index_is_zero_is_not_padded() -> None:
    """Zeros do no harm; but it does not look at its mask, and nobody knows what it does look at."""

    class ByIndex(Attention):
        def predict(self, batch: Arrays) -> Arrays:
            real = (batch["input_ids"] != 0).astype(numpy.int64)
            return super().predict({**batch, "attention_mask": real})

    model = ByIndex()
    values = [{**value, "input_ids": value["input_ids"] + 1} for value in request(3, 7)]
    values = [{**value, "input_ids": value["input_ids"] % 49 + 1} for value in values]
    async with Batcher(model) as batcher:
        model.shapes.clear()
        await together(batcher, values)
    assert sorted(model.shapes) == [(1, 3), (1, 7)]


async def test_nothing_is_tried_while_it_serves() -> None:
    model = Attention()
    async with Batcher(model, compose="fifo") as batcher:
        model.shapes.clear()
        for _ in range(4):
            await together(batcher, request(3, 7))
    assert model.shapes == [(2, 7)] * 4


async def test_what_a_model_says_of_itself_is_not_tried() -> None:
    class Declared(Attention):
        pads: ClassVar[Any] = {"input_ids": 0, "attention_mask": 0}

    model = Declared()
    async with Batcher(model, compose="fifo") as batcher:
        model.shapes.clear()
        await together(batcher, request(3, 7))
    assert model.shapes == [(2, 7)]
