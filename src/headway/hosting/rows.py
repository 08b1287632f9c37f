"""Rows of named arrays, and values that a model is timed with."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headway.errors import ConfigError, InvalidInput, called
from headway.hosting.registry import Array
from headway.hosting.warm_up import samples_of
from headway.model import Model, Tensor, TensorModel, overrides
from headway.models.catalogue import AnyModel
from headway.signature import Signature, array_of


def rows_of(inputs: Mapping[str, Array]) -> int:
    first = next(iter(inputs.values()), None)
    return len(first) if first is not None and first.ndim else 0


def whole_arrays(value: Any, inputs: Sequence[Tensor]) -> dict[str, Array] | None:
    """The arrays of a value that a model over arrays takes as it is, rows first; None: it is not
    one."""
    if not (isinstance(value, Mapping) and value.keys() == {tensor.name for tensor in inputs}):
        return None
    if any(getattr(value[each.name], "ndim", 0) != len(each.shape) for each in inputs):
        return None
    return {each.name: _array(value[each.name], each) for each in inputs}


def as_row(value: Any, inputs: Sequence[Tensor]) -> dict[str, Array]:
    """One row of every input from JSON: `{"x": […]}`, or just `[…]` if there is only one input."""
    names = {tensor.name for tensor in inputs}
    if not (isinstance(value, Mapping) and value.keys() == names):
        if isinstance(value, Mapping) or len(inputs) > 1:
            raise InvalidInput(f"an object with {sorted(names)} is expected")
        value = {inputs[0].name: value}
    return {tensor.name: _array(value[tensor.name], tensor)[None] for tensor in inputs}


def _array(value: Any, tensor: Tensor) -> Array:
    try:
        return array_of(value, tensor.array_dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{called(tensor.name)}: {error}") from error


def samples_for(
    model: "Model[Any, Any] | TensorModel",
    signature: Signature | None,
    inputs: Sequence[Tensor],
    *,
    only_streams: bool,
) -> list[Any]:
    """Typical values, cheap ones first: the model's own, or made from its signature."""
    own: Callable[[], list[Any]] | None = getattr(model, "samples", None)
    if own is not None:
        return list(own())
    if signature is not None:
        if only_streams:
            return []
        return signature.input.samples(varies=overrides(model, "size"))
    has_rows = getattr(model, "batch_axis", True)
    if has_rows:
        return list(samples_of(inputs))
    return [without_rows(each) for each in samples_of(with_rows(inputs))]


def with_rows(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors with an axis of rows added."""
    return [dataclasses.replace(each, shape=(-1, *each.shape)) for each in tensors]


def without_rows(row: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array[0, ...] for name, array in row.items()}  # a scalar stays an array


def drop_batch_axis(model: AnyModel) -> None:
    if not isinstance(model, TensorModel):
        raise ConfigError(
            "0 is for models over arrays that have no axis of rows; this one takes Python "
            "values. For one at a time, write 1",
            field="max_batch_size",
        )
    drop: Callable[[], None] | None = getattr(model, "drop_batch_axis", None)
    if drop is not None:  # a file, which knows its whole shapes
        drop()
    model.batch_axis = False


def made_without_batch_axis(make: Callable[[], AnyModel]) -> AnyModel:
    """Make the model again, in another process."""
    model = make()
    drop_batch_axis(model)
    return model
