"""Equal contents, equal digests."""

import copy
import threading
from dataclasses import dataclass
from typing import Any

import numpy
import pytest

from headway.runtime.batching.losses import digest_of


@dataclass(frozen=True)
class Text:
    text: str
    length: int


def image(pixel: int = 0) -> numpy.ndarray[Any, Any]:
    array = numpy.arange(3 * 224 * 224, dtype=numpy.float32).reshape(3, 224, 224)
    array[1, 17, 17] += pixel
    return array


PAIRS: list[tuple[Any, Any]] = [
    ("a text", "a test"),
    ("x" * 1000 + "y" + "x" * 1000, "x" * 1000 + "z" + "x" * 1000),
    (b"\x00\x01", b"\x00\x02"),
    (3.0, 3.5),
    (3, "3"),
    (None, False),
    ([1, [2, 3]], [[1, 2], 3]),
    ({"a": 1, "b": 2}, {"a": 1, "b": 3}),
    (list(range(100)), [*range(50), -1, *range(51, 100)]),
    (image(), image(1)),
    (image(), image().astype(numpy.float64)),
    (image(), image().reshape(224, 224, 3)),
    ({"x": image()}, {"y": image()}),
    (numpy.array(["a", None], dtype=object), numpy.array(["b", None], dtype=object)),
    (Text("a", 1), Text("b", 1)),
    ("\ud800", "\ud801"),
]


@pytest.mark.parametrize(("value", "other"), PAIRS, ids=lambda each: str(each)[:20])
def test_equal_contents_have_one_digest_and_others_another(value: Any, other: Any) -> None:
    same = copy.deepcopy(value)
    assert digest_of(value, None) == digest_of(same, None) is not None
    assert digest_of(value, None) != digest_of(other, None)


def test_what_it_runs_with_counts() -> None:
    assert digest_of(1, "a") != digest_of(1, "b")


def test_what_nobody_can_compare_has_none() -> None:
    for value in (threading.Lock(), lambda: 1):
        assert digest_of(value, None) is None
