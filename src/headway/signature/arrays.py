"""JSON values as arrays, and what an array's elements look like in a JSON schema."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy

Array: TypeAlias = numpy.ndarray[Any, Any]
BYTES = "object"  # the numpy name for strings of any length


def array_of(value: Any, dtype: str) -> Array:
    """A JSON value as an array. Raises ValueError for what only resembles it: text for numbers,
    null for NaN, fractions for whole numbers, a number that the dtype cannot hold."""
    if dtype == BYTES:
        return numpy.asarray(value, dtype)
    wanted, found = numpy.dtype(dtype), numpy.asarray(value)
    if found.size and found.dtype.kind not in ("b" if wanted.kind == "b" else "iuf"):
        raise ValueError(f"{wanted} is expected")
    if wanted.kind != "b" and _has_bool(value):
        raise ValueError(f"{wanted} is expected, not true or false")
    if wanted.kind in "iu" and found.dtype.kind == "f":
        found = numpy.asarray(_whole(value))  # 2.0 is 2; as a float, a large neighbour loses digits
    with numpy.errstate(over="ignore", invalid="ignore"):
        array = found.astype(wanted)
    most = numpy.finfo(wanted).max if wanted.kind == "f" else 0
    is_held = numpy.abs(found) <= most if wanted.kind == "f" else array == found
    if not is_held.all():
        raise ValueError(f"a number is not {wanted}")
    return array


def _has_bool(value: Any) -> bool:
    """Among numbers, numpy takes true for 1."""
    if not isinstance(value, list):
        return isinstance(value, bool)
    kinds = set(map(type, value))
    return bool in kinds or (list in kinds and any(map(_has_bool, value)))


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(each) for each in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
    return int(value) if is_whole else value


def fits(shape: Sequence[int], want: Sequence[int]) -> bool:
    """But for the rows, which always vary."""
    if len(shape) != len(want):
        return False
    return all(each in (-1, have) for have, each in zip(shape[1:], want[1:], strict=True))


def element_schema(dtype: str) -> dict[str, Any]:
    """The schema of one element, with the limits that `array_of` enforces."""
    if dtype == BYTES:
        return {"type": "string"}
    kind = numpy.dtype(dtype)
    match kind.kind:
        case "b":
            return {"type": "boolean"}
        case "i" | "u":
            whole = numpy.iinfo(kind)
            return {"type": "integer", "minimum": int(whole.min), "maximum": int(whole.max)}
        case _:
            most = float(numpy.finfo(kind).max)
            limits = {"minimum": -most, "maximum": most} if kind.itemsize < 8 else {}
            return {"type": "number", **limits}


def row_schema(dtype: str, shape: Sequence[int]) -> dict[str, Any]:
    """The schema of one row of this shape (its first axis is the rows)."""
    schema = element_schema(dtype)
    for axis in reversed(shape[1:]):
        limits = {} if axis == -1 else {"minItems": axis, "maxItems": axis}
        schema = {"type": "array", "items": schema, **limits}
    return schema
