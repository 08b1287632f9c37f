"""The same over gRPC: `inference_grpc.md`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from headway.conformance.checks import Check, ClauseBroken, hold
from headway.conformance.rest import UNKNOWN
from headway.conformance.subject import Subject, SubjectTensor
from headway.loadgen.tensors import DTYPES, as_bytes
from headway.server.grpc import inference_pb2 as pb

_GRPC = "inference_grpc.md"
_SERVICE = "/inference.GRPCInferenceService/"
_FIELDS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BOOL": "bool_contents",
    "BYTES": "bytes_contents",
}


@dataclass(frozen=True, slots=True)
class GrpcSubject:
    channel: grpc.Channel
    http: Subject  # for the metadata and the values
    metadata: tuple[tuple[str, str], ...] = ()

    def call(self, method: str, request: Any, answer: Any) -> Any:
        remote = self.channel.unary_unary(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return remote(request, timeout=self.http.server.timeout_s, metadata=self.metadata)

    def asked(self, method: str, request: Any, answer: Any) -> Any:
        try:
            return self.call(method, request, answer)
        except grpc.RpcError as error:
            raise ClauseBroken(f"{method}: {error.code().name} {error.details()!r:.200}") from None

    def refused(self, request: Any) -> str | None:
        try:
            self.call("ModelInfer", request, pb.ModelInferResponse)
        except grpc.RpcError as error:
            is_theirs = error.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
            return f"as {error.code().name}: the server blames itself" if is_theirs else None
        raise ClauseBroken("it was answered")

    def infer(self, request: Any) -> Any:
        return self.asked("ModelInfer", request, pb.ModelInferResponse)

    def request(self, *, is_raw: bool, **more: Any) -> Any:
        request = pb.ModelInferRequest(model_name=self.http.model, **more)
        for name, value in self.http.parameters.items():
            request.parameters[name].int64_param = value
        for each in self.http.tensors():
            tensor = request.inputs.add()
            tensor.name, tensor.datatype = each.name, each.datatype
            tensor.shape.extend(each.values.shape)
            if is_raw:
                request.raw_input_contents.append(as_bytes(each.values, each.datatype))
            else:
                _fill(tensor.contents, each)
        return request


def _fill(contents: Any, tensor: SubjectTensor) -> None:
    if tensor.datatype not in _FIELDS:
        raise ClauseBroken(f"{tensor.datatype} has no typed contents")
    getattr(contents, _FIELDS[tensor.datatype]).extend(tensor.values.ravel().tolist())


def server_live(server: GrpcSubject) -> None:
    hold(server.asked("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live, "false")


def server_ready(server: GrpcSubject) -> None:
    answer = server.asked("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse)
    hold(answer.ready, "false")


def model_ready(server: GrpcSubject) -> None:
    request = pb.ModelReadyRequest(name=server.http.model)
    hold(server.asked("ModelReady", request, pb.ModelReadyResponse).ready, "false")


def server_metadata(server: GrpcSubject) -> None:
    answer = server.asked("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse)
    about = server.http.ask("GET", "/v2").ok()
    same = (answer.name, answer.version) == (about.get("name"), about.get("version"))
    hold(same, f"{answer.name} {answer.version} is not what HTTP says: {about!r:.200}")


def model_metadata(server: GrpcSubject) -> None:
    request = pb.ModelMetadataRequest(name=server.http.model)
    answer = server.asked("ModelMetadata", request, pb.ModelMetadataResponse)
    for side in ("inputs", "outputs"):
        found = [(each.name, each.datatype, list(each.shape)) for each in getattr(answer, side)]
        told = [(t["name"], t["datatype"], t["shape"]) for t in server.http.metadata[side]]
        hold(found == told, f"{side}: {found} over gRPC, {told} over HTTP")


def _values(answer: Any) -> list[tuple[str, list[int], bytes]]:
    """Names, shapes and raw contents of the outputs, whichever form the server has chosen."""
    raw = list(answer.raw_output_contents)
    if not raw:
        raw = [_packed(each) for each in answer.outputs]
    count = len(answer.outputs)
    hold(count and count == len(raw), f"{count} outputs, {len(raw)} raw contents")
    return [
        (each.name, list(each.shape), data) for each, data in zip(answer.outputs, raw, strict=True)
    ]


def _packed(tensor: Any) -> bytes:
    field = _FIELDS.get(tensor.datatype)
    if field is None:
        raise ClauseBroken(f"{tensor.name}: {tensor.datatype} without raw contents")
    kind = DTYPES.get(tensor.datatype, object)
    return as_bytes(np.array(list(getattr(tensor.contents, field)), kind), tensor.datatype)


def typed_contents(server: GrpcSubject) -> None:
    answer = server.infer(server.request(is_raw=False))
    hold(answer.model_name == server.http.model, f"model_name is {answer.model_name!r}")
    _values(answer)


def raw_contents(server: GrpcSubject) -> None:
    raw = _values(server.infer(server.request(is_raw=True)))
    typed = _values(server.infer(server.request(is_raw=False)))
    if raw != typed:
        server.http.steady_outputs()
    hold(raw == typed, "raw contents give other values than typed ones")


def id_comes_back(server: GrpcSubject) -> None:
    found = server.infer(server.request(is_raw=True, id="conformance-7")).id
    hold(found == "conformance-7", f"id is {found!r}")


def both_contents(server: GrpcSubject) -> str | None:
    request = server.request(is_raw=True)
    for tensor, each in zip(request.inputs, server.http.tensors(), strict=True):
        _fill(tensor.contents, each)
    return server.refused(request)


def too_little(server: GrpcSubject) -> str | None:
    request = server.request(is_raw=True)
    request.raw_input_contents[0] = request.raw_input_contents[0][:-1]
    return server.refused(request)


def unknown_model(server: GrpcSubject) -> str | None:
    request = server.request(is_raw=True)
    request.model_name = UNKNOWN
    return server.refused(request)


def unknown_input(server: GrpcSubject) -> str | None:
    request = server.request(is_raw=True)
    request.inputs[0].name = "no_such_input"
    return server.refused(request)


def _of(heading: str, what: str, run: Callable[[GrpcSubject], str | None]) -> Check[GrpcSubject]:
    return Check(f"{_GRPC}, {heading}", what, run)


CHECKS: list[Check[GrpcSubject]] = [
    _of("Health: ServerLive", "a live server says so", server_live),
    _of("Health: ServerReady", "a ready server says so", server_ready),
    _of("Health: ModelReady", "a ready model says so", model_ready),
    _of("Server Metadata", "as over HTTP", server_metadata),
    _of("Model Metadata", "inputs and outputs as over HTTP", model_metadata),
    _of("Inference", "typed contents are answered", typed_contents),
    _of("Tensor Data: Raw Data", "raw contents are what typed ones are", raw_contents),
    _of("Inference", "the request's id comes back", id_comes_back),
    _of("Tensor Data: Raw Data", "typed contents beside raw ones are refused", both_contents),
    _of("Inference", "less data than the shape says is refused", too_little),
    _of("Inference", "an unknown model is refused", unknown_model),
    _of("Inference", "an unknown input is refused", unknown_input),
]
