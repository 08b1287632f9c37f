"""The `data` of v2's JSON: lists to arrays and back."""

import functools
import re
from typing import Annotated, Any

import msgspec
import numpy
from msgspec import Meta, Raw, Struct, field

from headway.errors import InvalidInput, called
from headway.server.service.dtypes import BYTES, Datatype
from headway.server.service.tensors import Array, count_elements, objects, shaped, texts

_OPENING = re.compile(rb"[\s\[]*")


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
    return bytes(data).count(b",")


def read_json(wire: WireInput, datatype: Datatype) -> Array:
    name, shape = wire.name, wire.shape
    if not datatype.is_json:
        raise InvalidInput(
            f"{called(name)}: {datatype.name} cannot be sent as JSON, only as binary"
        )
    count = count_elements(name, shape)
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
    """Read an array without elements: `[]`, or lists of only empty lists."""
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
    """A decoder of lists, `depth` deep, of the datatype's elements."""
    nested = element_type(datatype)
    for _ in range(depth):
        nested = list[nested]  # type: ignore[valid-type]
    return msgspec.json.Decoder(nested)


_MOST = {
    "FP32": float(numpy.finfo(numpy.float32).max),
    "FP16": float(numpy.finfo(numpy.float16).max),
}


def element_type(datatype: str) -> Any:
    """The type of one element in JSON; msgspec checks types and ranges itself."""
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


def _encoded(name: str, values: list[Any]) -> list[bytes]:
    for each in values:
        if not isinstance(each, str):
            raise InvalidInput(f"{called(name)}: BYTES data: Expected `str`, got {each!r:.40}")
    try:
        return [text.encode() for text in values]
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InvalidInput(f"{called(name)}: a text is not valid Unicode: {error}") from error


# ---- the other way


def json_data(name: str, array: Array, datatype: Datatype) -> Any:
    """The array as a flat list, as in Triton. msgspec writes NaN and infinity as null."""
    if datatype is BYTES:
        try:
            return [text.decode() for text in texts(array)]
        except UnicodeDecodeError as error:
            raise not_utf8(name) from error
    if not datatype.is_json:
        raise not_json(name, datatype)
    return array.ravel().tolist()


def not_utf8(name: str) -> InvalidInput:
    return InvalidInput(
        f"output {name!r} is not UTF-8, so JSON cannot carry it; ask for binary_data"
    )


def not_json(name: str, datatype: Datatype) -> InvalidInput:
    return InvalidInput(
        f"output {name!r} is {datatype.name}, which JSON cannot carry; ask for binary_data"
    )
