"""What a protobuf message would become, from its bytes alone: two bytes can be a message of a
hundred, and a parse lets nothing else run. It knows the fields of a descriptor, and no values."""

import functools
from typing import Any, NamedTuple

import numpy

from headway.errors import InputTooLarge
from headway.server.bodies.background import AT_ONCE, Steps

MOST_MESSAGES = 2**13  # inside of one; 0.3 µs each, while nothing else runs
MOST_PARTS = 2**17  # fields altogether: texts above all
MOST_NUMBERS = 2**20  # of variable length, in typed contents; up to 25 ns each, likewise
MESSAGE_BYTES = 128  # in memory, about
PART_BYTES = 32
NUMBER_BYTES = 8
_PARTS_A_STEP = 512  # about a millisecond


class Size(NamedTuple):
    messages: int = 0
    parts: int = 0
    numbers: int = 0

    @property
    def more_bytes(self) -> int:
        """That it takes in memory beside those of the wire."""
        parts = self.messages * MESSAGE_BYTES + self.parts * PART_BYTES
        return parts + self.numbers * NUMBER_BYTES


MOST = Size(MOST_MESSAGES, MOST_PARTS, MOST_NUMBERS)


class _Fields(dict[int, "_Fields | None"]):
    """The fields of a message that hold messages, or (None) numbers side by side."""


def measure(data: bytes, kind: Any, most: Size = MOST, steps: Steps = AT_ONCE) -> Size:
    """`kind` is a message's class. Raises InputTooLarge as soon as it is more than `most`. What is
    not protobuf is measured as far as it goes: the parser will say so."""
    measuring = _Measuring(most, steps)
    measuring.read(memoryview(data), _fields_of(kind.DESCRIPTOR))
    return Size(measuring.messages, measuring.parts, measuring.numbers)


class _Measuring:
    def __init__(self, most: Size, steps: Steps) -> None:
        self._most = most
        self._steps = steps
        self._looks_at = min(_PARTS_A_STEP, most.parts)  # so many parts
        self.messages = self.parts = self.numbers = 0

    def read(self, data: memoryview, fields: _Fields) -> None:
        at, end = 0, len(data)
        while at < end:
            key, at = _varint(data, at)
            self.parts += 1
            if self.parts > self._looks_at:
                self._look()
            kind = key & 7
            if kind == 2:
                length, at = _varint(data, at)
                number = key >> 3
                if number in fields:
                    self._look_into(data[at : at + length], fields[number])
                at += length
            elif kind == 0:
                at = _varint(data, at)[1]
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4

    def _look(self) -> None:
        most_parts = self._most.parts
        if self.parts > most_parts:
            raise _too_large("fields", most_parts)
        self._steps.rest()
        self._looks_at = min(self._looks_at + _PARTS_A_STEP, most_parts)

    def _look_into(self, data: memoryview, fields: _Fields | None) -> None:
        if fields is None:
            ends = numpy.frombuffer(data, numpy.int8) >= 0  # a number's last byte
            self.numbers += int(numpy.count_nonzero(ends))
            if self.numbers > self._most.numbers:
                raise _too_large("typed numbers (raw_input_contents has none)", self._most.numbers)
            return
        self.messages += 1
        if self.messages > self._most.messages:
            raise _too_large("messages inside of it", self._most.messages)
        self.read(data, fields)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """And where it ends; beyond the data where that ends too early."""
    value = shift = 0
    end = len(data)
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, end


@functools.cache
def _fields_of(descriptor: Any) -> _Fields:
    fields = _Fields()
    for field in descriptor.fields:
        if field.message_type is not None:
            fields[field.number] = _fields_of(field.message_type)
        elif field.is_packed and field.type in _VARIABLE:
            fields[field.number] = None
    return fields


def _variable_types() -> frozenset[int]:
    from google.protobuf.descriptor import FieldDescriptor as Field

    return frozenset(
        [
            *(Field.TYPE_INT32, Field.TYPE_INT64, Field.TYPE_UINT32, Field.TYPE_UINT64),
            *(Field.TYPE_SINT32, Field.TYPE_SINT64, Field.TYPE_BOOL, Field.TYPE_ENUM),
        ]
    )


_VARIABLE = _variable_types()


def _too_large(what: str, limit: int) -> InputTooLarge:
    return InputTooLarge(f"the message has more than {limit} {what}", limit=limit)
