"""v2 inference requests and answers: bytes to named arrays and back. It knows no HTTP, no model.

JSON, the binary tensor extension, classification and shared memory; every mistake of the caller
is an InvalidInput that names the tensor. JSON cannot say NaN or infinity: refused on the way in,
`null` on the way out (ask for binary to get them).
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec
import numpy
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headway.errors import InvalidInput
from headway.server.api.v2.dtypes import BYTES, Datatype
from headway.server.api.v2.tensors import (
    ANY_SIGNATURE,
    Array,
    Buffer,
    Signature,
    count_elements,
    datatype_named,
    from_raw,
    objects,
    shaped,
    texts,
    to_raw,
)

Scalar: TypeAlias = str | int | float | bool | None
Parameters: TypeAlias = dict[str, Scalar]
LARGE_BYTES = 256 * 2**10  # of JSON or texts: decoding takes about a millisecond
_MANY = 2**14  # numbers: beyond, they are decoded in pieces
_PIECE_BYTES = 64 * 2**10
JSON = "application/json"
BINARY = "application/octet-stream"


class SharedSlice(Struct, frozen=True):
    """Where in a registered region a tensor lies."""

    region: str
    offset: int
    byte_size: int


class Regions(Protocol):
    """Registered shared memory, as far as the codec needs it. Both raise InvalidInput."""

    def read(self, where: SharedSlice) -> bytes: ...

    def write(self, where: SharedSlice, data: bytes) -> None: ...


class RequestedOutput(Struct, frozen=True):
    name: str
    is_binary: bool = False
    classes: int = 0  # 0: the tensor itself
    shared: SharedSlice | None = None


class InferRequest(Struct, frozen=True):
    """One decoded request."""

    id: str
    inputs: dict[str, Array]
    datatypes: dict[str, Datatype]  # as sent, by input
    outputs: tuple[RequestedOutput, ...]  # empty: all of them, as `is_binary` says
    parameters: Parameters
    is_binary: bool = False
    model_name: str = ""  # where the request says it once more


class _WireInput(Struct, forbid_unknown_fields=True):
    name: str
    shape: list[int]
    datatype: str
    data: Raw = Raw(b"")
    parameters: Parameters | None = None


class _WireOutput(Struct, forbid_unknown_fields=True):
    name: str
    parameters: Parameters | None = None


class _WireRequest(Struct, forbid_unknown_fields=True):
    inputs: list[_WireInput]
    id: str | None = None
    outputs: list[_WireOutput] | None = None
    parameters: Parameters | None = None
    model_name: str | None = None  # KServe's clients say once more what the route says


class _Output(Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Any = UNSET
    parameters: dict[str, int] | UnsetType = UNSET


class _Response(Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[_Output]
    id: str = ""


SHARED = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
OF_INPUTS = ("binary_data_size", *SHARED)
_OF_OUTPUTS = ("binary_data", "classification", *SHARED)
_REQUEST = msgspec.json.Decoder(_WireRequest)
_ENCODER = msgspec.json.Encoder()
_NO_PARAMETERS: Parameters = {}
_OPENING = re.compile(rb"[\s\[]*")


def decode(
    body: bytes,
    header_length: int | None = None,
    *,
    signature: Signature = ANY_SIGNATURE,
    regions: Regions | None = None,
) -> InferRequest:
    """`header_length` is how much of the body is JSON: None for all, 0 for a lone raw tensor,
    whose shape then comes from the signature."""
    if header_length is None:
        wire, tail = _parse(body), _NO_TAIL
    elif header_length == 0:
        return _decode_raw(body, signature)
    elif not 0 < header_length <= len(body):
        raise InvalidInput(
            f"Inference-Header-Content-Length is {header_length}, the body has {len(body)} bytes"
        )
    else:
        view = memoryview(body)
        wire, tail = _parse(view[:header_length]), _Tail(view[header_length:])
    if len(body) > signature.max_elements:  # an element takes a byte at least
        signature.check_elements(map(_count_promised, wire.inputs))
    inputs: dict[str, Array] = {}
    datatypes: dict[str, Datatype] = {}
    for each in wire.inputs:
        name = each.name
        if name in inputs:
            raise InvalidInput(f"input {name!r} is given twice")
        datatype = datatypes[name] = datatype_named(name, each.datatype)
        inputs[name] = _read_input(each, datatype, tail, regions)
    tail.finish()
    parameters = wire.parameters or _NO_PARAMETERS
    is_binary = _flag(parameters, "binary_data_output", "the request", default=False)
    return InferRequest(
        wire.id or "",
        inputs,
        datatypes,
        requested_outputs(
            ((each.name, each.parameters) for each in wire.outputs), is_binary=is_binary
        )
        if wire.outputs
        else (),
        parameters,
        is_binary,
        wire.model_name or "",
    )


def is_slow(body: bytes, header_length: int | None, signature: Signature) -> bool:
    """Would decoding hold an event loop up? Raw numbers are only looked at, however many."""
    return len(body) > LARGE_BYTES and (
        header_length is None or header_length > LARGE_BYTES or signature.takes_bytes
    )


def check_outputs(request: InferRequest, signature: Signature) -> None:
    """Refuse before the model runs what could not be answered after."""
    known = signature.outputs
    if not known:  # a model that declares nothing: seen when it has run
        return
    for want in request.outputs:
        datatype = known.get(want.name)
        if datatype is None:
            raise _unknown_output(want.name, known)
        if not (datatype.is_json or want.is_binary or want.classes or want.shared):
            raise _not_json(want.name, datatype)
    if not request.outputs and not request.is_binary:
        for name, datatype in known.items():
            if not datatype.is_json:
                raise _not_json(name, datatype)


def encode(
    model_name: str,
    version: str,
    request: InferRequest,
    outputs: Mapping[str, Array],
    *,
    signature: Signature = ANY_SIGNATURE,
    labels: Mapping[str, Sequence[str]] | None = None,
    regions: Regions | None = None,
) -> tuple[bytes, str, int | None]:
    """The body, its content type, and how much of it is JSON where that is not all of it."""
    wanted = request.outputs or [RequestedOutput(name, request.is_binary) for name in outputs]
    written: list[_Output] = []
    buffers: list[bytes] = []
    is_binary = False
    for want in wanted:
        array, datatype = take_output(want, outputs, signature, labels)
        output = _Output(want.name, datatype.name, array.shape)
        if want.shared is not None:
            share(want, want.shared, to_raw(array, datatype), regions)
        elif want.is_binary:
            is_binary = True
            buffers.append(to_raw(array, datatype))
            output.parameters = {"binary_data_size": len(buffers[-1])}
        else:
            output.data = json_data(want.name, array, datatype)
        written.append(output)
    head = _ENCODER.encode(_Response(model_name, version, written, request.id))
    if not is_binary:
        return head, JSON, None
    return b"".join([head, *buffers]), BINARY, len(head)


def take_output(
    want: RequestedOutput,
    outputs: Mapping[str, Array],
    signature: Signature,
    labels: Mapping[str, Sequence[str]] | None,
) -> tuple[Array, Datatype]:
    """What is to be sent for one output, and as what."""
    array = outputs.get(want.name)
    if array is None:
        raise _unknown_output(want.name, outputs)
    datatype = signature.output_datatype(want.name, array)
    if want.classes:
        return classify(want, array, datatype, (labels or {}).get(want.name, ())), BYTES
    if array.ndim == 1:  # one value a row: as the metadata says
        array = array.reshape(-1, 1)
    return array, datatype


def _parse(body: Buffer) -> _WireRequest:
    try:
        return _REQUEST.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the request is not as expected: {error}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        is_what = f"not valid JSON: {error}" if body else "empty: JSON is expected"
        raise InvalidInput(f"the request is {is_what}") from error
    except RecursionError as error:
        raise InvalidInput("the request's JSON is nested too deeply") from error


class _Tail:
    """The raw tensors behind the JSON, taken from front to back."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: Buffer) -> None:
        self._view = view
        self._at = 0

    def take(self, name: str, byte_size: int) -> Buffer:
        left = len(self._view) - self._at
        if byte_size > left:
            raise InvalidInput(
                f"input {name!r}: binary_data_size is {byte_size}, {left} bytes are left"
            )
        start, self._at = self._at, self._at + byte_size
        return self._view[start : self._at]

    def finish(self) -> None:
        left = len(self._view) - self._at
        if left:
            raise InvalidInput(f"{left} bytes of binary data belong to no input")


