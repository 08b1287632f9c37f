"""Tensors whose second axis varies: who may be padded to share a batch, and how to tell.

A model is padded where it says so (`pads`), or where it takes a mask and *shows* that padding does
no harm: before traffic, a short and a long sample are run apart and padded together, and whatever
comes out must agree. Where neither holds, only equal shapes share a batch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.model import Tensor, TensorModel

_MASK = re.compile(r"(^|_)mask$")
_MASK_TYPES = frozenset(["bool", "int8", "int32", "int64", "float32"])
SHORT, LONG = 5, 9  # of the samples: no power of two, no multiples of each other
_TOLERANCE = {2: 2e-2}  # of the largest value, by the bytes of a number …
_USUAL_TOLERANCE = 1e-3  # … of which half precision has few

Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Padding:
    """What is filled up along its second axis, and what comes out as long as that."""

    values: Mapping[str, float]  # by input: what it is filled up with
    outputs: Mapping[str, Sequence[int]] | None = None  # axes to cut back; None: the second, if so

    def length_of(self, value: Arrays) -> int | None:
        """Of one request; None: its inputs differ, or are empty, and it must run as it is."""
        found = {value[name].shape[1] for name in self.values}
        length = found.pop()
        return None if found or not length else int(length)

    def cut_back(self, name: str, array: Any, length: int, full: int) -> Any:
        axes = (1,) if self.outputs is None else self.outputs.get(name, ())
        places = [slice(None)] * array.ndim
        for axis in axes:
            if array.ndim > axis and array.shape[axis] == full:
                places[axis] = slice(0, length)
        return array[tuple(places)]


@dataclass(slots=True)
class Varying:
    """What is known of one model; shared by all who call it."""

    candidates: tuple[str, ...] = ()  # inputs that padding may suit; to be shown
    padding: Padding | None = None
    pad_sizes: tuple[int, ...] = ()  # the only lengths it runs at
    _dtypes: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, model: TensorModel) -> "Varying":
        inputs = {tensor.name: tensor for tensor in model.inputs}
        if model.pads is not None:
            return cls(padding=_declared(model) if model.pads else None)
        return cls(candidates=_candidates(model.inputs), _dtypes=inputs)

    def full_length(self, longest: int) -> int:
        return next((size for size in self.pad_sizes if size >= longest), longest)

    # ---- showing that padding does no harm

    def sample(self, length: int, *, full: int | None = None) -> dict[str, Any]:
        """One row of that length, filled up to `full`. Indices are 0 and 1, which every table
        has; the mask says what is real."""
        import numpy

        rng = numpy.random.default_rng(length)
        row = {}
        for name, tensor in self._dtypes.items():
            is_padded = name in self.candidates
            shape = [1, *(length if axis == -1 else axis for axis in tensor.shape[1:])]
            dtype = numpy.dtype(tensor.array_dtype)
            if _is_mask(tensor):
                array = numpy.ones(shape, dtype)
            elif dtype.kind in "iub":
                array = rng.integers(0, 2, shape).astype(dtype)
                array[:, -1:] = 1  # unlike what it is filled up with
            else:
                array = rng.standard_normal(shape).astype(dtype)
            if is_padded and full is not None:
                beyond = [(0, 0)] * array.ndim
                beyond[1] = (0, full - length)
                array = numpy.pad(array, beyond)
            row[name] = array
        return row

    def judge(self, short: Arrays, long: Arrays, together: Sequence[Arrays]) -> bool:
        """Run apart and run together: do they agree? Then pad from now on."""
        outputs: dict[str, tuple[int, ...]] = {}
        for name, array in short.items():
            changed = [
                axis
                for axis, (one, other) in enumerate(zip(array.shape, long[name].shape, strict=True))
                if one != other
            ]
            if any(array.shape[axis] != SHORT for axis in changed):
                return False  # longer with its input, but not as long: nobody knows what to cut
            outputs[name] = tuple(changed)
        padding = Padding(dict.fromkeys(self.candidates, 0), outputs)
        for alone, batched, length in zip((short, long), together, (SHORT, LONG), strict=True):
            for name, array in alone.items():
                if not _agree(array, padding.cut_back(name, batched[name], length, LONG)):
                    return False
        self.padding = padding
        return True


def _declared(model: TensorModel) -> Padding:
    outputs = {
        tensor.name: (1,)
        for tensor in model.outputs
        if len(tensor.shape) > 1 and tensor.shape[1] == -1
    }
    return Padding(dict(model.pads or {}), outputs if model.outputs else None)


def _candidates(inputs: Sequence[Tensor]) -> tuple[str, ...]:
    """The inputs whose second axis varies, if nothing else does and one of them is a mask."""
    varying = [tensor for tensor in inputs if -1 in tensor.shape[1:]]
    if any(tensor.shape[1] != -1 or -1 in tensor.shape[2:] for tensor in varying):
        return ()
    if any(tensor.dtype == "object" for tensor in inputs):
        return ()
    return tuple(tensor.name for tensor in varying) if any(map(_is_mask, varying)) else ()


def _is_mask(tensor: Tensor) -> bool:
    is_named = _MASK.search(tensor.name.lower()) is not None
    return is_named and len(tensor.shape) == 2 and tensor.dtype in _MASK_TYPES


def _agree(alone: Any, batched: Any) -> bool:
    import numpy

    if alone.shape != batched.shape or alone.dtype != batched.dtype:
        return False
    if alone.dtype.kind != "f":
        return bool((alone == batched).all())
    if not (numpy.isfinite(alone).all() and numpy.isfinite(batched).all()):
        return False
    tolerance = _TOLERANCE.get(alone.dtype.itemsize, _USUAL_TOLERANCE)
    scale = float(numpy.abs(alone).max(initial=0.0)) or 1.0
    error = numpy.abs(alone.astype(numpy.float64) - batched.astype(numpy.float64))
    return float(error.max(initial=0.0)) <= tolerance * scale
