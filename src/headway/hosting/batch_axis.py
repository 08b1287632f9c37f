"""Adapts models without a batch axis, here and in worker processes."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from headway.errors import ConfigError
from headway.hosting.registry import Array
from headway.model import Tensor, TensorModel
from headway.models.catalogue import AnyModel


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
