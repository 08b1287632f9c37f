"""The datatypes of the v2 protocol and what they are in numpy.

BYTES is an object array of `bytes`. numpy has no BF16: in memory such a tensor is float32, and only
the wire has two bytes (the high half); so a model declares `bfloat16` and computes on float32.
"""

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy

from headway.model import Tensor

Kind: TypeAlias = Literal["bool", "int", "float", "bytes"]


class Datatype(NamedTuple):
    """A datatype: its names, its type in memory and the size of an element on the wire."""

    name: str
    config_name: str
    kind: Kind
    memory: "numpy.dtype[Any]"
    wire: "numpy.dtype[Any]"  # little-endian; unused for BYTES
    is_json: bool  # BF16 travels as binary only


def _of(name: str, kind: Kind, memory: str, wire: str = "", *, is_json: bool = True) -> Datatype:
    config_name = "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"
    return Datatype(
        name, config_name, kind, numpy.dtype(memory), numpy.dtype(wire or memory), is_json
    )


DATATYPES: dict[str, Datatype] = {
    each.name: each
    for each in (
        _of("BOOL", "bool", "?"),
        _of("UINT8", "int", "u1"),
        _of("UINT16", "int", "u2", "<u2"),
        _of("UINT32", "int", "u4", "<u4"),
        _of("UINT64", "int", "u8", "<u8"),
        _of("INT8", "int", "i1"),
        _of("INT16", "int", "i2", "<i2"),
        _of("INT32", "int", "i4", "<i4"),
        _of("INT64", "int", "i8", "<i8"),
        _of("FP16", "float", "f2", "<f2"),
        _of("FP32", "float", "f4", "<f4"),
        _of("FP64", "float", "f8", "<f8"),
        _of("BF16", "float", "f4", "<u2", is_json=False),
        _of("BYTES", "bytes", "O"),
    )
}
BYTES = DATATYPES["BYTES"]
BF16 = DATATYPES["BF16"]
_BY_MEMORY = {each.memory: each for each in DATATYPES.values() if each is not BF16}
_TEXT = frozenset(["BYTES", "bytes", "object", "str", "string"])
_BFLOAT = frozenset(["BF16", "bfloat16"])


def of_array(array: "numpy.ndarray[Any, Any]") -> Datatype:
    """The datatype of an array on the wire, unless its model declares another. Raises TypeError."""
    return _of_memory(array.dtype)


def of_tensor(tensor: Tensor) -> Datatype:
    """The datatype of a model's declared input or output. Raises TypeError."""
    if tensor.dtype in _TEXT:
        return BYTES
    if tensor.dtype in _BFLOAT:
        return BF16
    return DATATYPES.get(tensor.dtype) or _of_memory(numpy.dtype(tensor.dtype))


def _of_memory(dtype: "numpy.dtype[Any]") -> Datatype:
    found = _BY_MEMORY.get(dtype)
    if found is not None:
        return found
    if dtype.kind in "SU":
        return BYTES
    swapped = _BY_MEMORY.get(dtype.newbyteorder("="))
    if swapped is None:
        raise TypeError(f"the v2 protocol has no datatype for numpy's {dtype}")
    return swapped
