"""Where the brackets and commas of a JSON text are, found in blocks, before any of it is decoded.

It checks nothing: what is not JSON gives marks that the decoder of the pieces will refuse.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy

from headway.errors import InputTooLarge
from headway.server.bodies.background import Steps

Array: TypeAlias = "numpy.ndarray[Any, Any]"
Text: TypeAlias = bytes | bytearray | memoryview

MAX_DEPTH = 256
_BLOCK = 128 * 2**10  # bytes; about a millisecond
_QUOTE = 1
OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT, COMMA = 2, 3, 4, 5, 6
_KINDS = bytearray(256)
for _character, _kind in zip(b'"[]{},', (_QUOTE, 2, 3, 4, 5, 6), strict=True):
    _KINDS[_character] = _kind
_STEPS = numpy.array([0, 0, 1, -1, 1, -1, 0], numpy.int64)  # into a container, out of it


class Marks(NamedTuple):
    """Brackets and commas outside strings, in order."""

    at: Array  # positions
    kinds: Array
    levels: Array  # how many containers are around it; a bracket is inside its own

    def select(self, chosen: Array) -> "Marks":
        return Marks(self.at[chosen], self.kinds[chosen], self.levels[chosen])


NOTHING = Marks(*(numpy.empty(0, numpy.int64) for _ in range(3)))


def blocks_of_marks(text: Text, steps: Steps) -> Iterator[Marks]:
    """Raises RecursionError and DecodeError, as msgspec would."""
    view = memoryview(text)
    start, depth, in_string = 0, 0, 0
    while start < len(view):
        block = _block(view, start)
        kinds = numpy.frombuffer(block.translate(_KINDS), numpy.uint8)
        at = numpy.flatnonzero(kinds)
        kinds = kinds[at]
        quotes = kinds == _QUOTE
        parity = (numpy.cumsum(quotes) + in_string) & 1
        if len(parity):
            in_string = int(parity[-1])
        outside = (parity == 0) & ~quotes
        at, kinds = at[outside] + start, kinds[outside]
        after = numpy.cumsum(_STEPS[kinds]) + depth
        if len(after):
            depth = int(after[-1])
            if after.min() < 0:
                raise msgspec.DecodeError("JSON is malformed: a bracket too many")
            if after.max() > MAX_DEPTH:
                raise RecursionError(f"it is nested more than {MAX_DEPTH} levels deep")
        levels = after + ((kinds == CLOSE_LIST) | (kinds == CLOSE_OBJECT))
        yield Marks(at, kinds, levels)
        start += len(block)
        steps.rest()
    if in_string or depth:
        raise msgspec.DecodeError("Input data was truncated")


def _block(view: memoryview, start: int) -> bytes:
    """The next one, without what is escaped: as long as it was."""
    block = bytes(view[start : start + _BLOCK])
    if b"\\" not in block:
        return block
    if (len(block) - len(block.rstrip(b"\\"))) % 2:  # do not cut an escape in two
        block = bytes(view[start : start + _BLOCK + 1])
    return block.replace(b"\\\\", b"__").replace(b'\\"', b"__")


def all_marks(text: Text, steps: Steps, max_values: int) -> Marks:
    """Raises InputTooLarge where there are more values than that, before any is decoded."""
    found, values = [NOTHING], 0
    for marks in blocks_of_marks(text, steps):
        closing = (marks.kinds == CLOSE_LIST) | (marks.kinds == CLOSE_OBJECT)
        values += len(marks.kinds) - int(numpy.count_nonzero(closing))
        if values > max_values:
            raise too_many_values(max_values)
        found.append(marks)
    return Marks(*(numpy.concatenate(columns) for columns in zip(*found, strict=True)))


def too_many_values(limit: int) -> InputTooLarge:
    return InputTooLarge(f"the JSON has more than {limit} values", limit=limit)
