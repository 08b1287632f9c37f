"""The commonest `ModelInfer`: one row of each input, raw, no wishes, for a model whose shapes are
fixed. Whatever is not exactly that is None here, and goes the general way, which also says what is
wrong. Both ways give the same arrays and the same message."""

import math
from collections.abc import Mapping
from typing import Any

import numpy

from headway.server.bodies.background import AT_ONCE, Steps
from headway.server.families.v2.codec import LARGE_BYTES
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.calls import Calls
from headway.server.grpc.large import RAW, varint
from headway.server.service.direct import DirectPath, DirectRequest, of_rows
from headway.server.service.dtypes import BF16, BYTES, Datatype
from headway.server.service.inference import Inference
from headway.server.service.requests import is_large_raw
from headway.server.service.tensors import Array, TensorSignature, to_raw
from headway.wire.http2.status import Refusal
from headway.wire.messages import Pending

_MOST_SHAPES = 64  # of outputs, remembered
_ID = b"\x1a"  # tags: the field's number, and that a length follows


class DirectMessages:
    """Messages to one row and back, for one model."""

    def __init__(self, name: str, version: str, signature: TensorSignature) -> None:
        self._signature = signature
        self._inputs = [
            (name, datatype.name, datatype.wire, shape, list(shape), _size_bytes(datatype, shape))
            for name, datatype, shape in _rows_of(signature)
        ]
        named = pb.ModelInferResponse(model_name=name, model_version=version)
        self._start = named.SerializeToString()
        self._outputs: dict[tuple[str, str, tuple[int, ...]], tuple[bytes, Datatype]] = {}

    def decode(self, request: pb.ModelInferRequest) -> DirectRequest | None:
        """None: not for us."""
        tensors, raws = request.inputs, request.raw_input_contents
        if len(raws) != len(self._inputs) or len(tensors) != len(raws):
            return None
        if request.parameters or request.outputs:
            return None
        arrays = {}
        for known, tensor, raw in zip(self._inputs, tensors, raws, strict=True):
            name, datatype, wire, shape, sizes, size_bytes = known
            if (
                tensor.name != name
                or tensor.datatype != datatype
                or len(raw) != size_bytes
                or tensor.shape != sizes
                or tensor.parameters
                or tensor.HasField("contents")
            ):
                return None
            arrays[name] = numpy.frombuffer(raw, wire).reshape(shape)
        return request.id, arrays

    def is_large(self, outputs: Mapping[str, Array]) -> bool:
        for array in outputs.values():  # noqa: SIM110  `any(…)` costs a generator
            if is_large_raw(array):
                return True
        return False

    def encode(
        self, request_id: str, outputs: Mapping[str, Array], steps: Steps = AT_ONCE
    ) -> bytes:
        """Raises what the general way would."""
        parts = [self._start]
        raws: list[bytes] = []
        if request_id:
            data = request_id.encode()
            parts += (_ID, varint(len(data)), data)
        for name, array in outputs.items():
            output, datatype = self._output_of(name, array)
            parts.append(output)
            raw = to_raw(array, datatype, steps)
            raws += (RAW, varint(len(raw)), raw)
        return b"".join((*parts, *raws))

    def _output_of(self, name: str, array: Array) -> tuple[bytes, Datatype]:
        """All of an output but its data; made once for each shape."""
        key = (name, array.dtype.str, array.shape)
        found = self._outputs.get(key)
        if found is None:
            datatype = self._signature.output_datatype(name, array)
            shape = array.shape if array.ndim != 1 else (*array.shape, 1)  # as the general way
            response = pb.ModelInferResponse()
            response.outputs.add(name=name, datatype=datatype.name, shape=shape)
            found = response.SerializeToString(), datatype
            if len(self._outputs) < _MOST_SHAPES:
                self._outputs[key] = found
        return found


def direct_messages(name: str, version: str, signature: TensorSignature) -> DirectMessages | None:
    """None for a model whose shapes vary, or whose rows are large or texts."""
    rows = _rows_of(signature)
    is_fit = (
        bool(rows)
        and bool(signature.outputs)
        and all(datatype not in (BYTES, BF16) for _, datatype, _ in rows)
        and all(0 < _size_bytes(datatype, shape) <= LARGE_BYTES for _, datatype, shape in rows)
        and sum(math.prod(shape) for _, _, shape in rows) <= signature.max_elements
    )
    return DirectMessages(name, version, signature) if is_fit else None


class DirectInfer:
    """`ModelInfer` without a task."""

    def __init__(self, inference: Inference, calls: Calls, *, has_keys: bool) -> None:
        self._path = DirectPath(inference, of_rows(inference, direct_messages))
        self._calls = calls
        self._has_keys = has_keys

    def start(self, request: Any, call: Any) -> Pending | None:
        if type(request) is not pb.ModelInferRequest:
            return None
        caller = call.caller if self._has_keys else None
        model, version = request.model_name, request.model_version
        pending = self._path.start(request, call, caller, "", model, version)
        if pending is not None:
            self._calls.begun(call)
        return pending

    def refusal_of(self, error: BaseException) -> Refusal:
        return self._calls.refusal_of(error)


def _rows_of(signature: TensorSignature) -> list[tuple[str, Datatype, tuple[int, ...]]]:
    return [
        (name, datatype, (1, *shape[1:])) for name, (datatype, shape) in signature.inputs.items()
    ]


def _size_bytes(datatype: Datatype, shape: tuple[int, ...]) -> int:
    """Negative where the shape varies."""
    return -1 if -1 in shape else math.prod(shape) * datatype.wire.itemsize
