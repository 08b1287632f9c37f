"""The `data` of v2's JSON: lists to arrays and back. What is long is read and written in steps."""

import codecs
import functools
import itertools
import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import numpy
from msgspec import Meta, Raw, Struct, field

from headway.errors import InvalidInput, called
from headway.server.bodies.background import AT_ONCE, Steps
from headway.server.bodies.pieces import PIECE_BYTES, decode_in_pieces
from headway.server.service.dtypes import BYTES, Datatype
from headway.server.service.tensors import (
    TEXT_STEP,
    Array,
    count_elements,
    encoded_text,
    objects,
    shaped,
    texts,
)

LONG_BYTES = 256 * 2**10  # of JSON data: beyond, it is read and written in pieces
_PIECE = 2**12  # elements
FEW = 2**15  # elements that are written as one list, unless they are long texts
_OPENING = re.compile(rb"[\s\[]*")
_SPACE = b" \t\r\n"
_NO_BRACKETS = bytes.maketrans(b"[]", b"  ")
_OUTLINE = bytes(each if each in b"[]," else ord("v") for each in range(256))
_ENCODER = msgspec.json.Encoder()


class WireInput(Struct, forbid_unknown_fields=True):
    name: str
    shape: list[int]
    datatype: str
    data: Raw = field(default_factory=Raw)
    parameters: dict[str, str | int | float | bool | None] | None = None


def is_absent(data: Raw) -> bool:
    view = memoryview(data)
    return len(view) == 0 or view[0] == 0x6E  # the n of null


def count_commas(data: Raw) -> int:
    """Of short data; long data is counted while it is read."""
    return bytes(data).count(b",") if len(memoryview(data)) <= LONG_BYTES else 0


def read_json(wire: WireInput, datatype: Datatype, steps: Steps = AT_ONCE) -> Array:
    name, shape = wire.name, wire.shape
    if not datatype.is_json:
        raise InvalidInput(
            f"{called(name)}: {datatype.name} cannot be sent as JSON, only as binary"
        )
    count = count_elements(name, shape)
    if len(memoryview(wire.data)) > LONG_BYTES:
        return _read_long(wire, datatype, count, steps)
    opening = _OPENING.match(wire.data)
    depth = opening.group().count(b"[") if opening else 0
    if depth == 0 and is_absent(wire.data):
        raise InvalidInput(f"{called(name)}: there is no data")
    if count == 0:
        return _read_empty(wire, datatype)
    if depth not in (1, len(shape)):
        raise InvalidInput(
            f"{called(name)}: data of {depth} levels for shape {shape}; "
            f"it is either flat or nested as the shape says"
        )
    array = _array(wire, datatype, depth)
    if array.size != count or (depth > 1 and array.shape != tuple(shape)):
        raise InvalidInput(
            f"{called(name)}: shape {shape} takes {count} elements, "
            f"the data is of shape {list(array.shape)}"
        )
    if datatype is BYTES:
        array = objects(_encoded(name, array.ravel().tolist())).reshape(array.shape)
    return array if array.ndim == len(shape) else shaped(name, array, shape)


def _array(wire: WireInput, datatype: Datatype, depth: int) -> Array:
    values = _elements(wire.name, datatype, depth, wire.data)
    try:
        return numpy.array(values, datatype.memory)
    except (ValueError, OverflowError) as error:  # ragged; beyond 64 bits
        raise InvalidInput(
            f"{called(wire.name)}: the data is not of shape {wire.shape}: {error}"
        ) from error


def _read_empty(wire: WireInput, datatype: Datatype) -> Array:
    """No elements: `[]`, or lists of nothing but empty lists."""
    if re.fullmatch(rb"[\s\[\],]*", wire.data) is None:
        raise InvalidInput(f"{called(wire.name)}: shape {wire.shape} takes no elements")
    return shaped(wire.name, numpy.empty(0, datatype.memory), wire.shape)


