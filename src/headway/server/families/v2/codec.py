"""v2 inference requests and answers: bytes to named arrays and back. It knows no HTTP, no model.

JSON, the binary tensor extension, classification and shared memory; every mistake of the caller
is an InvalidInput that names the tensor. JSON cannot say NaN or infinity: refused on the way in,
`null` on the way out (ask for binary to get them).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from headway.errors import InvalidInput, called
from headway.server.bodies.json_body import SMALL_BYTES, check_size, check_values, in_words
from headway.server.service.dtypes import BYTES, Datatype
from headway.server.service.json_data import (
    WireInput,
    count_commas,
    is_absent,
    json_data,
    read_json,
)
from headway.server.service.requests import (
    OF_INPUTS,
    InferRequest,
    Parameters,
    Regions,
    RequestedOutput,
    check_known,
    count_of,
    flag_of,
    open_regions,
    requested_outputs,
    share,
    shared_slice,
    take_output,
)
from headway.server.service.tensors import (
    ANY_SIGNATURE,
    Array,
    Buffer,
    Promised,
    TensorSignature,
    datatype_named,
    from_raw,
    objects,
    shaped,
    to_raw,
)

_CHECKED_BYTES = 4 * 2**10  # larger bodies are held against the signature before data is read
JSON = "application/json"
BINARY = "application/octet-stream"


class WireOutput(Struct, forbid_unknown_fields=True):
    name: str
    parameters: Parameters | None = None


class WireRequest(Struct, forbid_unknown_fields=True):
    inputs: list[WireInput]
    id: str | None = None
    outputs: list[WireOutput] | None = None
    parameters: Parameters | None = None
    model_name: str | None = None  # KServe's clients say once more what the route says


class WireResult(Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Any = UNSET
    parameters: dict[str, int] | UnsetType = UNSET


class WireResponse(Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[WireResult]
    id: str = ""


_REQUEST = msgspec.json.Decoder(WireRequest)
_ENCODER = msgspec.json.Encoder()
_NO_PARAMETERS: Parameters = {}


def decode(
    body: bytes,
    header_length: int | None = None,
    *,
    signature: TensorSignature = ANY_SIGNATURE,
    regions: Regions | None = None,
) -> InferRequest:
    """`header_length` is how much of the body is JSON: None for all, 0 for a lone raw tensor,
    whose shape then comes from the signature."""
    if header_length == 0:
        return _decode_raw(body, signature)
    wire, tail = _parse(body, header_length, signature)
    datatypes = _checked(wire, len(body), signature)
    inputs = {
        each.name: _read_input(each, datatypes[each.name], tail, regions) for each in wire.inputs
    }
    tail.finish()
    parameters = wire.parameters or _NO_PARAMETERS
    is_binary = flag_of(parameters, "binary_data_output", "the request", default=False)
    outputs: tuple[RequestedOutput, ...] = ()
    if wire.outputs:
        named = ((each.name, each.parameters) for each in wire.outputs)
        outputs = requested_outputs(named, regions, is_binary=is_binary)
    return InferRequest(
        *(wire.id or "", inputs, datatypes, outputs),
        *(parameters, is_binary, wire.model_name or ""),
    )


def is_large(body: bytes, header_length: int | None, signature: TensorSignature) -> bool:
    """Whether decoding would block the event loop. Raw numbers after a short JSON do not."""
    if len(body) <= SMALL_BYTES:
        return False
    return not header_length or header_length > SMALL_BYTES or signature.converts_raw


def _parse(
    body: bytes, header_length: int | None, signature: TensorSignature
) -> tuple[WireRequest, "_Tail"]:
    """The request, with its tensors' data not decoded yet."""
    if header_length is None:
        return _decode_json(body, signature), _NO_TAIL
    if not 0 < header_length <= len(body):
        raise InvalidInput(
            f"Inference-Header-Content-Length is {header_length}, the body has {len(body)} bytes"
        )
    view = memoryview(body)
    return _decode_json(view[:header_length], signature), _Tail(view[header_length:])


