"""Converts inference messages to named arrays and back, as `families/v2/codec.py` does for JSON.
The codec does all further checks, so that both refuse the same things in the same words."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from headway.errors import InputTooLarge, InvalidInput, called
from headway.server.grpc import inference_pb2 as pb
from headway.server.service.dtypes import BYTES, Datatype
from headway.server.service.options import check_count
from headway.server.service.requests import (
    OF_INPUTS,
    InferRequest,
    Parameters,
    Regions,
    RequestedOutput,
    SharedSlice,
    check_known,
    open_regions,
    requested_outputs,
    share,
    shared_slice,
    take_output,
)
from headway.server.service.tensors import (
    Array,
    Promised,
    TensorSignature,
    count_elements,
    datatype_named,
    from_raw,
    objects,
    shaped,
    to_raw,
    utf8,
)
from headway.wire.varint import varint

_NO_PARAMETERS: Parameters = {}
_LISTS = {  # the list that each datatype's elements are in
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}

IS_END = "triton_final_response"
MOST_TENSORS = 1024  # of a request; each is looked at in the event loop
MOST_TYPED = 2**20  # elements of a tensor in typed contents: they are copied one by one
_MANY = 2**13  # elements that are copied one by one: about a millisecond
_MOST_SHAPES = 64  # of outputs, remembered
# Fields as protobuf writes them: the number, and that a length follows.
_ID = b"%c" % (pb.ModelInferResponse.ID_FIELD_NUMBER << 3 | 2)
_RAW = b"%c" % (pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | 2)
_ANSWER = b"%c" % (pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | 2)


def check_promised(request: pb.ModelInferRequest, signature: TensorSignature) -> None:
    """Check the request against the model's inputs before any data is read. Raises as the signature
    does."""
    if max(len(request.inputs), len(request.outputs)) > MOST_TENSORS:
        raise InputTooLarge(
            f"the request has more than {MOST_TENSORS} inputs or outputs", limit=MOST_TENSORS
        )
    shared = (_where(each) for each in request.inputs)
    signature.check_promised(
        [
            Promised(each.name, datatype_named(each.name, each.datatype), each.shape)
            for each in request.inputs
        ],
        sum(where.byte_size for where in shared if where is not None),
    )


def is_large(request: pb.ModelInferRequest) -> bool:
    """Whether decoding would hold up the event loop. Raw numbers are only looked at."""
    is_raw = bool(request.raw_input_contents)
    for tensor in request.inputs:
        is_copied = not is_raw or tensor.datatype in ("BYTES", "BF16")
        if is_copied and math.prod(tensor.shape) > _MANY:
            return True
    return False


def decode(request: pb.ModelInferRequest, *, regions: Regions | None = None) -> InferRequest:
    """Decode a request. Its tensors are either all raw or all typed, except those in shared
    memory."""
    raws = request.raw_input_contents
    is_raw = bool(raws)
    inputs: dict[str, Array] = {}
    datatypes: dict[str, Datatype] = {}
    taken = 0
    for tensor in request.inputs:
        name = tensor.name
        if name in inputs:
            raise InvalidInput(f"{called(name)} is given twice")
        datatype = datatypes[name] = datatype_named(name, tensor.datatype)
        shape = tuple(tensor.shape)
        where = _where(tensor)
        if where is not None:
            raw = open_regions(regions, f"{called(name)}").read(where)
            inputs[name] = from_raw(name, datatype, shape, raw)
        elif not is_raw:
            inputs[name] = _from_contents(name, datatype, shape, tensor.contents)
        elif tensor.HasField("contents"):
            raise InvalidInput(
                f"contents field must not be specified when using raw_input_contents for {name!r} "
                f"for model {request.model_name!r}: send all raw or none"
            )
        elif taken == len(raws):
            raise InvalidInput(f"{called(name)} has no data: raw_input_contents has {taken}")
        else:
            inputs[name] = from_raw(name, datatype, shape, raws[taken])
            taken += 1
    if taken != len(raws):
        raise InvalidInput(f"raw_input_contents has {len(raws)} entries; the inputs take {taken}")
    return InferRequest(
        request.id,
        inputs,
        datatypes,
        _wanted(request, regions) if request.outputs else (),
        parameters_of(request.parameters) if request.parameters else _NO_PARAMETERS,
        is_binary=True,
    )


def encode(
    model_name: str,
    version: str,
    request: InferRequest,
    outputs: Mapping[str, Array],
    *,
    signature: TensorSignature,
    labels: Mapping[str, Sequence[str]] | None = None,
    regions: Regions | None = None,
) -> bytes:
    """Encode all outputs raw, since clients read them by position; one in shared memory gets empty
    bytes."""
    raws: list[bytes] = []
    response = pb.ModelInferResponse(model_name=model_name, model_version=version, id=request.id)
    for want in request.outputs or [RequestedOutput(name) for name in outputs]:
        array, datatype = take_output(want, outputs, signature, labels)
        raw = to_raw(array, datatype)
        if want.shared is not None:
            share(want, want.shared, raw, regions)
            raw = b""
        response.outputs.add(name=want.name, datatype=datatype.name, shape=array.shape)
        raws += (_RAW, varint(len(raw)), raw)
    return b"".join((response.SerializeToString(), *raws))


class AnswerEncoder:
    """The same for one model, where all outputs are asked for: all but their data is made once for
    each shape."""

    def __init__(self, name: str, version: str, signature: TensorSignature) -> None:
        self._signature = signature
        named = pb.ModelInferResponse(model_name=name, model_version=version)
        self._start = named.SerializeToString()
        self._outputs: dict[tuple[str, str, tuple[int, ...]], tuple[bytes, Datatype]] = {}

    def encode(self, request_id: str, outputs: Mapping[str, Array]) -> bytes:
        parts = [self._start]
        raws: list[bytes] = []
        if request_id:
            data = request_id.encode()
            parts += (_ID, varint(len(data)), data)
        for name, array in outputs.items():
            output, datatype = self._output_of(name, array)
            parts.append(output)
            raw = to_raw(array, datatype)
            raws += (_RAW, varint(len(raw)), raw)
        return b"".join((*parts, *raws))

    def _output_of(self, name: str, array: Array) -> tuple[bytes, Datatype]:
        key = (name, array.dtype.str, array.shape)
        found = self._outputs.get(key)
        if found is None:
            datatype = self._signature.output_datatype(name, array)
            shape = array.shape if array.ndim != 1 else (*array.shape, 1)
            response = pb.ModelInferResponse()
            response.outputs.add(name=name, datatype=datatype.name, shape=shape)
            found = response.SerializeToString(), datatype
            if len(self._outputs) < _MOST_SHAPES:
                self._outputs[key] = found
        return found


def text_encoder(empty: bytes) -> Callable[[str], bytes] | None:
    """Encodes answers that differ in one text only, as a stream's do. `empty`: such an answer
    without its text. None: the output is not a text."""
    end = _raw_text("")
    head = empty.removesuffix(end)
    return (lambda text: head + _raw_text(text)) if empty.endswith(end) else None


def _raw_text(text: str) -> bytes:
    """The raw contents of one BYTES element."""
    data = utf8(text)
    raw = len(data).to_bytes(4, "little") + data
    return b"%b%b%b" % (_RAW, varint(len(raw)), raw)


def stream_message(answer: bytes, *, is_final: bool) -> bytes:
    """A `ModelStreamInferResponse` with this answer in it."""
    end = _ENDS[is_final]
    return b"".join((_ANSWER, varint(len(answer) + len(end)), answer, end))


def parameters_message(**parameters: bool | str) -> bytes:
    """Written after an answer's bytes, these parameters are the answer's."""
    response = pb.ModelInferResponse()
    for name, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "string_param"
        setattr(response.parameters[name], kind, value)
    found: bytes = response.SerializeToString()
    return found


_ENDS = {is_final: parameters_message(**{IS_END: is_final}) for is_final in (False, True)}


def parameters_of(parameters: Mapping[str, pb.InferParameter]) -> Parameters:
    """The value of each parameter; one without a value is ignored."""
    check_count(len(parameters))
    found: Parameters = {}
    for key, value in parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None:
            found[key] = getattr(value, kind)
    return found


def _wanted(request: pb.ModelInferRequest, regions: Regions | None) -> tuple[RequestedOutput, ...]:
    return requested_outputs(
        ((each.name, parameters_of(each.parameters)) for each in request.outputs),
        regions,
        is_binary=True,
    )


def _where(tensor: pb.ModelInferRequest.InferInputTensor) -> SharedSlice | None:
    if not tensor.parameters:
        return None
    what, parameters = f"{called(tensor.name)}", parameters_of(tensor.parameters)
    check_known(parameters, OF_INPUTS, what)  # KServe's clients say the size of raw data, too
    return shared_slice(parameters, what)


def _from_contents(
    name: str, datatype: Datatype, shape: Sequence[int], contents: pb.InferTensorContents
) -> Array:
    count = count_elements(name, shape)
    field = _LISTS.get(datatype.name)
    if field is None:
        raise InvalidInput(f"{called(name)}: {datatype.name} travels in raw_input_contents only")
    for filled, _ in contents.ListFields():
        if filled.name != field:
            raise InvalidInput(
                f"{called(name)}: {datatype.name} is sent as {field}, not {filled.name}"
            )
    elements = getattr(contents, field)
    if count > MOST_TYPED:
        raise InputTooLarge(
            f"{called(name)}: {count} elements; typed contents have at most {MOST_TYPED}, "
            "raw_input_contents may have more",
            limit=MOST_TYPED,
        )
    if len(elements) != count:
        raise InvalidInput(
            f"{called(name)}: shape {list(shape)} takes {count} elements, {len(elements)} came"
        )
    is_bytes = datatype is BYTES
    flat = objects(list(elements)) if is_bytes else _numbers(name, datatype, elements)
    return shaped(name, flat, shape)


def _numbers(name: str, datatype: Datatype, elements: Any) -> Array:
    """The narrow types share a list with a wider one: what does not fit is refused."""
    memory = datatype.memory
    if datatype.kind != "int" or memory.itemsize >= 4:
        return numpy.array(elements, memory)
    wide = numpy.array(elements, numpy.int64)
    limits = numpy.iinfo(memory)
    if wide.size and (wide.min() < limits.min or wide.max() > limits.max):
        raise InvalidInput(
            f"{called(name)}: {datatype.name} goes from {limits.min} to {limits.max}"
        )
    return wide.astype(memory)