def _elements(name: str, datatype: Datatype, depth: int, data: Any) -> Any:
    try:
        return _decoder(datatype.name, depth).decode(data)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{called(name)}: {datatype.name} data: {error}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidInput(f"{called(name)}: the data is not valid JSON: {error}") from error


@functools.cache
def _decoder(datatype: str, depth: int) -> "msgspec.json.Decoder[Any]":
    """Lists `depth` deep of what the datatype holds."""
    nested = element_type(datatype)
    for _ in range(depth):
        nested = list[nested]  # type: ignore[valid-type]
    return msgspec.json.Decoder(nested)


_MOST = {
    "FP32": float(numpy.finfo(numpy.float32).max),
    "FP16": float(numpy.finfo(numpy.float16).max),
}


def element_type(datatype: str) -> Any:
    """Of one element in JSON; msgspec checks types and ranges itself."""
    match datatype:
        case "BOOL":
            return bool
        case "BYTES":
            return str
        case "FP64":
            return float
        case "FP32" | "FP16":
            most = _MOST[datatype]
            return Annotated[float, Meta(ge=-most, le=most)]
        case "UINT64":  # its upper bound is beyond what msgspec checks; numpy does
            return Annotated[int, Meta(ge=0)]
        case _:
            range_ = numpy.iinfo(datatype.lower())
            return Annotated[int, Meta(ge=int(range_.min), le=int(range_.max))]


# ---- long data, in steps


def _read_long(wire: WireInput, datatype: Datatype, count: int, steps: Steps) -> Array:
    """Nothing has been seen of it but where it begins and ends."""
    if count == 0:
        raise InvalidInput(f"{called(wire.name)}: shape {wire.shape} takes no elements")
    if datatype is BYTES:
        flat = _read_texts(wire, count, steps)
    else:
        try:
            flat = _read_numbers(wire, datatype, count, steps)
        except (ValueError, OverflowError) as error:  # beyond 64 bits
            raise InvalidInput(f"{called(wire.name)}: {datatype.name} data: {error}") from error
    return shaped(wire.name, flat, wire.shape)


def _read_numbers(wire: WireInput, datatype: Datatype, count: int, steps: Steps) -> Array:
    """Brackets are compared with the shape, and then left out: the numbers make one flat list."""
    flat, nested = _outline([count]), b""
    if _outline_bytes(wire.shape) <= len(memoryview(wire.data)):
        nested = _outline(wire.shape)
    numbers, filled = numpy.empty(count, datatype.memory), 0
    outline = bytearray()
    for chunk in _chunks(wire):
        compact = chunk.translate(_OUTLINE, _SPACE)
        if b"v[" in compact or b"]v" in compact:  # `1[`, `]1`: no longer seen without brackets
            raise InvalidInput(f"{called(wire.name)}: the data is not valid JSON")
        outline += compact.translate(None, b"v") + b","
        plain = b"[%b]" % chunk.translate(_NO_BRACKETS)
        values = _elements(wire.name, datatype, 1, plain)
        filled += len(values)
        if filled > count or len(outline) > max(len(flat), len(nested)) + 1:
            raise _not_of_shape(wire, count)
        numbers[filled - len(values) : filled] = values
        steps.rest()
    if filled != count or outline[:-1] not in (flat, nested):
        raise _not_of_shape(wire, count)
    return numbers


def _chunks(wire: WireInput) -> Iterator[bytes]:
    """Cut at commas."""
    view, start = memoryview(wire.data), 0
    while start < len(view):
        chunk = bytes(view[start : start + PIECE_BYTES])
        if start + len(chunk) < len(view):
            comma = chunk.rfind(b",")
            if comma < 0:
                raise InvalidInput(
                    f"{called(wire.name)}: a number takes more than {PIECE_BYTES} bytes"
                )
            chunk = chunk[:comma]
        start += len(chunk) + 1
        yield chunk


