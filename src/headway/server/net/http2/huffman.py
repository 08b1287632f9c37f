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


def _made_rows() -> list[list[_Entry]]:
    """By the state before a byte, and the byte."""
    halves = [[_after_half(state, half) for half in range(16)] for state in range(_FAILED + 1)]
    kept: dict[_Entry, _Entry] = {}  # most are the same as many others
    rows = []
    for state in range(_COMPLETE):
        row = []
        for middle, first in halves[state]:
            for end, second in halves[middle]:
                entry = end, first + second
                row.append(kept.setdefault(entry, entry))
        rows.append(row)
    return [*rows, *rows, [(_FAILED, b"")] * 256]


_ROWS = _made_rows()


def decode(data: bytes) -> bytes:
    """Raises HPACKDecodingError."""
    rows, state, parts = _ROWS, _COMPLETE, []
    for byte in data:
        state, part = rows[state][byte]
        parts.append(part)
    if not state & _COMPLETE:
        raise hpack.HPACKDecodingError("a header's Huffman code is broken")
    return b"".join(parts)
