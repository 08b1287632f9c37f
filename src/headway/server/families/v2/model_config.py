"""How a served model describes itself: v2 metadata and Triton's model configuration."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from headway.hosting.registry import ServedModel
from headway.model import Tensor
from headway.server.service.dtypes import DATATYPES, of_tensor

PLATFORM = "headway"
_CHANNELS = (1, 3)
_GPUS = frozenset(["cuda", "tensorrt", "rocm", "directml"])
_KINDS = {"cpu": "KIND_CPU", "openvino": "KIND_CPU"}

Datatype = Annotated[str, Meta(extra_json_schema={"enum": list(DATATYPES)})]


class TensorMetadata(TypedDict):
    name: str
    datatype: Datatype
    shape: list[int]
    parameters: NotRequired[dict[str, str]]


class ModelMetadata(TypedDict):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class TensorConfig(TypedDict):
    name: str
    data_type: str
    dims: list[int]
    format: NotRequired[Literal["FORMAT_NONE", "FORMAT_NCHW", "FORMAT_NHWC"]]  # of inputs


class InstanceGroup(TypedDict):
    name: str
    count: int
    kind: str
    gpus: NotRequired[list[int]]


class ModelConfiguration(TypedDict):
    """A model's configuration in Triton's format; `/openapi.json` describes it."""

    name: str
    platform: str
    backend: str
    version_policy: dict[str, Any]
    max_batch_size: Annotated[int, Meta(ge=0)]
    input: list[TensorConfig]
    output: list[TensorConfig]
    dynamic_batching: NotRequired[dict[str, Any]]
    instance_group: list[InstanceGroup]
    model_transaction_policy: dict[str, bool]
    response_cache: dict[str, bool]


def metadata_of(model: ServedModel, *, versions: Sequence[str] = ()) -> ModelMetadata:
    """`versions`: all of the model's that answer."""
    return {
        "name": model.name,
        "versions": list(versions) or [model.version],
        "platform": PLATFORM,
        "inputs": _tensors(_sent(model.inputs, model), model),
        "outputs": _tensors(_sent(model.outputs, model), model),
    }


def with_contents(metadata: ModelMetadata, model: ServedModel) -> ModelMetadata:
    """And what texts are, where they are more than texts, as MLServer says it. (Triton's messages
    of gRPC have no place for it.)"""
    ports = [*metadata["inputs"], *metadata["outputs"]]
    for port, tensor in zip(ports, [*model.inputs, *model.outputs], strict=True):
        if tensor.content_type:
            port["parameters"] = {"content_type": tensor.content_type}
    return metadata


def config_of(model: ServedModel) -> ModelConfiguration:
    """The configuration, with at least the fields that perf_analyzer reads without checking."""
    config: ModelConfiguration = {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": model.max_batch_size,
        "input": _inputs(model),
        "output": _ports(_sent(model.outputs, model), model),
        "instance_group": _groups(model),
        "model_transaction_policy": {"decoupled": model.streams},
        "response_cache": {"enable": False},
    }
    if model.max_batch_size > 0:
        config["dynamic_batching"] = {}
    return config


def _groups(model: ServedModel) -> list[InstanceGroup]:
    """The places where the model's workers run, a group for each. KIND_MODEL: only the model
    knows."""
    groups: list[InstanceGroup] = []
    for index, (device, count) in enumerate(Counter(model.devices()).items()):
        name, _, number = device.partition(":")
        kind = "KIND_GPU" if name in _GPUS else _KINDS.get(name, "KIND_MODEL")
        group: InstanceGroup = {"name": f"{model.name}_{index}", "count": count, "kind": kind}
        if name in _GPUS:
            group["gpus"] = [int(number or 0)]
        groups.append(group)
    return groups


def _sent(tensors: Sequence[Tensor], model: ServedModel) -> list[Tensor]:
    """One value a row is [rows, 1] to Triton's clients: perf_analyzer sends nothing else. So it is
    what we say, in and out, and what we send; we take [rows] as well."""
    if model.max_batch_size == 0:
        return list(tensors)
    return [
        each if len(each.shape) > 1 else replace(each, shape=(*each.shape, 1)) for each in tensors
    ]


def _tensors(tensors: Sequence[Tensor], model: ServedModel) -> list[TensorMetadata]:
    return [
        {
            "name": each.name,
            "datatype": of_tensor(each).name,
            "shape": [-1, *each.shape[1:]] if model.max_batch_size > 0 else list(each.shape),
        }
        for each in tensors
    ]


def _inputs(model: ServedModel) -> list[TensorConfig]:
    """The inputs, with the order of images' axes: Triton's clients have no other way to learn
    it."""
    ports = _ports(_sent(model.inputs, model), model)
    return [{**port, "format": _format(port["dims"])} for port in ports]


def _format(dims: Sequence[int]) -> Literal["FORMAT_NONE", "FORMAT_NCHW", "FORMAT_NHWC"]:
    """An image has one or three channels on exactly one end; otherwise it is not an image."""
    if len(dims) == 3 and (dims[0] in _CHANNELS) != (dims[2] in _CHANNELS):
        return "FORMAT_NCHW" if dims[0] in _CHANNELS else "FORMAT_NHWC"
    return "FORMAT_NONE"


def _ports(tensors: Sequence[Tensor], model: ServedModel) -> list[TensorConfig]:
    """The inputs or outputs. `dims` leaves out the rows, as in Triton."""
    return [
        {
            "name": each.name,
            "data_type": of_tensor(each).config_name,
            "dims": list(each.shape[1:] if model.max_batch_size > 0 else each.shape),
        }
        for each in tensors
    ]
