"""v2 inference requests and answers: bytes to named arrays and back. It knows no HTTP, no model.

JSON, the binary tensor extension, classification and shared memory; every mistake of the caller
is an InvalidInput that names the tensor. JSON cannot say NaN or infinity: refused on the way in,
`null` on the way out (ask for binary to get them).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from headway.errors import InvalidInput, called
from headway.server.bodies.background import AT_ONCE, Steps
from headway.server.bodies.json_body import in_words
from headway.server.bodies.outline import outline_of
from headway.server.service.dtypes import BF16, BYTES, Datatype
from headway.server.service.json_data import (
    WireInput,
    count_commas,
    is_absent,
    json_data,
    json_pieces,
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
    is_large_json,
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

LARGE_BYTES = 256 * 2**10  # of JSON or texts: decoding takes about a millisecond
_CHECKED_BYTES = 4 * 2**10  # larger bodies are held against the signature before data is read
_DATA_LEVEL = 4  # of its brackets in {"inputs":[{"data":[…]}]}
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


class Parsed(NamedTuple):
    """All of a request but its tensors' data, which has not been looked at."""

    wire: WireRequest
    tail: "_Tail"
    datatypes: dict[str, Datatype]
    is_slow: bool  # would reading the data hold an event loop up?


def decode(
    body: bytes,
    header_length: int | None = None,
    *,
    signature: TensorSignature = ANY_SIGNATURE,
    regions: Regions | None = None,
    steps: Steps = AT_ONCE,
) -> InferRequest:
    """`header_length` is how much of the body is JSON: None for all, 0 for a lone raw tensor,
    whose shape then comes from the signature."""
    if header_length == 0:
        return _decode_raw(body, signature)
    parsed = parse(body, header_length, signature, steps)
    return read(parsed, regions=regions, steps=steps)


def is_large(body: bytes, header_length: int | None) -> bool:
    """Would parsing hold an event loop up? Raw tensors behind a short JSON do not."""
    return len(body) > LARGE_BYTES and (not header_length or header_length > LARGE_BYTES)


def parse(
    body: bytes, header_length: int | None, signature: TensorSignature, steps: Steps = AT_ONCE
) -> Parsed:
    """What the request says of its tensors, held against the signature."""
    if header_length is None:
        wire, tail = _parse(body, steps), _NO_TAIL
    elif not 0 < header_length <= len(body):
        raise InvalidInput(
            f"Inference-Header-Content-Length is {header_length}, the body has {len(body)} bytes"
        )
    else:
        view = memoryview(body)
        wire, tail = _parse(view[:header_length], steps), _Tail(view[header_length:])
    datatypes: dict[str, Datatype] = {}
    size_bytes, is_slow, is_shared = 0, False, False
    for each in wire.inputs:
        name = each.name
        if name in datatypes:
            raise InvalidInput(f"{called(name)} is given twice")
        datatype = datatypes[name] = datatype_named(name, each.datatype)
        if each.parameters and "shared_memory_region" in each.parameters:
            is_shared = True
            what = f"{called(name)}"
            size_bytes += count_of(each.parameters, "shared_memory_byte_size", what) or 0
        is_slow = is_slow or datatype is BYTES or datatype is BF16
    if is_shared or len(body) > min(_CHECKED_BYTES, signature.max_elements):
        promised = [
            Promised(each.name, datatypes[each.name], each.shape, count_commas(each.data))
            for each in wire.inputs
        ]
        signature.check_promised(promised, size_bytes)
        is_slow = size_bytes > LARGE_BYTES or (is_slow and size_bytes + len(body) > LARGE_BYTES)
    else:
        is_slow = False
    return Parsed(wire, tail, datatypes, is_slow)


def read(parsed: Parsed, *, regions: Regions | None = None, steps: Steps = AT_ONCE) -> InferRequest:
    wire, tail, datatypes, _ = parsed
    inputs = {
        each.name: _read_input(each, datatypes[each.name], tail, regions, steps)
        for each in wire.inputs
    }
    tail.finish()
    parameters = wire.parameters or _NO_PARAMETERS
    is_binary = flag_of(parameters, "binary_data_output", "the request", default=False)
    return InferRequest(
        wire.id or "",
        inputs,
        datatypes,
        requested_outputs(
            ((each.name, each.parameters) for each in wire.outputs),
            regions,
            is_binary=is_binary,
        )
        if wire.outputs
        else (),
        parameters,
        is_binary,
        wire.model_name or "",
    )


