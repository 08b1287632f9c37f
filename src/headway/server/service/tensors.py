"""Converts single tensors between raw bytes and arrays, and checks arrays against a signature.

Used by HTTP's binary extension, gRPC's raw contents and shared memory.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy

from headway.config import MAX_JSON_BYTES
from headway.errors import InputTooLarge, InvalidInput, ModelFailed, called
from headway.model import Tensor
from headway.server.service.dtypes import BF16, BYTES, DATATYPES, Datatype, of_array, of_tensor

Array: TypeAlias = numpy.ndarray[Any, Any]
Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_RANK = 32


class RequestLimits(NamedTuple):
    """The most that one request may contain."""

    rows: int = 65536
    elements: int = 2**24
    json_bytes: int = MAX_JSON_BYTES


NORMAL = RequestLimits()
MAX_TEXTS = 2**20  # elements of BYTES: each becomes an object
_LARGEST_ELEMENT = 8  # bytes, of numbers

_LENGTH = struct.Struct("<I")


def too_many_rows(rows: int, limit: int) -> InputTooLarge:
    return InputTooLarge(f"{rows} rows in one request; at most {limit} are allowed", limit=limit)


def datatype_named(name: str, datatype: str) -> Datatype:
    found = DATATYPES.get(datatype)
    if found is None:
        raise InvalidInput(
            f"{called(name)}: datatype {datatype!r} is unknown; there are {', '.join(DATATYPES)}"
        )
    return found


def count_elements(name: str, shape: Sequence[int]) -> int:
    """The number of elements that a shape claims. Nothing is allocated for a claim."""
    if len(shape) > MAX_RANK:
        raise InvalidInput(f"{called(name)}: {len(shape)} dimensions, at most {MAX_RANK} allowed")
    for size in shape:
        if size < 0:
            raise InvalidInput(f"{called(name)}: shape {list(shape)} has a negative dimension")
    return math.prod(shape)


def from_raw(name: str, datatype: Datatype, shape: Sequence[int], raw: Buffer) -> Array:
    """An array over `raw`: a read-only view without a copy, except for BYTES and BF16."""
    count = count_elements(name, shape)
    if datatype is BYTES:
        flat = _read_bytes(name, raw, count)
    else:
        expected = count * datatype.wire.itemsize
        if len(raw) != expected:
            raise InvalidInput(
                f"{called(name)}: {datatype.name} of shape {list(shape)} takes {expected} bytes, "
                f"{len(raw)} came"
            )
        flat = numpy.frombuffer(raw, datatype.wire)
        if datatype is BF16:
            flat = widen(flat)
    return shaped(name, flat, shape)


def to_raw(array: Array, datatype: Datatype) -> bytes:
    """The array's bytes on the wire: little-endian, row-major."""
    if datatype is BYTES:
        parts: list[bytes] = []
        for text in texts(array):
            parts += (_LENGTH.pack(len(text)), text)
        return b"".join(parts)
    if datatype is BF16:
        return narrow(array).tobytes()
    return array.astype(datatype.wire, copy=False).tobytes()


def shaped(name: str, flat: Array, shape: Sequence[int]) -> Array:
    try:
        return flat.reshape(shape)
    except (ValueError, OverflowError) as error:  # an empty tensor with a dimension beyond memory
        raise InvalidInput(f"{called(name)}: shape {list(shape)} is not possible") from error


def texts(array: Array) -> Iterable[bytes]:
    """The elements of a BYTES array, whether the model gave bytes or texts."""
    for element in array.ravel().tolist():
        if isinstance(element, str):
            yield utf8(element)
        elif isinstance(element, bytes):
            yield element
        else:
            raise ModelFailed(f"a BYTES tensor holds a {type(element).__name__}, not bytes or str")


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise ModelFailed(f"the result cannot be written as text: {error}") from None


def widen(halves: Array) -> Array:
    """Convert BF16 as on the wire (uint16) to float32, exactly."""
    return (halves.astype(numpy.uint32) << 16).view(numpy.float32)


