"""Whether a model's arrays are what its `outputs` declare: clients read those declarations, and
decide by them how to read an answer."""

from collections.abc import Sequence
from typing import Any

import numpy

from headway.model import Tensor

_TEXTS = "OSU"  # kinds of dtypes; a declared `object` means texts of any length


class DeclaredOutput:
    """One declared output. Its dtype and fixed axes are worked out once, because every batch is
    checked by them."""

    def __init__(self, tensor: Tensor, *, has_rows: bool, is_shape_sure: bool) -> None:
        self._tensor = tensor
        self._dtype = numpy.dtype(tensor.array_dtype)
        self._is_shape_sure = is_shape_sure
        self._axes = len(tensor.shape)
        first = 1 if has_rows else 0  # the rows always vary
        self._fixed = tuple(
            (axis, size) for axis, size in enumerate(tensor.shape) if axis >= first and size != -1
        )

    def mistake(self, array: Any) -> str | None:
        """What an array is instead, as the end of a sentence; None: it is as declared."""
        if array.dtype != self._dtype and not self._is_same(array.dtype):
            return f"as {array.dtype}; its declared dtype is {self._words()}"
        if self._is_shape_sure and not self._fits(array.shape):
            return f"with shape {list(array.shape)}; its declared shape is {self._shape()}"
        return None

    def array_of(self, value: Any) -> Any:
        """Numbers of Python's own have no dtype yet: they get the declared one, of their kind."""
        if hasattr(value, "dtype"):
            return numpy.asarray(value)
        array = numpy.asarray(value)
        is_alike = array.dtype.kind == self._dtype.kind or (
            array.dtype.kind == "i" and self._dtype.kind in "uf"
        )
        return numpy.asarray(value, self._dtype) if is_alike else array

    def _is_same(self, dtype: Any) -> bool:
        """The slow look, for what numpy does not call equal: a tensor's dtype of another library,
        another order of bytes, texts of a fixed length."""
        if not isinstance(dtype, numpy.dtype):
            return str(dtype).rpartition(".")[2] in (self._dtype.name, self._tensor.dtype)
        if self._dtype.kind in _TEXTS:
            return dtype.kind in _TEXTS
        return dtype.newbyteorder("=") == self._dtype

    def _fits(self, shape: Sequence[int]) -> bool:
        if len(shape) != self._axes:
            return False
        for axis, size in self._fixed:  # noqa: SIM110  a generator would cost as much as the rest
            if shape[axis] != size:
                return False
        return True

    def _words(self) -> str:
        of_memory = self._tensor.array_dtype
        is_other = of_memory != self._tensor.dtype
        return f"{self._tensor.dtype}, which is {of_memory} in memory" if is_other else of_memory

    def _shape(self) -> list[int]:
        return list(self._tensor.shape)
