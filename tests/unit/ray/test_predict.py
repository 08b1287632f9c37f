"""`headway.ray.Predict` as Ray Data calls it: blocks in, blocks out. It needs no Ray."""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import headway
from headway.ray import Predict

pytestmark = pytest.mark.real_time


class Length(headway.Model[str, list[int]]):
    """Fails for `bad`."""

    seen: list[list[str]] = []  # noqa: RUF012

    def size(self, text: str) -> int:
        return len(text)

    def predict(self, texts: list[str]) -> list[list[int]]:
        self.seen.append(texts)
        for text in texts:
            if text == "bad":
                raise headway.InvalidInput("not this one")
        return [[len(text), 0] for text in texts]


class Double(headway.Model[float, float]):
    def predict(self, values: list[float]) -> list[float]:
        return [2 * value for value in values]


@pytest.fixture(scope="module")
def lengths() -> Iterator[Any]:
    made = Predict(Length, max_batch_size=8, warm_up=False)
    yield made
    made.close()


def block(*texts: str) -> dict[str, Any]:
    return {"text": numpy.array(texts, dtype=object), "id": numpy.arange(len(texts))}


def test_a_block_keeps_its_order_and_its_columns(lengths: Any) -> None:
    texts = ["x" * (n * 7 % 50 + 1) for n in range(1000)]
    found = lengths(block(*texts))
    assert [each[0] for each in found["prediction"]] == [len(text) for text in texts]
    assert found["id"].tolist() == list(range(1000))
    assert set(found["error"]) == {""}


def test_a_row_that_fails_is_marked_and_the_others_are_answered(lengths: Any) -> None:
    found = lengths(block("a", "bad", "abc"))
    assert found["prediction"].tolist() == [[1, 0], None, [3, 0]]
    assert [bool(each) for each in found["error"]] == [False, True, False]
    assert "not this one" in found["error"][1]


def test_an_empty_block_and_a_column_that_is_not_there(lengths: Any) -> None:
    assert len(lengths(block())["prediction"]) == 0
    with pytest.raises(headway.ConfigError, match=r"no column 'text'; there are: words"):
        lengths({"words": numpy.array(["a"])})


def test_columns_have_the_names_that_are_given_and_numbers_stay_numbers() -> None:
    double = Predict(Double, input="x", output="y", error="why", warm_up=False)
    found = double({"x": numpy.array([1.5, 2.5])})
    assert found["y"].tolist() == [3.0, 5.0]
    assert found["why"].tolist() == ["", ""]
    double.close()


def test_mistakes_show_when_it_is_made() -> None:
    with pytest.raises(headway.ConfigError, match="max_batch_sice"):
        Predict(Double, max_batch_sice=4)
    with pytest.raises(headway.ConfigError, match="one model is expected, not a, b"):
        Predict({"a": Double, "b": Double})