def narrow(array: Array) -> Array:
    """Convert float32 to BF16 (uint16), to the nearest, ties to even."""
    wide = numpy.ascontiguousarray(array, numpy.float32).view(numpy.uint32)
    rounded = (wide + (((wide >> 16) & 1) + 0x7FFF)) >> 16
    quiet_nan = (wide >> 16) | 0x40  # rounding could turn a NaN into infinity
    return numpy.where((wide & 0x7FFFFFFF) > 0x7F800000, quiet_nan, rounded).astype("<u2")


def objects(elements: Sequence[bytes]) -> Array:
    array = numpy.empty(len(elements), object)
    array[:] = elements
    return array


def _read_bytes(name: str, raw: Buffer, count: int) -> Array:
    if count * _LENGTH.size > len(raw):
        raise InvalidInput(
            f"{called(name)}: {count} BYTES elements need {count * _LENGTH.size} bytes or more, "
            f"{len(raw)} came"
        )
    array = numpy.empty(count, object)
    at, end = 0, len(raw)
    for index in range(count):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(raw, at)[0] if start <= end else end + 1
        if at > end:
            raise InvalidInput(f"{called(name)}: the data ends inside BYTES element {index}")
        array[index] = bytes(raw[start:at])
    if at != end:
        raise InvalidInput(
            f"{called(name)}: {end - at} bytes are left after its {count} BYTES elements"
        )
    return array


class Promised(NamedTuple):
    """The shape and size of one tensor, as its request announces them."""

    name: str
    datatype: Datatype
    shape: Sequence[int]
    commas: int = 0  # in its data, where that is JSON that has been counted


class TensorSignature:
    """A model's inputs and outputs, prepared for checking requests."""

    __slots__ = (
        *("converts_raw", "has_rows", "inputs", "max_elements", "max_json_bytes", "max_rows"),
        "outputs",
    )

    def __init__(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        limits: RequestLimits = NORMAL,
        *,
        has_rows: bool = True,
    ) -> None:
        """`has_rows`: whether the first axis of every tensor is its rows."""
        self.has_rows = has_rows
        self.max_rows, self.max_elements, self.max_json_bytes = limits
        self.inputs = {each.name: (of_tensor(each), each.shape) for each in inputs}
        # Whether raw data is copied, not only looked at.
        self.converts_raw = not inputs or any(
            each is BYTES or each is BF16 for each, _ in self.inputs.values()
        )
        self.outputs = {each.name: of_tensor(each) for each in outputs}

    def check_promised(self, promised: Sequence[Promised], shared_bytes: int = 0) -> None:
        """Names, datatypes, shapes and sizes as a request announces them: before any of its data
        is looked at. Raises InvalidInput or InputTooLarge."""
        counts = [count_elements(each.name, each.shape) for each in promised]
        self.check_elements(map(max, counts, (each.commas for each in promised)))
        if shared_bytes > (limit := self.max_elements * _LARGEST_ELEMENT):
            raise InputTooLarge(
                f"the request uses more than {limit} bytes of shared memory", limit=limit
            )
        texts = (
            count for count, each in zip(counts, promised, strict=True) if each.datatype is BYTES
        )
        if sum(texts) > MAX_TEXTS:
            raise InputTooLarge(
                f"the request has more than {MAX_TEXTS} BYTES elements", limit=MAX_TEXTS
            )
        if self.inputs:
            for each in promised:
                self._check_fits(each)

    def _check_fits(self, promised: Promised) -> None:
        name, found, shape, _ = promised
        if name not in self.inputs:
            raise InvalidInput(_names_differ({name: None}, self.inputs, only_unknown=True))
        datatype, wanted = self.inputs[name]
        if found is not datatype:
            raise _wrong_datatype(name, datatype, found)
        if not self.has_rows:
            _check_whole(name, tuple(shape), wanted)
            return
        rows = _fitting(name, tuple(shape), wanted)[0]
        if rows > self.max_rows:
            raise too_many_rows(rows, self.max_rows)

    def check_inputs(
        self, arrays: Mapping[str, Array], datatypes: Mapping[str, Datatype]
    ) -> dict[str, Array]:
        """The arrays in the model's shapes, or an InvalidInput that says which is wrong."""
        if not self.inputs:  # a model that declares nothing takes anything
            return dict(arrays)
        if arrays.keys() != self.inputs.keys():
            raise InvalidInput(_names_differ(arrays, self.inputs))
        fitted: dict[str, Array] = {}
        for name, (datatype, shape) in self.inputs.items():
            if datatypes[name] is not datatype:
                raise _wrong_datatype(name, datatype, datatypes[name])
            fitted[name] = self._fit(name, arrays[name], shape)
        if self.has_rows:
            self._check_rows(fitted)
        return fitted

    def _check_rows(self, fitted: Mapping[str, Array]) -> None:
        rows = -1
        for name, array in fitted.items():
            if rows not in (-1, len(array)):
                raise InvalidInput(
                    f"{called(name)} has {len(array)} rows, the input before it has {rows}"
                )
            rows = len(array)
        if not rows:
            raise InvalidInput(f"{called(name)}: there are no rows")
        if rows > self.max_rows:
            raise too_many_rows(rows, self.max_rows)

    def _fit(self, name: str, array: Array, shape: tuple[int, ...]) -> Array:
        if self.has_rows:
            return _fit(name, array, shape)
        _check_whole(name, array.shape, shape)
        return array

    def check_elements(self, counts: Iterable[int]) -> None:
        """Raises InputTooLarge."""
        limit = self.max_elements
        if sum(counts) > limit:
            raise InputTooLarge(f"the tensors have more than {limit} elements", limit=limit)

    def output_datatype(self, name: str, array: Array) -> Datatype:
        """The declared datatype if the array can be sent as that; else the array's own."""
        try:
            found = of_array(array)
        except TypeError as error:
            raise ModelFailed(f"output {name!r}: {error}") from error
        declared = self.outputs.get(name)
        return BF16 if declared is BF16 and found.name == "FP32" else found