def _outline(shape: list[int]) -> bytes:
    """The brackets and commas of data of this shape."""
    text = b""
    for size in reversed(shape):
        text = b"[" + (text + b",") * (size - 1) + text + b"]"
    return text


def _outline_bytes(shape: list[int]) -> int:
    size_bytes = 0
    for size in reversed(shape):
        size_bytes = 2 + (size_bytes + 1) * size - 1
    return size_bytes


def _read_texts(wire: WireInput, count: int, steps: Steps) -> Array:
    try:
        most = _outline_bytes(wire.shape) + 1
        values = decode_in_pieces(memoryview(wire.data), steps, max_values=most)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"{called(wire.name)}: the data is not valid JSON: {error}") from error
    if not isinstance(values, list):
        raise _not_of_shape(wire, count)
    if len(values) != count or (values and isinstance(values[0], list)):
        values = _flattened(values, wire, count)
    array = numpy.empty(count, object)
    for start in range(0, count, _PIECE):
        part = values[start : start + _PIECE]
        array[start : start + len(part)] = _encoded(wire.name, part)
        steps.rest()
    return array


def _flattened(values: list[Any], wire: WireInput, count: int) -> list[Any]:
    level: list[Any] = [values]
    for size in wire.shape:
        if not all(isinstance(each, list) and len(each) == size for each in level):
            raise _not_of_shape(wire, count)
        level = list(itertools.chain.from_iterable(level))
    return level


def _encoded(name: str, values: list[Any]) -> list[bytes]:
    for each in values:
        if not isinstance(each, str):
            raise InvalidInput(f"{called(name)}: BYTES data: Expected `str`, got {each!r:.40}")
    try:
        return [text.encode() for text in values]
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InvalidInput(f"{called(name)}: a text is not valid Unicode: {error}") from error


def _not_of_shape(wire: WireInput, count: int) -> InvalidInput:
    return InvalidInput(
        f"{called(wire.name)}: shape {wire.shape} takes {count} elements, flat or nested as the "
        "shape says; the data has another form"
    )


# ---- the other way


def json_data(name: str, array: Array, datatype: Datatype) -> Any:
    """Flat, as Triton does. msgspec writes NaN and infinity as null."""
    if datatype is BYTES:
        try:
            return [text.decode() for text in texts(array)]
        except UnicodeDecodeError as error:
            raise not_utf8(name) from error
    if not datatype.is_json:
        raise not_json(name, datatype)
    return array.ravel().tolist()


def json_pieces(name: str, array: Array, datatype: Datatype, steps: Steps) -> list[bytes]:
    """The same list, written piece by piece."""
    flat, parts = array.ravel(), [b"["]
    if datatype is BYTES and len(flat) <= FEW:  # it is large by the length of its texts
        for text in flat.tolist():
            parts += (*_text_pieces(name, text, steps), b",")
        parts[-1] = b"]"
        return parts
    for start in range(0, len(flat), _PIECE):
        values = json_data(name, flat[start : start + _PIECE], datatype)
        parts += (_ENCODER.encode(values)[1:-1], b",")
        steps.rest()
    parts[-1] = b"]" if len(parts) > 1 else b"[]"
    return parts


def _text_pieces(name: str, text: Any, steps: Steps) -> Iterator[bytes]:
    """One text, written a part at a time."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    yield b'"'
    try:
        for part in encoded_text(text, steps):
            for start in range(0, len(part), TEXT_STEP):
                yield _ENCODER.encode(decode(part[start : start + TEXT_STEP]))[1:-1]
                steps.rest()
        decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise not_utf8(name) from error
    yield b'"'


def not_utf8(name: str) -> InvalidInput:
    return InvalidInput(
        f"output {name!r} is not UTF-8, so JSON cannot carry it; ask for binary_data"
    )


def not_json(name: str, datatype: Datatype) -> InvalidInput:
    return InvalidInput(
        f"output {name!r} is {datatype.name}, which JSON cannot carry; ask for binary_data"
    )
