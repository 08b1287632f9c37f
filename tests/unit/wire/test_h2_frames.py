"""Frames: what is written is read again, whole, however it is cut; nothing else crashes."""

from contextlib import suppress
from itertools import pairwise

import hyperframe.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.wire.http2 import frames
from headway.wire.http2.frames import Code, ConnectionFailed, FrameReader

some_frames = st.lists(
    st.tuples(
        st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**31 - 1), st.binary(max_size=40)
    ),
    max_size=6,
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


@given(some_frames, st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_come_back_however_they_were_cut(
    sent: list[frames.Frame], places: list[int]
) -> None:
    reader = FrameReader()
    pieces = cut(b"".join(frames.frame(*each) for each in sent), places)
    assert [each for piece in pieces for each in reader.feed(piece)] == sent
    assert reader.is_between


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    reader, size, code = FrameReader(), 0, None
    try:
        for _, _, stream_id, payload in reader.feed(data):
            assert 0 <= stream_id < 2**31
            size += 9 + len(payload)
    except ConnectionFailed as error:
        code = error.code
    assert code in (None, Code.FRAME_SIZE_ERROR)
    assert size <= len(data)


def test_the_frames_before_a_bad_one_are_read() -> None:
    good, bad = frames.frame(frames.PING, 0, 0, bytes(8)), frames.head(0, 0, 1, 2**14 + 1)
    found = FrameReader().feed(good + bad)
    assert next(found) == (frames.PING, 0, 0, bytes(8))
    with pytest.raises(ConnectionFailed, match="16385 bytes"):
        next(found)


@pytest.mark.parametrize(
    "data",
    [
        frames.settings({frames.MAX_CONCURRENT_STREAMS: 7, frames.INITIAL_WINDOW_SIZE: 2**20}),
        frames.window_update(3, 17),
        frames.rst_stream(5, Code.CANCEL),
        frames.goaway(9, Code.ENHANCE_YOUR_CALM, "why"),
        frames.frame(frames.PING, frames.ACK, 0, b"12345678"),
        frames.headers(1, b"block", is_last=True),
    ],
)
def test_another_library_reads_our_frames(data: bytes) -> None:
    found, length = hyperframe.frame.Frame.parse_frame_header(memoryview(data)[:9])
    assert length == len(data) - 9
    found.parse_body(memoryview(data)[9:])
    assert found.serialize() == data


def test_a_large_block_goes_on_in_continuations() -> None:
    block = bytes(range(256)) * 150
    found = list(FrameReader().feed(frames.headers(7, block, is_last=True)))
    assert [each[:3] for each in found] == [
        (frames.HEADERS, frames.END_STREAM, 7),
        (frames.CONTINUATION, 0, 7),
        (frames.CONTINUATION, frames.END_HEADERS, 7),
    ]
    assert b"".join(each[3] for each in found) == block


@given(st.integers(0, 255), st.binary(max_size=60))
def test_padding_and_priority_are_taken_off_or_refused(flags: int, payload: bytes) -> None:
    with suppress(ConnectionFailed):
        assert frames.block_of(flags, payload) in payload


def test_padding_and_priority_of_another_library() -> None:
    made = hyperframe.frame.HeadersFrame(1, b"x" * 3, flags=["PADDED", "PRIORITY"], pad_length=4)
    body = made.serialize()[9:]
    assert frames.block_of(frames.PADDED | frames.PRIORITISED, body) == b"xxx"


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({frames.INITIAL_WINDOW_SIZE: 2**31}, Code.FLOW_CONTROL_ERROR),
        ({frames.MAX_FRAME_SIZE: 2**14 - 1}, Code.PROTOCOL_ERROR),
        ({frames.MAX_FRAME_SIZE: 2**24}, Code.PROTOCOL_ERROR),
        ({frames.ENABLE_PUSH: 2}, Code.PROTOCOL_ERROR),
    ],
)
def test_settings_that_cannot_be(settings: dict[int, int], code: Code) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        frames.parse_settings(frames.settings(settings)[9:])
    assert caught.value.code is code