_NO_TAIL = _Tail(b"")  # nothing can be taken from it, so it can be shared


def _read_input(
    wire: _WireInput, datatype: Datatype, tail: _Tail, regions: Regions | None
) -> Array:
    parameters = wire.parameters
    if parameters:
        what = f"input {wire.name!r}"
        check_known(parameters, OF_INPUTS, what)
        size = _whole(parameters, "binary_data_size", what)
        shared = shared_slice(parameters, what)
        if size is not None or shared is not None:
            if not _is_absent(wire.data) or (size is not None and shared is not None):
                raise InvalidInput(
                    f"{what}: give one of data, binary_data_size and shared_memory_region"
                )
            if shared is not None:
                raw: Buffer = open_regions(regions, what).read(shared)
            else:
                raw = tail.take(wire.name, size or 0)
            return from_raw(wire.name, datatype, wire.shape, raw)
    return _read_json(wire, datatype)


def _count_promised(wire: _WireInput) -> int:
    """As the shape says, or as the JSON has commas: before any of it becomes an object."""
    return max(count_elements(wire.name, wire.shape), bytes(wire.data).count(b","))


def _is_absent(data: Raw) -> bool:
    view = memoryview(data)
    return len(view) == 0 or view[0] == 0x6E  # the n of null


def _read_json(wire: _WireInput, datatype: Datatype) -> Array:
    name, shape = wire.name, wire.shape
    if not datatype.is_json:
        raise InvalidInput(
            f"input {name!r}: {datatype.name} cannot be sent as JSON, only as binary"
        )
    count = count_elements(name, shape)
    opening = _OPENING.match(wire.data)
    depth = opening.group().count(b"[") if opening else 0
    if depth == 0 and _is_absent(wire.data):
        raise InvalidInput(f"input {name!r}: there is no data")
    if count == 0:
        return _read_empty(wire, datatype)
    if depth not in (1, len(shape)):
        raise InvalidInput(
            f"input {name!r}: data of {depth} levels for shape {shape}; "
            f"it is either flat or nested as the shape says"
        )
    is_long = count > _MANY and depth == 1 and datatype is not BYTES
    values = (_pieces if is_long else _elements)(wire, datatype, depth)
    try:
        array = numpy.array(values, datatype.memory)
    except (ValueError, OverflowError) as error:  # ragged; beyond 64 bits
        raise InvalidInput(f"input {name!r}: the data is not of shape {shape}: {error}") from error
    if array.size != count or (depth > 1 and array.shape != tuple(shape)):
        raise InvalidInput(
            f"input {name!r}: shape {shape} takes {count} elements, "
            f"the data is of shape {list(array.shape)}"
        )
    if datatype is BYTES:
        array = _encoded(name, array)
    return array if array.ndim == len(shape) else shaped(name, array, shape)


