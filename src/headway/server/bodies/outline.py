"""The outline of a large JSON text: all of it but its long lists, in whose places stand names."""

import os

import msgspec
import numpy

from headway.errors import InputTooLarge
from headway.server.bodies.background import Steps
from headway.server.bodies.marks import (
    CLOSE_LIST,
    NOTHING,
    OPEN_LIST,
    Array,
    Marks,
    Text,
    blocks_of_marks,
)

LONG_BYTES = 4 * 2**10  # of a list; shorter ones stay
MAX_BYTES = 256 * 2**10  # of an outline: it is decoded in one go


def outline_of(text: Text, level: int, steps: Steps) -> tuple[bytes, dict[bytes, memoryview]]:
    """Long lists that have `level` - 1 containers around them are cut out: what stands for them,
    a JSON string that no client can guess, and their text.

    Raises InputTooLarge where too much is left; for what is not JSON, msgspec's DecodeError, or
    the code that decodes outline and lists does.
    """
    view = memoryview(text)
    starts, stops = _long_lists(text, level, steps)
    secret = os.urandom(8).hex()
    parts: list[bytes | memoryview] = []
    lists: dict[bytes, memoryview] = {}
    left, size = 0, 0
    for number, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        name = b'"%b %d"' % (secret.encode(), number)
        lists[name] = view[start : stop + 1]
        parts += (view[left:start], name)
        size += start - left + len(name)
        left = stop + 1
    size += len(view) - left
    if size > MAX_BYTES:
        raise InputTooLarge(
            f"outside of its long lists the JSON has more than {MAX_BYTES} bytes", limit=MAX_BYTES
        )
    return b"".join((*parts, view[left:])), lists


def _long_lists(text: Text, level: int, steps: Steps) -> tuple[Array, Array]:
    found = [NOTHING]
    for marks in blocks_of_marks(text, steps):
        is_list = (marks.kinds == OPEN_LIST) | (marks.kinds == CLOSE_LIST)
        found.append(marks.select(is_list & (marks.levels == level)))
    at, kinds, _ = Marks(*(numpy.concatenate(columns) for columns in zip(*found, strict=True)))
    starts, stops = at[kinds == OPEN_LIST], at[kinds == CLOSE_LIST]
    if len(starts) != len(stops):
        raise msgspec.DecodeError("JSON is malformed: brackets do not match")
    is_long = stops - starts > LONG_BYTES
    return starts[is_long], stops[is_long]