ANY_SIGNATURE = TensorSignature((), ())


def _wrong_datatype(name: str, wanted: Datatype, found: Datatype) -> InvalidInput:
    return InvalidInput(f"{called(name)}: the model takes {wanted.name}, not {found.name}")


def _names_differ(
    arrays: Mapping[str, object], wanted: Mapping[str, object], *, only_unknown: bool = False
) -> str:
    missing = [repr(name) for name in wanted if name not in arrays]
    unknown = [repr(name) for name in arrays if name not in wanted]
    parts = [f"input {', '.join(unknown)} is unknown"] if unknown else []
    if missing and not only_unknown:
        parts.append(f"input {', '.join(missing)} is missing")
    return f"{', and '.join(parts)}; the model takes {', '.join(wanted)}"


def _check_whole(name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Check a shape for a model without a batch axis."""
    if len(found) != len(shape) or any(
        want not in (-1, size) for want, size in zip(shape, found, strict=True)
    ):
        wanted = ", ".join("any" if size < 0 else str(size) for size in shape)
        raise InvalidInput(
            f"{called(name)}: shape {list(found)}, the model takes [{wanted}]: it has no axis of "
            "rows"
        )


def _fit(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    found = array.shape
    if found[1:] == shape[1:] and found:
        return array
    return array.reshape(_fitting(name, found, shape))


def _fitting(name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a tensor of shape `found` gets for a model that takes `shape`."""
    if len(found) == len(shape) + 1 and found[-1] == 1:
        # Triton's clients send [rows, 1] to a model of one value a row; ours says [rows].
        found = found[:-1]
    if not found:
        raise InvalidInput(f"{called(name)}: a scalar has no rows; the shape is {list(shape)}")
    if len(found) != len(shape) or any(
        want not in (-1, size) for want, size in zip(shape[1:], found[1:], strict=True)
    ):
        wanted = ", ".join(["rows", *("any" if size < 0 else str(size) for size in shape[1:])])
        raise InvalidInput(f"{called(name)}: shape {list(found)}, the model takes [{wanted}]")
    return found