def _pieces(wire: _WireInput, datatype: Datatype, depth: int) -> Array:
    """A long flat list of numbers, cut at commas: while one piece is decoded no other thread runs,
    and the event loop is one of them. (That it is valid JSON has been seen before.)"""
    text = bytes(wire.data).strip()[1:-1]
    arrays, start = [numpy.empty(0, datatype.memory)], 0
    while start < len(text):
        stop = text.find(b",", start + _PIECE_BYTES)
        stop = len(text) if stop < 0 else stop
        piece = _WireInput(wire.name, wire.shape, wire.datatype, Raw(b"[%b]" % text[start:stop]))
        arrays.append(numpy.array(_elements(piece, datatype, depth), datatype.memory))
        start = stop + 1
    return numpy.concatenate(arrays)


def _elements(wire: _WireInput, datatype: Datatype, depth: int) -> Any:
    try:
        return _decoder(datatype.name, depth).decode(wire.data)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"input {wire.name!r}: {datatype.name} data: {error}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidInput(f"input {wire.name!r}: the data is not valid JSON: {error}") from error


def _read_empty(wire: _WireInput, datatype: Datatype) -> Array:
    """No elements: `[]`, or lists of nothing but empty lists."""
    if re.fullmatch(rb"[\s\[\],]*", wire.data) is None:
        raise InvalidInput(f"input {wire.name!r}: shape {wire.shape} takes no elements")
    return shaped(wire.name, numpy.empty(0, datatype.memory), wire.shape)


