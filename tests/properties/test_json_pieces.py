"""JSON in pieces is the same JSON: values, and what is refused."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import InputTooLarge, InvalidInput
from headway.server.bodies.background import AT_ONCE
from headway.server.bodies.outline import outline_of
from headway.server.bodies.pieces import decode_in_pieces

_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
    | st.sampled_from(['[,]{}"', "\\", '\\"', "\\\\,", "😀" * 20, "漢字" * 20, "\n" * 30])
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=30,
)
_FAULTS = (msgspec.DecodeError, UnicodeError, RecursionError, InvalidInput)


def outcome(decode: Any, text: bytes) -> Any:
    try:
        return decode(text)
    except _FAULTS:
        return "refused"


def in_pieces(text: bytes) -> Any:
    return decode_in_pieces(text, AT_ONCE, piece_bytes=130)


@given(_VALUES, st.booleans(), st.sampled_from([None, 1, 50]))
def test_any_json_is_the_same_in_pieces(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert in_pieces(text) == msgspec.json.decode(text)


@given(_VALUES, st.data())
def test_what_is_broken_is_refused_in_pieces_too(value: Any, data: st.DataObject) -> None:
    text = bytearray(json.dumps(value).encode())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at : at + data.draw(st.integers(0, 1))] = data.draw(st.sampled_from(list(_BREAKS)))
    broken = bytes(text)
    assert outcome(in_pieces, broken) == outcome(msgspec.json.decode, broken)


_BREAKS = (b"", b"[", b"]", b"{", b"}", b",", b'"', b"\\", b"1", b" ", b"a", b":")


@pytest.mark.parametrize(
    "text", [b"[1,,2]", b"[1,2,]", b"[,1]", b'{"a":1,}', b'{,"a":1}', b"[1 2]"]
)
def test_a_missing_value_is_no_empty_piece(text: bytes) -> None:
    padded = text.replace(b",", b"," + b" " * 150)
    with pytest.raises(msgspec.DecodeError):
        in_pieces(padded)


def test_values_are_counted_before_any_is_decoded() -> None:
    with pytest.raises(InputTooLarge, match="more than 9 values"):
        decode_in_pieces(b"[" + b"[]," * 5 + b"not json]", AT_ONCE, max_values=9)
    assert len(decode_in_pieces(b"[" + b"0," * 8 + b"0]", AT_ONCE, max_values=9)) == 9


def test_nesting_is_limited() -> None:
    assert outcome(in_pieces, b"[" * 256 + b"]" * 256) != "refused"
    with pytest.raises(RecursionError, match="256 levels"):
        in_pieces(b"[" * 257 + b"]" * 257)


def test_an_outline_names_long_lists_and_keeps_the_rest() -> None:
    data = b"[" + b"1," * 3000 + b"1]"
    text = b'{"inputs":[{"name":"[","shape":[3001],"data":' + data + b'}],"id":"]"}'
    outline, lists = outline_of(text, 4, AT_ONCE)
    ((name, cut),) = lists.items()
    assert bytes(cut) == data
    assert outline == text.replace(data, name)
    assert msgspec.json.decode(outline)["inputs"][0]["shape"] == [3001]


def test_an_outline_that_is_large_itself_is_refused() -> None:
    with pytest.raises(InputTooLarge, match="262144 bytes"):
        outline_of(b'{"id":"' + b"a" * 300_000 + b'"}', 4, AT_ONCE)
