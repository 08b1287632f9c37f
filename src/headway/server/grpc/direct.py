"""The commonest `ModelInfer`: one row of each input, raw, without options, for a model of fixed
shapes.

Every other request is None here, and goes the general way, which also says what is wrong. Both ways
give the same arrays and the same message.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy

from headway.server.bodies.json_body import SMALL_BYTES
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.calls import Calls
from headway.server.grpc.messages import AnswerEncoder
from headway.server.service.direct_path import DirectPath, DirectRequest, of_rows
from headway.server.service.dtypes import BF16, BYTES, Datatype
from headway.server.service.inference import Inference
from headway.server.service.requests import is_large_raw
from headway.server.service.tensors import Array, TensorSignature
from headway.wire.http2.status import CallRefusal
from headway.wire.messages import Pending


class DirectMessages:
    """Converts messages to one row and back, for one model."""

    def __init__(self, name: str, version: str, signature: TensorSignature) -> None:
        rows = _rows_of(signature)
        # Messages are compared as a whole: each field that Python reads of one costs a microsecond.
        self._tensors = [
            pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype.name, shape=shape)
            for name, datatype, shape in rows
        ]
        self._rows = [
            (name, datatype.wire, shape, _size_bytes(datatype, shape))
            for name, datatype, shape in rows
        ]
        self.encode = AnswerEncoder(name, version, signature).encode

    def decode(self, request: pb.ModelInferRequest) -> DirectRequest | None:
        """The request's id and arrays; None: it must go the general way."""
        raws = request.raw_input_contents
        if len(raws) != len(self._rows) or request.inputs != self._tensors:
            return None
        if request.parameters or request.outputs:
            return None
        arrays = {}
        for (name, wire, shape, size_bytes), raw in zip(self._rows, raws, strict=True):
            if len(raw) != size_bytes:
                return None
            arrays[name] = numpy.frombuffer(raw, wire).reshape(shape)
        return request.id, arrays

    def is_large(self, outputs: Mapping[str, Array]) -> bool:
        for array in outputs.values():  # noqa: SIM110  `any(…)` costs a generator
            if is_large_raw(array):
                return True
        return False


def direct_messages(name: str, version: str, signature: TensorSignature) -> DirectMessages | None:
    """The codec; None for a model whose shapes vary, or whose rows are large or texts."""
    rows = _rows_of(signature)
    is_fit = (
        bool(rows)
        and bool(signature.outputs)
        and all(datatype not in (BYTES, BF16) for _, datatype, _ in rows)
        and all(0 < _size_bytes(datatype, shape) <= SMALL_BYTES for _, datatype, shape in rows)
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

    def refusal_of(self, error: BaseException) -> CallRefusal:
        return self._calls.refusal_of(error)


def _rows_of(signature: TensorSignature) -> list[tuple[str, Datatype, tuple[int, ...]]]:
    return [
        (name, datatype, (1, *shape[1:])) for name, (datatype, shape) in signature.inputs.items()
    ]


def _size_bytes(datatype: Datatype, shape: tuple[int, ...]) -> int:
    """The bytes of a row; negative if the shape varies."""
    return -1 if -1 in shape else math.prod(shape) * datatype.wire.itemsize