def _checked(wire: WireRequest, body_bytes: int, signature: TensorSignature) -> dict[str, Datatype]:
    """The datatype of each tensor. Raises InvalidInput or InputTooLarge where the request does not
    fit the signature, before any data is decoded."""
    datatypes: dict[str, Datatype] = {}
    shared_bytes, is_shared = 0, False
    for each in wire.inputs:
        name = each.name
        if name in datatypes:
            raise InvalidInput(f"{called(name)} is given twice")
        datatypes[name] = datatype_named(name, each.datatype)
        if each.parameters and "shared_memory_region" in each.parameters:
            is_shared = True
            shared_bytes += count_of(each.parameters, "shared_memory_byte_size", called(name)) or 0
    if is_shared or body_bytes > min(_CHECKED_BYTES, signature.max_elements):
        promised = [
            Promised(each.name, datatypes[each.name], each.shape, count_commas(each.data))
            for each in wire.inputs
        ]
        signature.check_promised(promised, shared_bytes)
    return datatypes


def encode(
    model_name: str,
    version: str,
    request: InferRequest,
    outputs: Mapping[str, Array],
    *,
    signature: TensorSignature = ANY_SIGNATURE,
    labels: Mapping[str, Sequence[str]] | None = None,
    regions: Regions | None = None,
) -> tuple[bytes, str, int | None]:
    """The body, its content type, and how much of it is JSON where that is not all of it."""
    wanted = request.outputs or [RequestedOutput(name, request.is_binary) for name in outputs]
    written: list[WireResult] = []
    buffers: list[bytes] = []
    is_binary = False
    for want in wanted:
        array, datatype = take_output(want, outputs, signature, labels)
        output = WireResult(want.name, datatype.name, array.shape)
        if want.shared is not None:
            share(want, want.shared, to_raw(array, datatype), regions)
        elif want.is_binary:
            is_binary = True
            buffers.append(to_raw(array, datatype))
            output.parameters = {"binary_data_size": len(buffers[-1])}
        else:
            output.data = json_data(want.name, array, datatype)
        written.append(output)
    response = WireResponse(model_name, version, written, request.id)
    head = _ENCODER.encode(response)
    if not is_binary:
        return head, JSON, None
    return b"".join([head, *buffers]), BINARY, len(head)


def _decode_json(body: Buffer, signature: TensorSignature) -> WireRequest:
    if len(body) > SMALL_BYTES:
        check_size(len(body), signature.max_json_bytes)
        check_values(body)
    try:
        return _REQUEST.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the request is not as expected: {error}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        is_what = f"not valid JSON: {in_words(error)}" if body else "empty: JSON is expected"
        raise InvalidInput(f"the request is {is_what}") from error
    except RecursionError as error:
        raise InvalidInput("the request's JSON is nested too deeply") from error


class _Tail:
    """The raw tensors after the JSON, taken from front to back."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: Buffer) -> None:
        self._view = view
        self._at = 0

    def take(self, name: str, byte_size: int) -> Buffer:
        left = len(self._view) - self._at
        if byte_size > left:
            raise InvalidInput(
                f"{called(name)}: binary_data_size is {byte_size}, {left} bytes are left"
            )
        start, self._at = self._at, self._at + byte_size
        return self._view[start : self._at]

    def finish(self) -> None:
        left = len(self._view) - self._at
        if left:
            raise InvalidInput(f"{left} bytes of binary data belong to no input")


_NO_TAIL = _Tail(b"")  # nothing can be taken from it, so it can be shared


def _read_input(wire: WireInput, datatype: Datatype, tail: _Tail, regions: Regions | None) -> Array:
    parameters = wire.parameters
    if parameters:
        what = f"{called(wire.name)}"
        check_known(parameters, OF_INPUTS, what)
        size = count_of(parameters, "binary_data_size", what)
        shared = shared_slice(parameters, what)
        if size is not None or shared is not None:
            if not is_absent(wire.data) or (size is not None and shared is not None):
                raise InvalidInput(
                    f"{what}: give one of data, binary_data_size and shared_memory_region"
                )
            if shared is not None:
                raw: Buffer = open_regions(regions, what).read(shared)
            else:
                raw = tail.take(wire.name, size or 0)
            return from_raw(wire.name, datatype, wire.shape, raw)
    return read_json(wire, datatype)


def _decode_raw(body: bytes, signature: TensorSignature) -> InferRequest:
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
    """The shape of one row of `size` elements: the one dimension that varies is computed."""
    shape = [1, *declared[1:]]
    if shape.count(-1) > 1:
        raise InvalidInput(
            f"{called(name)}: shape {shape} has several free dimensions: the request must name it"
        )
    if -1 in shape:
        known = datatype.wire.itemsize
        for each in shape:
            known *= max(each, 1)
        shape[shape.index(-1)] = size // known
    return shape
