"""The commonest request of the plain route, compiled for one model: JSON, one value, no options.

Every other request (a batch, an upload, a mistake) is None here, and goes the general way, which
also says what is wrong. Both ways give the same values and the same bytes.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy
from msgspec import Meta

from headway.errors import HeadwayError, ModelFailed
from headway.hosting.registry import ServedModel
from headway.model import Tensor
from headway.server.bodies.encoding import is_large
from headway.server.bodies.json_body import SMALL_BYTES
from headway.server.families.plain.answers import NOT_JSON
from headway.server.service.direct_path import DirectCodec, DirectRequest
from headway.server.service.dtypes import of_tensor
from headway.server.service.json_data import element_type
from headway.signature import Side, Signature
from headway.signature.foreign import plain_of
from headway.signature.hints import alternatives, known, plain
from headway.signature.values import is_file

_JSON_TYPES = (b"application/json", b"application/x-www-form-urlencoded")
_NUMBERS = frozenset(["bool", "float32", "float64", "int8", "int16", "int32", "int64"])
_MOST_ELEMENTS = 4096  # in a row; what is larger may take its time
_ENCODER = msgspec.json.Encoder(enc_hook=plain_of)
_NOT_OURS = (HeadwayError, ValueError, RecursionError, OverflowError)  # msgspec's are ValueErrors


def is_direct(headers: dict[bytes, bytes]) -> bool:
    """Whether the request is no upload, and asks for no events."""
    kind = headers.get(b"content-type")
    if kind is not None and not kind.startswith(_JSON_TYPES):
        return False
    accept = headers.get(b"accept")
    return accept is None or b"event-stream" not in accept


def plain_codec(served: ServedModel) -> DirectCodec[bytes] | None:
    """The codec; None for a model that prepares or streams values, or answers with files."""
    signature = served.signature
    if signature is not None:
        is_fit = served.is_simple and _is_json(signature.output, served)
        return ValueCodec(signature, served) if is_fit else None
    return RowCodec(served.inputs) if served.is_direct and _are_numbers(served.inputs) else None


def _is_json(side: Side, served: ServedModel) -> bool:
    """Whether an answer is always JSON: a file would be sent as it is."""
    kinds = alternatives(plain(side.hint))
    is_known = all(known(kind) is not None and not is_file(kind) for kind in kinds)
    return is_known and not served.media_type


def _are_numbers(tensors: Sequence[Tensor]) -> bool:
    sizes = [math.prod(tensor.shape[1:]) for tensor in tensors]
    return all(tensor.dtype in _NUMBERS for tensor in tensors) and max(sizes) <= _MOST_ELEMENTS


class ValueCodec:
    """The codec of a model over Python values."""

    def __init__(self, signature: Signature, served: ServedModel) -> None:
        self._read = signature.input.codec.read
        self._check = signature.output.check
        self._may_be_several = served.meaning_of_items != "one"

    def decode(self, message: bytes) -> DirectRequest | None:
        if len(message) > SMALL_BYTES or (self._may_be_several and b'"items"' in message):
            return None
        try:
            return "", self._read(message)
        except _NOT_OURS:
            return None

    def is_large(self, outputs: Any) -> bool:
        return is_large(outputs)

    def encode(self, request_id: str, outputs: Any) -> bytes:
        self._check(outputs)
        return _encoded(outputs)


class RowCodec:
    """The codec of a model over arrays of fixed shapes: rows by name, or the only one as it is."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._inputs = [
            (each.name, numpy.dtype(each.array_dtype), (1, *each.shape[1:])) for each in inputs
        ]
        rows = [_row_type(each) for each in inputs]
        fields = [(f"_{place}", row) for place, row in enumerate(rows)]
        names = {f"_{place}": each.name for place, each in enumerate(inputs)}
        record = msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=True)
        kind: Any = record if len(inputs) > 1 else rows[0] | record
        self._decode = msgspec.json.Decoder(kind).decode
        self._record, self._names = record, list(names)

    def decode(self, message: bytes) -> DirectRequest | None:
        if len(message) > SMALL_BYTES:
            return None
        try:
            row = self._decode(message)
            if type(row) is self._record:
                parts = [getattr(row, each) for each in self._names]
            else:
                parts = [row]
            return "", {
                name: numpy.array(part, dtype).reshape(shape)
                for part, (name, dtype, shape) in zip(parts, self._inputs, strict=True)
            }
        except _NOT_OURS:
            return None

    def is_large(self, outputs: Any) -> bool:
        return bool(max([array.size for array in outputs.values()]) > _MOST_ELEMENTS)

    def encode(self, request_id: str, outputs: Any) -> bytes:
        named = {name: array[0].tolist() for name, array in outputs.items()}
        return _encoded(named if len(named) > 1 else next(iter(named.values())))


def _encoded(result: Any) -> bytes:
    try:
        return _ENCODER.encode(result)
    except NOT_JSON as error:
        raise ModelFailed(f"the result is not JSON: {error}") from error


def _row_type(tensor: Tensor) -> Any:
    """The type of one row: nested lists of fixed lengths, with elements in the dtype's range."""
    kind = element_type(of_tensor(tensor).name)
    for size in reversed(tensor.shape[1:]):
        listed: Any = list
        kind = Annotated[listed[kind], Meta(min_length=size, max_length=size)]
    return kind
