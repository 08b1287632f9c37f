"""A large JSON text to Python objects in many short steps: what `msgspec.json.decode` gives, piece
by piece. Lists and objects are cut at their commas, long strings between two characters."""

import re
from typing import Any

import msgspec
import numpy

from headway.errors import InvalidInput
from headway.server.bodies.background import Steps
from headway.server.bodies.marks import COMMA, Marks, Text, all_marks

PIECE_BYTES = 32 * 2**10  # decoded in one go: less than a millisecond
MAX_VALUES = 2**19  # each becomes an object
_SPACE = b" \t\r\n"
_LIST, _OBJECT, _STRING = tuple(b"[]"), tuple(b"{}"), tuple(b'""')
_KEY = re.compile(rb'[ \t\r\n]*("(?:[^"\\]|\\.)*")[ \t\r\n]*:', re.DOTALL)
# Where a string may be cut: before an escape that is no second half of a pair, or beside plain
# characters, outside of what may be a character of several bytes.
_CUT = re.compile(rb"(?<!\\)(?=\\(?!u[dD][c-fC-F]))|(?<=[^\\]{6})(?=[^\\\x80-\xbf])")
_ESCAPE_BYTES = 6
_JOINED_PARTS = 16
_decode = msgspec.json.Decoder().decode


def decode_in_pieces(
    text: Text, steps: Steps, *, max_values: int = MAX_VALUES, piece_bytes: int = PIECE_BYTES
) -> Any:
    """Raises what msgspec would; InputTooLarge and InvalidInput where a limit is crossed."""
    marks = all_marks(text, steps, max_values)
    return _Pieces(text, marks, steps, piece_bytes).value(0, len(text), 1)


class _Pieces:
    def __init__(self, text: Text, marks: Marks, steps: Steps, piece_bytes: int) -> None:
        self._text = memoryview(text)
        self._piece_bytes = piece_bytes
        self._marks = marks
        self._steps = steps

    def value(self, start: int, stop: int, level: int) -> Any:
        """Of the one value in this range; `level`: of its own brackets, if it has some."""
        if stop - start > self._piece_bytes:
            start, stop = self._stripped(start, stop)
        if stop - start <= self._piece_bytes:
            return _decode(self._text[start:stop])
        first, last = self._text[start], self._text[stop - 1]
        if (first, last) == _LIST:
            return self._list(start + 1, stop - 1, level)
        if (first, last) == _OBJECT:
            return self._object(start + 1, stop - 1, level)
        if (first, last) == _STRING:
            return self._string(start + 1, stop - 1)
        raise _malformed("not a value", start)

    def _list(self, start: int, stop: int, level: int) -> list[Any]:
        values: list[Any] = []
        for left, right, is_one in self._groups(start, stop, level):
            if is_one:
                values.append(self.value(left, right, level + 1))
            else:
                part = _decode(b"[%b]" % bytes(self._text[left:right]))
                if not part:
                    raise _malformed("a value is missing", left)
                values += part
            self._steps.rest()
        return values

    def _object(self, start: int, stop: int, level: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for left, right, is_one in self._groups(start, stop, level):
            if is_one:
                self._member(members, left, right, level)
            else:
                part = _decode(b"{%b}" % bytes(self._text[left:right]))
                if not part:
                    raise _malformed("a key is missing", left)
                members.update(part)
            self._steps.rest()
        return members

    def _member(self, members: dict[str, Any], start: int, stop: int, level: int) -> None:
        start, stop = self._stripped(start, stop)
        key = _KEY.match(self._text, start, min(stop, start + self._piece_bytes))
        if key is None:
            raise _malformed("no key, or one that is too long", start)
        members[_decode(key.group(1))] = self.value(key.end(), stop, level + 1)

    def _groups(self, start: int, stop: int, level: int) -> list[tuple[int, int, bool]]:
        """Neighbours that make a piece together, or one that is too large for that."""
        at, kinds, levels = self._marks
        first, last = numpy.searchsorted(at, (start, stop))
        own = (kinds[first:last] == COMMA) & (levels[first:last] == level)
        cuts = numpy.append(at[first:last][own], stop)
        groups: list[tuple[int, int, bool]] = []
        index = 0
        while index < len(cuts):
            most = int(numpy.searchsorted(cuts, start + self._piece_bytes, "right"))
            is_one = most <= index  # even the next alone is too large
            index = index + 1 if is_one else most
            right = int(cuts[index - 1])
            groups.append((start, right, is_one))
            start = right + 1
        return groups

    def _string(self, start: int, stop: int) -> str:
        parts: list[str] = []
        while start < stop:
            right = self._cut(start + self._piece_bytes, stop)
            parts.append(_decode(b'"%b"' % bytes(self._text[start:right])))
            start = right
            self._steps.rest()
        return _joined(parts, self._steps)

    def _cut(self, target: int, stop: int) -> int:
        """Where a string may be cut, or its end if that is near."""
        if target >= stop:
            return stop
        end = min(stop, target + self._piece_bytes)
        cut = _CUT.search(self._text, target, end)
        if cut is not None and (end == stop or cut.start() < end - _ESCAPE_BYTES):
            return cut.start()
        if end == stop:
            return stop
        raise InvalidInput("a text cannot be read: it is all escaped backslashes")

    def _stripped(self, start: int, stop: int) -> tuple[int, int]:
        text = self._text
        while start < stop and text[start] in _SPACE:
            block = bytes(text[start : min(stop, start + self._piece_bytes)])
            start += len(block) - len(block.lstrip(_SPACE))
            self._steps.rest()
        while start < stop and text[stop - 1] in _SPACE:
            block = bytes(text[max(start, stop - self._piece_bytes) : stop])
            stop -= len(block) - len(block.rstrip(_SPACE))
            self._steps.rest()
        return start, stop


def _joined(parts: list[str], steps: Steps) -> str:
    """In steps, too: to join 60 MiB at once takes 20 ms and more. CPython lengthens a local string
    that nobody else has where it is, once the loop has run a few times (`for`, not `while`)."""
    text = ""
    for left in range(0, len(parts), _JOINED_PARTS):
        text += "".join(parts[left : left + _JOINED_PARTS])
        steps.rest()
    return text


def _malformed(what: str, at: int) -> msgspec.DecodeError:
    return msgspec.DecodeError(f"JSON is malformed: {what} (byte {at})")
