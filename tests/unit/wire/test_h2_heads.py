"""Heads: HPACK as another library writes and reads it, remembered only while it means the same."""

from contextlib import suppress

import hpack
import pytest
from h2_peer import head
from hypothesis import given
from hypothesis import strategies as st

from headway.wire.http2 import heads
from headway.wire.http2.frames import Code, ConnectionFailed, StreamFailed
from headway.wire.http2.heads import HeadReader

texts = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=20)
names = st.from_regex(r"x-[a-z0-9]{1,8}", fullmatch=True)


def reader() -> HeadReader:
    return HeadReader(limit_bytes=4096)


@given(
    st.lists(st.lists(st.tuples(names, texts, st.booleans()), max_size=4), max_size=6),
    st.sampled_from([0, 64, 200, 4096]),
)
def test_what_a_client_says_is_heard_whatever_its_table_does(
    calls: list[list[tuple[str, str, bool]]], table_size: int
) -> None:
    """Repeated, inserted, evicted: remembering never shows."""
    encoder, ours = hpack.Encoder(), reader()
    encoder.header_table_size = table_size
    for call in [each for each in calls for _ in range(3)]:
        fields = [hpack.HeaderTuple(*each) for each in head()]
        for name, value, is_secret in call:
            kind = hpack.NeverIndexedHeaderTuple if is_secret else hpack.HeaderTuple
            fields.append(kind(name, value))
        found = ours.read(encoder.encode(fields))
        assert found.path == "/test/echo"
        assert found.metadata == tuple((name, value) for name, value, _ in call)


def test_a_settled_block_is_decoded_once() -> None:
    encoder, ours = hpack.Encoder(), reader()
    first, second = encoder.encode(head()), encoder.encode(head())
    assert first != second
    assert ours.read(first) is not ours.read(second)
    assert ours.read(second) is ours.read(second)


def test_a_block_means_something_else_once_the_table_has_moved() -> None:
    encoder, ours = hpack.Encoder(), reader()
    ours.read(encoder.encode(head(a="1")))
    settled = encoder.encode(head(a="1"))
    assert ours.read(settled).metadata == (("a", "1"),)
    ours.read(encoder.encode(head(b="2")))  # which takes its place in the table
    with pytest.raises(StreamFailed, match="a path"):  # it is one further on
        ours.read(settled)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1H", 3600), ("2M", 120), ("3S", 3), ("40m", 0.04), ("5u", 5e-6), ("6n", 6e-9)],
)
def test_timeouts(text: str, seconds: float) -> None:
    found = reader().read(hpack.Encoder().encode(head(grpc_timeout=text)))
    assert found.timeout_s == pytest.approx(seconds)
    assert not found.is_plain


def test_call_options_and_binary_metadata() -> None:
    found = reader().read(hpack.Encoder().encode(head(headway_tenant="a", trace_bin="AAEC")))
    assert found.metadata == (("headway-tenant", "a"), ("trace-bin", b"\0\1\2"))
    assert not found.is_plain
    assert reader().read(hpack.Encoder().encode(head(x="y"))).is_plain


@pytest.mark.parametrize(
    "fields",
    [
        [],
        head()[1:],
        [*head(), (":path", "/again")],
        [("a", "b"), *head()],
        [*head(), (":status", "200")],
        head(Upper="x"),
        head(connection="close"),
        head(x="a\nb"),
        head(grpc_timeout="1 minute"),
        head(grpc_timeout="123456789S"),
        head(trace_bin="?"),
        [*head(), ("", "x")],
    ],
)
def test_a_broken_head_breaks_its_own_stream(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(StreamFailed) as caught:
        reader().read(hpack.Encoder().encode(fields))
    assert caught.value.code is Code.PROTOCOL_ERROR


@given(st.binary(max_size=60))
def test_any_block_is_a_head_or_refused(block: bytes) -> None:
    ours = reader()
    with suppress(ConnectionFailed):
        for _ in range(2):
            with suppress(StreamFailed):
                ours.read(block)


def test_a_head_beyond_the_limit() -> None:
    with pytest.raises(ConnectionFailed) as caught:
        reader().read(hpack.Encoder().encode(head(x="y" * 5000)))
    assert caught.value.code is Code.ENHANCE_YOUR_CALM


def read(block: bytes) -> list[tuple[str, str]]:
    return [tuple(each) for each in hpack.Decoder().decode(block)]


def test_another_library_reads_our_blocks() -> None:
    assert read(heads.HEAD_BLOCK) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-accept-encoding", "identity, deflate, gzip"),
    ]
    assert read(heads.OK_BLOCK) == [("grpc-status", "0")]
    assert read(heads.NOT_GRPC_BLOCK) == [(":status", "415")]


@given(st.text(max_size=400), st.binary(max_size=300))
def test_trailers_carry_any_message(message: str, data: bytes) -> None:
    from urllib.parse import unquote

    block = heads.trailers_block(13, message, [("retry-after", "1"), ("a-bin", data)])
    found = dict(read(heads.only_trailers_block(block)))
    assert found["grpc-status"] == "13"
    text = message.encode(errors="replace").decode()
    assert unquote(found.get("grpc-message", "")) == text
    assert reader().read(hpack.Encoder().encode(head(a_bin=found["a-bin"]))).metadata == (
        ("a-bin", data),
    )


def test_metadata_cannot_smuggle() -> None:
    assert read(heads.metadata_block([("x", "a\r\nb")])) == [("x", "a  b")]
    for name in ("grpc-status", "a b", "X", ":path", ""):
        with pytest.raises(ValueError, match="not a name"):
            heads.metadata_block([(name, "x")])
