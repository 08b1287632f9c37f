"""Equal contents, equal digests; a sketch is enough to tell most apart."""

import copy
import threading
from dataclasses import dataclass
from typing import Any

import numpy
import pytest

from headway.runtime.driving.digests import Trail, digest_of, sketch_of


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
    assert sketch_of(value, None) == sketch_of(same, None) is not None
    assert digest_of(value, None) != digest_of(other, None)


def test_a_sketch_sees_most_differences() -> None:
    assert sketch_of(image(), None) != sketch_of(image() + 1, None)
    assert sketch_of("a" * 500, None) != sketch_of("a" * 501, None)
    assert sketch_of(image(), None) == sketch_of(image(1), None)  # but not every one


def trail_of(*contents: Any) -> tuple[int, bytes] | None:
    trail = Trail()
    for content in contents:
        trail.add(content, len(content))
    return trail.digest()


@pytest.mark.parametrize("letter", ["a", b"a"])
def test_a_trail_looks_at_samples_of_what_is_long(letter: Any) -> None:
    """A chunk of a megabyte would hold Python's lock for half a millisecond, in each stream."""
    middle = letter * 2**19
    assert trail_of(middle + letter + middle) == trail_of(middle + letter.upper() + middle)
    assert trail_of(middle) != trail_of(middle + letter)
    assert trail_of(middle, letter) != trail_of(middle, letter.upper())
    assert trail_of(letter * 99) != trail_of(letter * 50 + letter.upper() + letter * 48)


def test_what_it_runs_with_counts() -> None:
    assert digest_of(1, "a") != digest_of(1, "b")


def test_what_nobody_can_compare_has_none() -> None:
    nested: list[Any] = []
    nested.append(nested)
    for value in (threading.Lock(), lambda: 1, nested):
        assert digest_of(value, None) is None
        assert sketch_of(value, None) is None


def mixed_trail_of(contents: list[Any]) -> Trail:
    trail = Trail()
    for content in contents:
        trail.add(content, len(content) if isinstance(content, str) else 8)
    return trail


TEXTS = [str(number) for number in range(100)]
LONG = "x" * 1000


def test_a_trail_of_texts_is_the_same_however_many_come_at_a_time() -> None:
    for at_a_time in (1, 2, 7, 50):
        trail = Trail()
        for start in range(0, len(TEXTS), at_a_time):
            trail.add_texts(TEXTS[start : start + at_a_time])
        assert trail.length == len(TEXTS)
        assert trail.digest() == mixed_trail_of(TEXTS).digest()


@pytest.mark.parametrize(
    ("contents", "others"),
    [
        (TEXTS, [*TEXTS[:3], "other", *TEXTS[4:]]),
        (TEXTS, [*TEXTS[:98], TEXTS[99], TEXTS[98]]),
        (["a", 1], [1, "a"]),
        (["a", LONG], [LONG, "a"]),
        (["a", [1]], [[1], "a"]),
        ([1], [True]),
        (["ab", "c"], ["a", "bc"]),
    ],
    ids=str,
)
def test_a_trail_knows_contents_and_their_order(contents: list[Any], others: list[Any]) -> None:
    assert mixed_trail_of(contents).digest() == mixed_trail_of(list(contents)).digest()
    assert mixed_trail_of(contents).digest() != mixed_trail_of(others).digest()
