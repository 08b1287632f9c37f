"""Huffman's code of HPACK, a byte at a time. hpack's own way, half a byte at a time, takes four
times as long: a head of 32 KB held the event loop up for 13 ms. The states are its table's."""

from typing import TypeAlias

import hpack
from hpack.huffman_table import (
    HUFFMAN_COMPLETE,
    HUFFMAN_EMIT_SYMBOL,
    HUFFMAN_FAIL,
    HUFFMAN_TABLE,
)

_Entry: TypeAlias = tuple[int, bytes]  # the state after a byte, and what the byte brought
_COMPLETE = 256  # beside a state's number: a header may end here
_FAILED = 512  # a state of its own: no header goes on like this


def _after_half(state: int, half: int) -> _Entry:
    if state == _FAILED:
        return _FAILED, b""
    state, flags, symbol = HUFFMAN_TABLE[state % _COMPLETE * 16 + half]
    if flags & HUFFMAN_FAIL:
        return _FAILED, b""
    found = bytes((symbol,)) if flags & HUFFMAN_EMIT_SYMBOL else b""
    return state | (_COMPLETE if flags & HUFFMAN_COMPLETE else 0), found


class _Unmade:
    """Stands for a state's row until it was asked for a few times: to make all rows takes 30 to
    90 ms of a start, and one row 0.2 ms of a first call."""

    def __init__(self, state: int) -> None:
        self._state = state
        self._entries_left = 32

    def __getitem__(self, byte: int) -> _Entry:
        self._entries_left -= 1
        if self._entries_left == 0:
            _ROWS[self._state] = [self._entry(each) for each in range(256)]
        return self._entry(byte)

    def _entry(self, byte: int) -> _Entry:
        middle, first = _after_half(self._state, byte >> 4)
        end, second = _after_half(middle, byte & 15)
        return end, first + second


# By the state before a byte, and the byte.
_ROWS: list[list[_Entry] | _Unmade] = [_Unmade(state) for state in range(_FAILED + 1)]


def decode(data: bytes) -> bytes:
    """Raises HPACKDecodingError."""
    rows, state, parts = _ROWS, _COMPLETE, []
    for byte in data:
        state, part = rows[state][byte]
        parts.append(part)
    if not state & _COMPLETE:
        raise hpack.HPACKDecodingError("a header's Huffman code is broken")
    return b"".join(parts)
