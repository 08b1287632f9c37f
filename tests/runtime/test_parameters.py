"""Keywords of a model's methods: each item's own for `prepare`, the batch's for `predict`."""

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy
import pytest

import headway
from headway import ConfigError, InvalidInput, Tensor


class Greeter(headway.Model[str, str]):
    """A batch is in one language; each item has its own mark."""

    batch_parameters: ClassVar = ["language"]

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[str]]] = []

    def prepare(self, raw: str, *, mark: str = ".") -> str:
        return raw + mark

    def predict(self, items: list[str], *, language: str = "en") -> list[str]:
        self.batches.append((language, items))
        hello = {"en": "hello", "de": "hallo"}[language]
        return [f"{hello} {item}" for item in items]


class Scale(headway.TensorModel):
    inputs: ClassVar = [Tensor("x", "float32", (-1, 2))]
    outputs: ClassVar = [Tensor("y", "float32", (-1, 2))]
    batch_parameters: ClassVar = ["factor"]

    def predict(self, batch: dict[str, Any], *, factor: float = 2.0) -> dict[str, Any]:
        return {"y": batch["x"] * factor}


class Counting(headway.Model[str, str]):
    batch_parameters: ClassVar = ["step"]

    def stream(self, items: list[str], *, step: int = 1) -> Iterator[list[Any]]:
        for at in range(0, max(map(len, items)), step):
            yield [item[at : at + step] or headway.END for item in items]
        yield [headway.END] * len(items)


async def test_each_item_has_its_own_and_a_batch_has_its_own() -> None:
    model = Greeter()
    async with headway.Batcher(model) as batcher:
        answers = await asyncio.gather(
            batcher.submit("a", parameters={"mark": "!"}),
            batcher.submit("b", parameters={"language": "de"}),
            batcher.submit("c"),
            batcher.submit("d", parameters={"language": "en", "mark": "?"}),
            batcher.submit("e", parameters={"language": "de"}),
        )
    assert answers == ["hello a!", "hallo b.", "hello c.", "hello d?", "hallo e."]
    assert sorted(model.batches) == [("de", ["b.", "e."]), ("en", ["a!", "c.", "d?"])]


async def test_whoever_gives_the_default_shares_a_batch_with_who_gives_nothing() -> None:
    model = Greeter()
    async with headway.Batcher(model) as batcher:
        await batcher.many(["a"], parameters={"language": "en"})
        await asyncio.gather(
            batcher.submit("b", parameters={"language": "en"}), batcher.submit("c")
        )
    assert [len(items) for _, items in model.batches] == [1, 2]


async def test_what_no_method_takes_is_refused_by_name() -> None:
    async with headway.Batcher(Greeter()) as batcher:
        with pytest.raises(
            InvalidInput, match="'colour' is unknown; the model takes language, mark"
        ):
            await batcher.submit("a", parameters={"mark": "!", "colour": "red"})
        assert batcher.takes_parameter("language")
        assert not batcher.takes_parameter("colour")
    async with headway.Batcher(lambda items: items) as plain:
        with pytest.raises(InvalidInput, match="'colour' is unknown; the model takes none"):
            await plain.submit(1, parameters={"colour": "red"})
        assert await plain.submit(1, parameters={}) == 1


async def test_a_method_that_takes_all_gets_all() -> None:
    class Any_(headway.Model[Any, Any]):
        def prepare(self, raw: str, **others: Any) -> Any:
            return raw, others

        def predict(self, items: list[Any]) -> list[Any]:
            return items

    async with headway.Batcher(Any_()) as batcher:
        assert await batcher.submit("a", parameters={"x": 1}) == ("a", {"x": 1})
        assert await batcher.submit("a") == ("a", {})


async def test_arrays_with_different_parameters_do_not_meet() -> None:
    one = numpy.ones((1, 2), numpy.float32)
    async with headway.Batcher(Scale()) as batcher:
        answers = await asyncio.gather(
            batcher.submit({"x": one}),
            batcher.submit({"x": one}, parameters={"factor": 3.0}),
            batcher.submit({"x": one}, parameters={"factor": 2.0}),
        )
    assert [answer["y"][0, 0] for answer in answers] == [2.0, 3.0, 2.0]