def _encoded(name: str, array: Array) -> Array:
    try:
        return objects([text.encode() for text in array.ravel().tolist()]).reshape(array.shape)
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InvalidInput(f"input {name!r}: a text is not valid Unicode: {error}") from error


_MAX_FP32 = float(numpy.finfo(numpy.float32).max)


@functools.cache
def _decoder(datatype: str, depth: int) -> "msgspec.json.Decoder[Any]":
    """Lists `depth` deep of what the datatype holds."""
    nested = element_type(datatype)
    for _ in range(depth):
        nested = list[nested]  # type: ignore[valid-type]
    return msgspec.json.Decoder(nested)


def element_type(datatype: str) -> Any:
    """Of one element in JSON; msgspec checks types and ranges itself."""
    match datatype:
        case "BOOL":
            return bool
        case "BYTES":
            return str
        case "FP64":
            return float
        case "FP32":
            return Annotated[float, Meta(ge=-_MAX_FP32, le=_MAX_FP32)]
        case "UINT64":  # its upper bound is beyond what msgspec checks; numpy does
            return Annotated[int, Meta(ge=0)]
        case _:
            range_ = numpy.iinfo(datatype.lower())
            return Annotated[int, Meta(ge=int(range_.min), le=int(range_.max))]


def _decode_raw(body: bytes, signature: Signature) -> InferRequest:
    """Triton's raw request: the body is the only input, all answers are binary."""
    if len(signature.inputs) != 1:
        raise InvalidInput(
            "Inference-Header-Content-Length is 0: a raw request needs a model with one input, "
            f"this one has {len(signature.inputs)}"
        )
    ((name, (datatype, declared)),) = signature.inputs.items()
    signature.check_elements([len(body) // datatype.wire.itemsize])
    if datatype is BYTES:
        array = shaped(name, objects([body]), [1] * len(declared))
    else:
        array = from_raw(name, datatype, _raw_shape(name, datatype, declared, len(body)), body)
    return InferRequest("", {name: array}, {name: datatype}, (), _NO_PARAMETERS, is_binary=True)


def _raw_shape(name: str, datatype: Datatype, declared: Sequence[int], size: int) -> list[int]:
    """One row, and the one dimension that varies takes what is left."""
    shape = [1, *declared[1:]]
    if shape.count(-1) > 1:
        raise InvalidInput(f"input {name!r}: {shape} says too little for a request without a shape")
    if -1 in shape:
        known = datatype.wire.itemsize
        for each in shape:
            known *= max(each, 1)
        shape[shape.index(-1)] = size // known
    return shape


def requested_outputs(
    named: Iterable[tuple[str, Parameters | None]], *, is_binary: bool
) -> tuple[RequestedOutput, ...]:
    found: dict[str, RequestedOutput] = {}
    for name, parameters in named:
        if name in found:
            raise InvalidInput(f"output {name!r} is asked for twice")
        if not parameters:
            found[name] = RequestedOutput(name, is_binary)
            continue
        what = f"output {name!r}"
        check_known(parameters, _OF_OUTPUTS, what)
        found[name] = RequestedOutput(
            name,
            _flag(parameters, "binary_data", what, default=is_binary),
            _whole(parameters, "classification", what) or 0,
            shared_slice(parameters, what),
        )
    return tuple(found.values())


def check_known(parameters: Parameters, known: tuple[str, ...], what: str) -> None:
    """One that nobody reads is refused; one without a value says nothing."""
    for name, value in parameters.items():
        if name not in known and value is not None:
            raise InvalidInput(
                f"{what}: parameter {name!r} is unknown; there are {', '.join(known)}"
            )


def shared_slice(parameters: Parameters, what: str) -> SharedSlice | None:
    region = parameters.get("shared_memory_region")
    if region is None:
        for name in SHARED[1:]:
            if parameters.get(name) is not None:
                raise InvalidInput(f"{what}: {name} needs a shared_memory_region")
        return None
    size = _whole(parameters, "shared_memory_byte_size", what)
    if not isinstance(region, str) or size is None:
        raise InvalidInput(f"{what}: shared_memory_region and shared_memory_byte_size go together")
    return SharedSlice(region, _whole(parameters, "shared_memory_offset", what) or 0, size)


def _flag(parameters: Parameters, key: str, what: str, *, default: bool) -> bool:
    value = parameters.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidInput(f"{what}: parameter {key!r} is true or false, not {value!r}")
    return value


def _whole(parameters: Parameters, key: str, what: str) -> int | None:
    value = parameters.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"{what}: parameter {key!r} is a whole number from 0, not {value!r}")
    return value


def open_regions(regions: Regions | None, what: str) -> Regions:
    if regions is None:
        raise InvalidInput(f"{what}: shared memory is off")
    return regions


def share(want: RequestedOutput, where: SharedSlice, raw: bytes, regions: Regions | None) -> None:
    """The answer says nothing of it: Triton's C++ client takes any parameters for binary data."""
    what = f"output {want.name!r}"
    if len(raw) > where.byte_size:
        raise InvalidInput(f"{what}: {len(raw)} bytes do not fit the {where.byte_size} given")
    open_regions(regions, what).write(where, raw)


def json_data(name: str, array: Array, datatype: Datatype) -> Any:
    """Flat, as Triton does. msgspec writes NaN and infinity as null."""
    if datatype is BYTES:
        try:
            return [text.decode() for text in texts(array)]
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"output {name!r} is not UTF-8, so JSON cannot carry it; ask for binary_data"
            ) from error
    if not datatype.is_json:
        raise _not_json(name, datatype)
    return array.ravel().tolist()


def _unknown_output(name: str, known: Iterable[str]) -> InvalidInput:
    return InvalidInput(f"output {name!r} is unknown; the model gives {', '.join(known)}")


def _not_json(name: str, datatype: Datatype) -> InvalidInput:
    return InvalidInput(
        f"output {name!r} is {datatype.name}, which JSON cannot carry; ask for binary_data"
    )


def classify(
    want: RequestedOutput, array: Array, datatype: Datatype, labels: Sequence[str]
) -> Array:
    """The best classes of each row as BYTES: "score:index" or "score:index:label"."""
    if datatype.kind not in ("int", "float") or not array.ndim:
        raise InvalidInput(f"output {want.name!r} is {datatype.name}: it cannot be classified")
    rows = array.reshape(len(array), -1) if array.ndim > 1 else array.reshape(1, -1)
    best = numpy.argsort(-rows.astype(numpy.float64), axis=1, kind="stable")[:, : want.classes]
    found = [
        f"{score:f}:{index}{f':{labels[index]}' if index < len(labels) else ''}".encode()
        for row, order in zip(rows, best, strict=True)
        for score, index in zip(row[order].tolist(), order.tolist(), strict=True)
    ]
    return objects(found).reshape(best.shape if array.ndim > 1 else -1)
