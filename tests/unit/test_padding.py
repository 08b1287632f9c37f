"""Padding and its mask, on any axis and either side; and back again."""

from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import InvalidInput
from headway.padding import Side, lengths, mask, pad, padded_length, unpad

sides = st.sampled_from(["right", "left"])


def test_lists_of_ids_become_one_array_and_its_mask() -> None:
    texts = [[5, 6, 7], [8]]
    assert pad(texts).tolist() == [[5, 6, 7], [8, 0, 0]]
    assert mask(texts).tolist() == [[1, 1, 1], [1, 0, 0]]
    assert lengths(texts) == [3, 1]


def test_the_left_side_is_filled_where_asked_with_what_is_asked() -> None:
    texts = [[5, 6, 7], [8]]
    assert pad(texts, side="left", value=-1).tolist() == [[5, 6, 7], [-1, -1, 8]]
    assert mask(texts, side="left").tolist() == [[1, 1, 1], [0, 0, 1]]


def test_the_length_is_rounded_up_or_set() -> None:
    assert pad([[1, 2, 3]], multiple_of=8).shape == (1, 8)
    assert pad([[1, 2, 3]], length=5).shape == (1, 5)
    assert mask([3, 1], multiple_of=4, dtype="bool").tolist() == [
        [True, True, True, False],
        [True, False, False, False],
    ]
    assert padded_length(5, multiple_of=4, length=6) == 8


def test_several_axes_are_filled_at_once() -> None:
    images = [numpy.ones((3, 2, 4)), numpy.ones((3, 5, 1))]
    batch = pad(images, axis=(1, 2))
    assert batch.shape == (2, 3, 5, 4)
    assert batch.sum() == 3 * 2 * 4 + 3 * 5


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.integers(-3, 2),
    sides,
    st.integers(1, 5),
)
def test_what_was_padded_comes_back(own: list[int], axis: int, side: Side, multiple: int) -> None:
    shape = [2, 3, 4]
    values: list[Any] = []
    for number, length in enumerate(own):
        shape[axis] = length
        values.append(numpy.full(shape, number + 1.5, numpy.float32))
    batch = pad(values, axis=axis, side=side, value=-7.0, multiple_of=multiple)
    assert batch.dtype == numpy.float32
    assert (batch.shape[1:][axis]) % multiple == 0
    for value, again in zip(values, unpad(batch, own, axis=axis, side=side), strict=True):
        numpy.testing.assert_array_equal(value, again)
    real = mask(values, axis=axis, side=side, multiple_of=multiple)
    assert real.sum(axis=1).tolist() == own
    others = tuple(each for each in (1, 2, 3) if each != axis % 3 + 1)
    assert ((batch != -7.0).all(axis=others) == (real == 1)).all()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: pad([]),
        lambda: pad([1, 2]),
        lambda: pad([[1], [[2]]]),
        lambda: pad([numpy.ones((2, 3)), numpy.ones((2, 4))]),
        lambda: pad([[1, 2, 3]], length=2),
        lambda: pad([[1]], axis=1),
        lambda: pad([[1]], multiple_of=0),
        lambda: unpad([[1, 2]], [1, 1]),
        lambda: unpad([[1, 2]], [3]),
    ],
)
def test_what_cannot_be_padded_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        wrong()