async def test_many_rows_are_cut_and_keep_their_parameters() -> None:
    async with headway.Batcher(Scale(), max_batch_size=4) as batcher:
        rows = numpy.ones((9, 2), numpy.float32)
        answer: Any = await batcher.submit({"x": rows}, parameters={"factor": 5.0})
    assert (answer["y"] == 5.0).all()
    assert answer["y"].shape == (9, 2)


async def test_a_stream_has_them_too() -> None:
    async with headway.Batcher(Counting()) as batcher:
        pairs = batcher.stream("abcd", parameters={"step": 2})
        assert [chunk async for chunk in pairs] == ["ab", "cd"]
        assert [chunk async for chunk in batcher.stream("ab")] == ["a", "b"]


async def test_equal_values_of_different_kinds_are_different() -> None:
    class Kind(headway.Model[int, str]):
        batch_parameters: ClassVar = ["flag"]

        def predict(self, items: list[int], *, flag: Any = None) -> list[str]:
            return [type(flag).__name__ for _ in items]

    async with headway.Batcher(Kind()) as batcher:
        asked: list[Any] = [1, True, 1.0, None]
        answers = await asyncio.gather(
            *(batcher.submit(0, parameters={"flag": each}) for each in asked)
        )
    assert answers == ["int", "bool", "float", "NoneType"]


async def test_a_failed_batch_is_halved_with_its_parameters() -> None:
    class Picky(Greeter):
        def predict(self, items: list[str], *, language: str = "en") -> list[str]:
            if "bad." in items:
                raise ValueError("bad")
            return super().predict(items, language=language)

    async with headway.Batcher(Picky()) as batcher:
        answers = await asyncio.gather(
            *(batcher.submit(each, parameters={"language": "de"}) for each in ("a", "bad", "c")),
            return_exceptions=True,
        )
    assert answers[::2] == ["hallo a.", "hallo c."]
    assert isinstance(answers[1], headway.ModelFailed)


async def test_a_parameter_that_must_be_given_is_missed_and_one_must_be_hashable() -> None:
    class Strict(headway.Model[int, int]):
        batch_parameters: ClassVar = ["factor"]

        def prepare(self, raw: int, *, offset: int) -> int:
            return raw + offset

        def predict(self, items: list[int], *, factor: Any) -> list[int]:
            return [item * factor for item in items]

    async with headway.Batcher(Strict()) as batcher:
        assert await batcher.submit(1, parameters={"offset": 1, "factor": 3}) == 6
        with pytest.raises(InvalidInput, match="parameter 'factor' is missing"):
            await batcher.submit(1, parameters={"offset": 1})
        with pytest.raises(InvalidInput, match="parameter 'offset' is missing"):
            await batcher.submit(1, parameters={"factor": 3})
        with pytest.raises(InvalidInput, match="hashable"):
            await batcher.submit(1, parameters={"offset": 1, "factor": []})


def _unlisted() -> Any:
    class Unlisted(headway.Model[int, int]):
        def predict(self, items: list[int], *, factor: int = 1) -> list[int]:
            return items

    return Unlisted()


def _unknown() -> Any:
    class Unknown(headway.Model[int, int]):
        batch_parameters: ClassVar = ["factor"]

        def predict(self, items: list[int]) -> list[int]:
            return items

    return Unknown()


def _text() -> Any:
    class Text(headway.Model[int, int]):
        batch_parameters: ClassVar = "factor"

        def predict(self, items: list[int], *, factor: int = 1) -> list[int]:
            return items

    return Text()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_unlisted, "Unlisted.predict takes 'factor'.*add it to batch_parameters"),
        (_unknown, "Unknown lists 'factor' in batch_parameters, but no method takes it"),
        (_text, r"write \['factor'\]"),
    ],
)
def test_a_mistake_in_the_class_is_told_at_once(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        headway.Batcher(make())


async def test_a_prepare_that_says_nothing_of_its_arguments_takes_none() -> None:
    class Same(headway.Model[int, int]):
        def predict(self, items: list[int]) -> list[int]:
            return items

    async with headway.Batcher(Same(), prepare=int) as batcher:
        assert await batcher.submit("3") == 3
        with pytest.raises(InvalidInput, match="'base' is unknown"):
            await batcher.submit("3", parameters={"base": 8})