def encode(
    model_name: str,
    version: str,
    request: InferRequest,
    outputs: Mapping[str, Array],
    *,
    signature: TensorSignature = ANY_SIGNATURE,
    labels: Mapping[str, Sequence[str]] | None = None,
    regions: Regions | None = None,
    steps: Steps = AT_ONCE,
) -> tuple[bytes, str, int | None]:
    """The body, its content type, and how much of it is JSON where that is not all of it."""
    wanted = request.outputs or [RequestedOutput(name, request.is_binary) for name in outputs]
    written: list[WireResult] = []
    buffers: list[bytes] = []
    lists: dict[int, list[bytes]] = {}  # long ones, by the number of their output
    is_binary = False
    for want in wanted:
        array, datatype = take_output(want, outputs, signature, labels)
        output = WireResult(want.name, datatype.name, array.shape)
        if want.shared is not None:
            share(want, want.shared, to_raw(array, datatype, steps), regions)
        elif want.is_binary:
            is_binary = True
            buffers.append(to_raw(array, datatype, steps))
            output.parameters = {"binary_data_size": len(buffers[-1])}
        elif is_large_json(array):
            lists[len(written)] = json_pieces(want.name, array, datatype, steps)
        else:
            output.data = json_data(want.name, array, datatype)
        written.append(output)
    response = WireResponse(model_name, version, written, request.id)
    head = _joined(response, lists) if lists else _ENCODER.encode(response)
    if not is_binary:
        return head, JSON, None
    return b"".join([head, *buffers]), BINARY, len(head)


def _joined(response: WireResponse, lists: Mapping[int, list[bytes]]) -> bytes:
    """What the encoder would write, with the data of these outputs, which is written already."""
    named = {"model_name": response.model_name, "model_version": response.model_version}
    parts = [_ENCODER.encode(named)[:-1], b',"outputs":[']
    for number, output in enumerate(response.outputs):
        encoded = _ENCODER.encode(output)
        if number in lists:  # it is the last field but parameters, which only raw tensors have
            parts += (encoded[:-1], b',"data":', *lists[number], b"}")
        else:
            parts.append(encoded)
        parts.append(b",")
    parts[-1] = b',"id":%b}' % _ENCODER.encode(response.id) if response.id else b"}"
    parts.insert(-1, b"]")
    return b"".join(parts)


def _parse(body: Buffer, steps: Steps) -> WireRequest:
    try:
        if len(body) <= LARGE_BYTES:
            return _REQUEST.decode(body)
        outline, lists = outline_of(body, _DATA_LEVEL, steps)
        wire = _REQUEST.decode(outline)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the request is not as expected: {error}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        is_what = f"not valid JSON: {in_words(error)}" if body else "empty: JSON is expected"
        raise InvalidInput(f"the request is {is_what}") from error
    except RecursionError as error:
        raise InvalidInput("the request's JSON is nested too deeply") from error
    for each in wire.inputs:
        text = lists.get(bytes(each.data))
        if text is not None:
            each.data = Raw(text)
    return wire


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
                f"{called(name)}: binary_data_size is {byte_size}, {left} bytes are left"
            )
        start, self._at = self._at, self._at + byte_size
        return self._view[start : self._at]

    def finish(self) -> None:
        left = len(self._view) - self._at
        if left:
            raise InvalidInput(f"{left} bytes of binary data belong to no input")


_NO_TAIL = _Tail(b"")  # nothing can be taken from it, so it can be shared


def _read_input(
    wire: WireInput, datatype: Datatype, tail: _Tail, regions: Regions | None, steps: Steps
) -> Array:
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
            return from_raw(wire.name, datatype, wire.shape, raw, steps)
    return read_json(wire, datatype, steps)


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
    """One row, and the one dimension that varies takes what is left."""
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
