"""Both ends of a line between two processes, here in one."""

import gc
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headway.runtime.calling.runner import Rows
from headway.runtime.workers.process import codec
from headway.runtime.workers.process.channel import (
    INLINE_BYTES,
    Channel,
    Unreadable,
    Unsendable,
    pair,
)

LARGE = 2**20  # bytes: read where they lie


class Line:
    def __init__(self) -> None:
        self.here, self.there = map(Channel, pair())

    def ask(self, value: Any) -> Any:
        self.here.send(1, 1, value)
        return self.there.receive().value

    def answer(self, value: Any = None) -> Any:
        self.there.send(2, 1, value)
        return self.here.receive().value

    def close(self) -> None:
        self.here.close()
        self.there.close()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def large(number: int, size: int = LARGE) -> Any:
    return {"x": numpy.full(size, number, numpy.uint8)}


named_arrays = st.dictionaries(
    st.text(max_size=5),
    arrays.arrays(
        st.sampled_from(["?", "i1", "<i8", "<u2", "<f2", "<f4", "<f8", "<c16", ">i4", "S3", "<U2"]),
        arrays.array_shapes(min_dims=0, min_side=0, max_side=5),
    ),
    max_size=4,
)


def read_back(value: Any, beside: bytes) -> Any:
    layout = codec.layout_of(value, beside)
    room = bytearray(layout.length)
    codec.write(layout, room)
    read, also = codec.read(room)
    assert also == beside
    return read


@given(named_arrays, st.binary(max_size=20))
def test_named_arrays_are_read_as_they_were_written(value: Any, beside: bytes) -> None:
    read = read_back(value, beside)
    assert list(read) == list(value)
    for name, array in value.items():
        assert read[name].dtype == array.dtype
        numpy.testing.assert_array_equal(read[name], array)


rows_of_numbers = st.sampled_from(["<i4", "<f4", "?", ">i4"]).flatmap(
    lambda dtype: st.lists(arrays.arrays(dtype, st.integers(0, 1500)), min_size=1, max_size=6)
)


@given(rows_of_numbers, st.binary(max_size=20))
def test_a_list_of_rows_is_read_as_it_was_written(value: Any, beside: bytes) -> None:
    read = read_back(value, beside)
    assert len(read) == len(value)
    for mine, theirs in zip(value, read, strict=True):
        assert theirs.dtype == mine.dtype
        numpy.testing.assert_array_equal(theirs, mine)


def test_short_rows_of_one_type_are_not_pickled_one_by_one(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(codec, "_pickled")
    rows = [numpy.arange(length, dtype=numpy.int32) for length in (3, 0, 500)]
    [*read, again] = line.ask([*rows, rows[0]])
    read[0][:] = 7
    assert again.tolist() == [0, 1, 2], "each row is its own"
    assert [row.tolist() for row in read[1:]] == [row.tolist() for row in rows[1:]]


def test_rows_that_are_no_plain_ones_are_read_as_well(line: Line) -> None:
    short = numpy.arange(4, dtype=numpy.int32)
    for odd in (short.astype(numpy.int64), short[::2], short.reshape(2, 2), "text", None):
        first, second = line.ask([short, odd])
        numpy.testing.assert_array_equal(first, short)
        numpy.testing.assert_array_equal(second, odd)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, "two", b"three", {"four": 4.0}],
        {"texts": numpy.array([b"a", "b", None], dtype=object)},
        {"x": numpy.arange(10), "y": "not an array"},
        {1: numpy.arange(3)},
        [numpy.arange(100_000), numpy.arange(3)],
    ],
)
def test_anything_else_is_pickled(line: Line, value: Any) -> None:
    numpy.testing.assert_equal(line.ask(value), value)


def test_rows_are_joined_where_they_are_written(line: Line) -> None:
    pieces = [numpy.arange(6).reshape(2, 3), numpy.arange(3).reshape(1, 3)]
    got = line.ask({"x": Rows(pieces)})
    assert got["x"].tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]


def test_strided_arrays_arrive_whole(line: Line) -> None:
    array = numpy.arange(100_000).reshape(100, 1000)[::2, ::3]
    assert numpy.array_equal(line.ask({"x": array})["x"], array)


@pytest.mark.parametrize("size", [INLINE_BYTES // 2, 2 * INLINE_BYTES, LARGE, 3 * LARGE])
def test_what_arrives_may_be_written_to(line: Line, size: int) -> None:
    got = line.ask(large(1, size))
    got["x"][0] = 9
    assert got["x"][0] == 9


def test_memory_is_used_again_once_nobody_holds_it(line: Line) -> None:
    for number in range(50):
        assert line.ask(large(number))["x"][-1] == number
        line.answer()
    assert line.here.shared_bytes == 2 * LARGE  # one region, a power of two


def test_what_somebody_keeps_is_never_written_over(line: Line) -> None:
    kept = []
    for number in range(20):
        kept.append(line.ask(large(number))["x"])
        line.answer()
    assert [array[0] for array in kept] == list(range(20))
    assert [array[-1] for array in kept] == list(range(20))


def test_a_kept_slice_keeps_its_memory(line: Line) -> None:
    kept = line.ask(large(7))["x"][100:200].reshape(10, 10)[2:]
    line.answer()
    line.ask(large(8))
    line.answer()
    line.ask(large(9))
    assert (kept == 7).all()


def test_steps_without_an_answer_between_them_do_not_meet(line: Line) -> None:
    for number in range(8):
        line.here.send(1, 1, large(number, 2 * INLINE_BYTES))
    got = [line.there.receive().value["x"] for _ in range(8)]
    assert [array[0] for array in got] == list(range(8))


def test_memory_shrinks_again(line: Line) -> None:
    line.ask(large(1, 64 * LARGE))
    line.answer()
    assert line.here.shared_bytes >= 64 * LARGE
    for _ in range(600):
        line.ask(1)
        line.answer()
    assert line.here.shared_bytes == line.there.shared_bytes == 0


def test_no_file_stays_open() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        made = Line()
        made.ask(large(1))
        made.answer(large(2))
        made.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_cannot_be_sent_sends_nothing(line: Line) -> None:
    with pytest.raises(Unsendable) as raised:
        line.here.send(1, 1, lambda: None)
    assert re.search("pickle|local object", str(raised.value.__cause__))  # by Python's version
    assert line.ask("the next") == "the next"


class Unmakeable:
    def __reduce__(self) -> Any:
        return (int, ("no number",))


def test_what_cannot_be_read_leaves_the_line_intact(line: Line) -> None:
    line.here.send(1, 5, Unmakeable())
    with pytest.raises(Unreadable) as raised:
        line.there.receive()
    assert (raised.value.call, type(raised.value.__cause__)) == (5, ValueError)
    assert line.ask("the next") == "the next"


def test_the_end_of_one_side_is_the_end(line: Line) -> None:
    line.there.close()
    with pytest.raises(EOFError):
        line.here.receive()
    with pytest.raises(OSError, match=r"[Bb]roken pipe"):
        line.here.send(1, 1, None)
