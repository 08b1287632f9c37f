"""Padding for models whose inputs differ in length: `pad`, `mask` and, for outputs, `unpad`.

Any axis, either side, any value. Numpy only: a model on torch converts the arrays to tensors.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy
from numpy.typing import ArrayLike, DTypeLike, NDArray

from headway.errors import InvalidInput

Side: TypeAlias = Literal["right", "left"]
Array: TypeAlias = NDArray[Any]

__all__ = ["lengths", "mask", "pad", "padded_length", "unpad"]


def pad(
    values: Sequence[ArrayLike],
    *,
    axis: int | Sequence[int] = 0,
    side: Side = "right",
    value: Any = 0,
    multiple_of: int = 1,
    length: int | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """One array of all values, rows first, each filled up along `axis` to the longest.

    `axis` is the value's own (several: each is filled up); `multiple_of` rounds the length up;
    `length` sets it, and is an error where a value is longer.
    """
    arrays = _arrays(values, dtype)
    axes = [axis] if isinstance(axis, int) else list(axis)
    shape = list(arrays[0].shape)
    for each in axes:
        own = _axis_of(arrays[0], each)
        most = max(array.shape[own] for array in arrays)
        shape[own] = padded_length(most, multiple_of=multiple_of, length=length)
    kind = numpy.result_type(*arrays) if dtype is None else numpy.dtype(dtype)
    batch = numpy.full((len(arrays), *shape), value, kind)
    for row, array in zip(batch, arrays, strict=True):
        places = tuple(
            slice(full - have, full) if side == "left" else slice(0, have)
            for full, have in zip(shape, array.shape, strict=True)
        )
        if row[places].shape != array.shape:
            raise InvalidInput(f"shapes differ beyond axis {axis}: {[a.shape for a in arrays]}")
        row[places] = array
    return batch


def mask(
    values: Sequence[ArrayLike] | Sequence[int],
    *,
    axis: int = 0,
    side: Side = "right",
    multiple_of: int = 1,
    length: int | None = None,
    dtype: DTypeLike = "int64",
) -> Array:
    """1 where `pad` put something real, 0 where it filled up: one row for each value.

    `values` are the values themselves, or their lengths.
    """
    are_lengths = all(isinstance(value, int | numpy.integer) for value in values)
    own = [int(value) for value in values] if are_lengths else lengths(values, axis=axis)  # type: ignore[arg-type]
    full = padded_length(max(own, default=0), multiple_of=multiple_of, length=length)
    places = numpy.arange(full)
    counts = numpy.array(own, dtype=numpy.int64)[:, None]
    is_real = places >= full - counts if side == "left" else places < counts
    return is_real.astype(dtype)


def unpad(
    batch: ArrayLike, lengths: Sequence[int], *, axis: int | Sequence[int] = 0, side: Side = "right"
) -> list[Array]:
    """Each row of a batch, cut back to its own length along `axis` (the row's own)."""
    rows = numpy.asarray(batch)
    if len(rows) != len(lengths):
        raise InvalidInput(f"{len(rows)} rows and {len(lengths)} lengths")
    axes = [axis] if isinstance(axis, int) else list(axis)
    cut = []
    for row, own in zip(rows, lengths, strict=True):
        places = [slice(None)] * row.ndim
        for each in axes:
            at = _axis_of(row, each)
            full = row.shape[at]
            if not 0 <= own <= full:
                raise InvalidInput(f"a length of {own}, where the batch has {full}")
            places[at] = slice(full - own, full) if side == "left" else slice(0, own)
        cut.append(row[tuple(places)])
    return cut


def lengths(values: Sequence[ArrayLike], *, axis: int = 0) -> list[int]:
    """How long each value is along that axis."""
    arrays = _arrays(values, None)
    return [int(array.shape[_axis_of(array, axis)]) for array in arrays]


def padded_length(longest: int, *, multiple_of: int = 1, length: int | None = None) -> int:
    """The length that a batch with this longest value is padded to."""
    if multiple_of < 1:
        raise InvalidInput(f"multiple_of must be at least 1, not {multiple_of}")
    if length is not None and longest > length:
        raise InvalidInput(f"a value of length {longest} does not fit into {length}")
    full = longest if length is None else length
    return -(-full // multiple_of) * multiple_of


def _arrays(values: Sequence[ArrayLike], dtype: DTypeLike | None) -> list[Array]:
    if not len(values):
        raise InvalidInput("nothing to pad")
    arrays = [numpy.asarray(value, dtype) for value in values]
    if len({array.ndim for array in arrays}) > 1 or not arrays[0].ndim:
        shapes = [array.shape for array in arrays]
        raise InvalidInput(f"values need the same number of axes, at least one: {shapes}")
    return arrays


def _axis_of(array: Array, axis: int) -> int:
    if not -array.ndim <= axis < array.ndim:
        raise InvalidInput(f"there is no axis {axis} in a value of shape {array.shape}")
    return axis % array.ndim
