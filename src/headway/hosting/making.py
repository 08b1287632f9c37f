"""Makes a batcher from a model and its settings: what it takes, where it runs, which settings
count."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy

from headway.config import ModelConfig, default_of
from headway.core.lifecycle.placement import Placement, place, process_setting
from headway.errors import ConfigError
from headway.hosting.registry import ItemsMean, WorkerLine
from headway.model import BatchesOnRequest, Model, Tensor, TensorModel, overrides
from headway.runtime.batching.batcher import Batcher
from headway.runtime.batching.options import BatcherOptions
from headway.runtime.calling.choosing import runner_for
from headway.runtime.workers import HAS_PROCESSES
from headway.signature import Signature, signature_of
from headway.signature.values import takes_object_with

_DEFAULTS = {field.name: default_of(field) for field in msgspec.structs.fields(ModelConfig)}
_LEVERS = [each.name for each in dataclasses.fields(BatcherOptions) if each.name in _DEFAULTS]
_NOT_SETTINGS = frozenset(["costs", "max_reruns", "observers"])  # of a decorator, beside those


def read_signature(
    model: "Model[Any, Any] | TensorModel",
) -> tuple[Signature | None, Sequence[Tensor], Sequence[Tensor]]:
    """The signature from type hints, and the tensors; a tensor model has tensors only."""
    if not any(overrides(model, method) for method in ("predict", "stream")):
        raise ConfigError(f"{type(model).__name__} does not define predict()")
    if isinstance(model, Model):
        signature = signature_of(model)
        return signature, signature.inputs, signature.outputs
    for which in ("inputs", "outputs"):
        if not getattr(model, which):
            raise ConfigError(
                f"{type(model).__name__} must declare its {which} on the class, rows "
                f'first: {which} = [headway.Tensor("x", "float32", (-1, 4))]'
            )
    return None, model.inputs, model.outputs


def check_dtypes(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        try:
            numpy.dtype(tensor.array_dtype)
        except TypeError as error:
            raise ConfigError(
                f"tensor {tensor.name!r}: dtype {tensor.dtype!r} is not a name of numpy's, such as "
                "float32, int64, bool, object (for texts), nor bfloat16"
            ) from error


def batcher_of(
    model: "Model[Any, Any] | TensorModel",
    config: ModelConfig,
    *,
    make: Callable[[], Any] | None,
    **others: Any,
) -> Batcher[Any, Any]:
    """`others`: options that override the configuration."""
    settings = {name: getattr(config, name) for name in _LEVERS}
    decorated = {key: value for key, value in _decorated(model).items() if key in _NOT_SETTINGS}
    options = BatcherOptions(**{**settings, **decorated, **others})
    return Batcher.from_options(model, options, make=make)


def _decorated(model: object) -> Mapping[str, Any]:
    """The options of `@headway.batched(…)`, if the model is such a function."""
    options: Mapping[str, Any] = getattr(model, "batcher_options", {})
    return options


def with_decorator(config: ModelConfig, model: object) -> ModelConfig:
    """The decorator's options apply where the configuration has the default."""
    decorated = _decorated(model)
    changes = {
        name: decorated[name]
        for name, default in _DEFAULTS.items()
        if name in decorated and name != "name" and getattr(config, name) == default
    }
    return msgspec.structs.replace(config, **changes) if changes else config


def tell_batch_size(
    model: object, config: ModelConfig, make: Callable[[], Any] | None
) -> Callable[[], Any] | None:
    """Pass a configured batch size to a model that is `BatchesOnRequest`: here, and in worker
    processes through the returned function, which makes the model there."""
    rows = config.max_batch_size
    if not isinstance(model, BatchesOnRequest) or rows == _DEFAULTS["max_batch_size"]:
        return make
    model.expect_batches(rows)
    return make and functools.partial(_made_expecting, make, rows)


def _made_expecting(make: Callable[[], Any], rows: int) -> Any:
    model = make()
    model.expect_batches(rows)
    return model


def placement_of(model: "Model[Any, Any] | TensorModel", config: ModelConfig) -> Placement:
    is_async = runner_for(model, config.name).is_async
    if config.worker == "inline" and not is_async and overrides(model, "stream"):
        raise ConfigError(
            f"{config.name} streams: write it as `async def` to run it inline", field="worker"
        )
    needs_process = process_setting(config.worker_memory_mb, config.pin)
    if model.uses and (config.worker == "process" or needs_process):
        raise ConfigError(
            f"{config.name} calls other models, which a process of its own cannot reach",
            field=needs_process or "worker",
        )
    return place(
        config.name,
        config.worker,
        is_async=is_async,
        workers=config.workers,
        is_python=not type(model).__module__.startswith("headway.") and not model.uses,
        needs_process=needs_process,
        has_processes=HAS_PROCESSES,
    )


def meaning_of_items_in(signature: Signature | None, inputs: Sequence[Tensor]) -> ItemsMean:
    if signature is None:
        return "one" if any(tensor.name == "items" for tensor in inputs) else "several"
    schema = signature.input.json_schema()
    if not schema:
        return "unclear"
    return "one" if takes_object_with(schema, "items") else "several"


def workers_of(name: str, version: str, batcher: Batcher[Any, Any]) -> list[WorkerLine]:
    """A line for each worker; threads share this process."""
    processes = batcher.worker_processes
    if processes:
        return [
            WorkerLine(name, version, each.pid, each.state, each.restarts, each.last_error)
            for each in processes
        ]
    state = "ready" if batcher.is_open else "stopped"
    return [WorkerLine(name, version, os.getpid(), state, 0, "")] * batcher.policy.workers


def devices_of(model: object, pin: Sequence[str], workers: int) -> list[str]:
    """The device of each worker (`cpu`, `cuda:1`), as the model names it; empty: not known."""
    device = getattr(model, "device", "cpu")
    own = "" if callable(device) else str(device)
    pins = [each for each in pin if each.startswith("cuda")] or [own]
    return [pins[index % len(pins)] for index in range(workers)]
