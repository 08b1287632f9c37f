"""The commonest v2 request, compiled for one model: JSON, one row of each input, no options.

msgspec decodes and checks it in one go against types made from the signature. Every other request
(binary, more rows, parameters, chosen outputs, a mistake) is None here, and goes the general way,
which also says what is wrong. Both ways give the same arrays and the same bytes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy
from msgspec import Meta

from headway.server.bodies.json_body import SMALL_BYTES
from headway.server.service.direct_path import DirectRequest
from headway.server.service.dtypes import BYTES, Datatype
from headway.server.service.json_data import element_type, json_data
from headway.server.service.requests import is_large_json
from headway.server.service.tensors import Array, TensorSignature, objects

_MOST_ELEMENTS = 4096  # in a row; what is larger may take its time
_MOST_STARTS = 64  # output shapes remembered
_ENCODER = msgspec.json.Encoder()

_Input: TypeAlias = tuple[str, Datatype, tuple[int, ...]]  # its name, and its shape with one row


class JsonCodec:
    """Decodes and encodes one row, for a model with fixed shapes."""

    def __init__(self, name: str, version: str, signature: TensorSignature) -> None:
        self._signature = signature
        self._inputs = tuple(
            (name, datatype, (1, *shape[1:]))
            for name, (datatype, shape) in signature.inputs.items()
        )
        self._decoder = msgspec.json.Decoder(_request_type(self._inputs))
        named = _ENCODER.encode({"model_name": name, "model_version": version})
        self._start = named[:-1] + b',"outputs":['
        self._starts: dict[tuple[str, str, tuple[int, ...]], tuple[bytes, Datatype]] = {}

    def decode(self, body: bytes) -> DirectRequest | None:
        """The request's id and arrays; None: it must go the general way."""
        if len(body) > SMALL_BYTES:  # it would hold up the event loop
            return None
        try:
            request = self._decoder.decode(body)
            sent = request.inputs
            arrays = {}
            for each, (name, datatype, shape) in zip(sent, self._inputs, strict=True):
                arrays[name] = _array(each.data, datatype).reshape(shape)
        except (ValueError, RecursionError, OverflowError):  # msgspec's errors are ValueErrors
            return None
        return request.id, arrays

    def is_large(self, outputs: Mapping[str, Array]) -> bool:
        for array in outputs.values():  # noqa: SIM110  `any(…)` costs a generator
            if is_large_json(array):
                return True
        return False

    def encode(self, request_id: str, outputs: Mapping[str, Array]) -> bytes:
        """Raises what the general way would."""
        parts = [self._start]
        for name, array in outputs.items():
            start, datatype = self._start_of(name, array)
            parts += (start, _ENCODER.encode(json_data(name, array, datatype)), b"},")
        parts[-1] = b"}]"
        parts.append(b',"id":' + _ENCODER.encode(request_id) + b"}" if request_id else b"}")
        return b"".join(parts)

    def _start_of(self, name: str, array: Array) -> tuple[bytes, Datatype]:
        """An output's JSON up to its data; made once for each shape."""
        key = (name, array.dtype.char, array.shape)
        found = self._starts.get(key)
        if found is None:
            datatype = self._signature.output_datatype(name, array)
            shape = array.shape if array.ndim > 1 else (*array.shape, 1)  # as the general way
            head = {"name": name, "datatype": datatype.name, "shape": shape}
            found = _ENCODER.encode(head)[:-1] + b',"data":', datatype
            if len(self._starts) < _MOST_STARTS:
                self._starts[key] = found
        return found


def direct_codec(name: str, version: str, signature: TensorSignature) -> JsonCodec | None:
    """The codec; None for a model whose shapes vary, or whose tensors JSON cannot carry."""
    inputs, outputs = signature.inputs.values(), signature.outputs.values()
    datatypes = [*(datatype for datatype, _ in inputs), *outputs]
    rows = [shape[1:] for _, shape in inputs]
    is_fit = (
        bool(inputs)
        and bool(outputs)
        and all(datatype.is_json for datatype in datatypes)
        and all(-1 not in row and 0 < math.prod(row) <= _MOST_ELEMENTS for row in rows)
    )
    return JsonCodec(name, version, signature) if is_fit else None


def _request_type(inputs: Sequence[_Input]) -> Any:
    """The type of a request with inputs in the model's order, as clients send them. Another order
    goes the general way."""
    types = tuple(_input_type(*each) for each in inputs)
    return msgspec.defstruct(
        "Request", [("inputs", _of(tuple, types)), ("id", str, "")], forbid_unknown_fields=True
    )


def _input_type(name: str, datatype: Datatype, shape: tuple[int, ...]) -> Any:
    count = math.prod(shape)
    elements = _of(list, element_type(datatype.name))
    fields: list[tuple[str, Any]] = [
        ("name", _of(Literal, name)),
        ("datatype", _of(Literal, datatype.name)),
        ("shape", _of(tuple, tuple(_of(Literal, size) for size in shape))),
        ("data", _of(Annotated, (elements, Meta(min_length=count, max_length=count)))),
    ]
    return msgspec.defstruct("Input", fields, forbid_unknown_fields=True)


def _of(generic: Any, arguments: Any) -> Any:
    """`generic[arguments]`, for types that are made while running."""
    return generic[arguments]


def _array(data: list[Any], datatype: Datatype) -> Array:
    if datatype is BYTES:
        return objects([text.encode() for text in data])
    return numpy.array(data, datatype.memory)
