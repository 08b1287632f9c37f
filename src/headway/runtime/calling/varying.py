"""Tensors whose second axis varies: which of them may be padded to share a batch.

Inputs are padded if the model declares it (`pads`), or if it takes a mask and a test *shows* that
values outside the mask do not matter. Before traffic, the test runs samples unpadded, padded with
the values used later, and padded with other values; all outputs must agree. If the outputs do not
depend on the samples, the test shows nothing. Otherwise only equal shapes share a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.model import Tensor, TensorModel
from headway.runtime.calling.samples import Attempt, SampleRows, all_agree, are_finite, is_mask

SHORT, LONG = 5, 9  # lengths of the samples: no power of two, no multiples of each other
_CONTENTS = 4  # of samples: indices that are all 0, all 1, and two at random

Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Padding:
    """Inputs that are padded along their second axis, and outputs that are as long as them."""

    values: Mapping[str, float]  # by input: what it is filled up with
    outputs: Mapping[str, Sequence[int]] | None = None  # axes to cut back; None: the second, if so

    def length_of(self, value: Arrays) -> int | None:
        """The length of one request; None: its inputs differ or are empty, so it is not padded."""
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
    """The padding of one model; shared by all of its callers."""

    candidates: tuple[str, ...] = ()  # inputs that may be padded, if the trial succeeds
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

    @staticmethod
    def contents() -> range:
        return range(_CONTENTS)

    def sample(
        self, length: int, content: int, *, full: int | None = None, fill: int = 0
    ) -> dict[str, Any]:
        """One row of that length, filled up to `full` with 0 or with something else. Indices are 0
        and 1, which every table has; the mask says what is real."""
        import numpy

        row = SampleRows(list(self._dtypes.values())).row(content, Attempt(length))
        for name in self.candidates if full is not None else ():
            array, tensor = row[name], self._dtypes[name]
            rest = 0 if is_mask(tensor) else fill if array.dtype.kind in "iub" else 3 * fill
            beyond = [(0, 0)] * array.ndim
            beyond[1] = (0, (full or length) - length)
            row[name] = numpy.pad(array, beyond, constant_values=rest)
        return row

    def judge(
        self, short: Sequence[Arrays], long: Sequence[Arrays], filled: Sequence[Sequence[Arrays]]
    ) -> bool:
        """Pad from now on if padded rows have the same answers as unpadded ones, and different
        contents have different answers. `short` and `long` ran apart; `filled` ran together, padded
        to the length of its last ones, which are the long rows.
        """
        outputs = _axes(short[0], long[0])
        if outputs is None or all(all_agree(short[0], other) for other in short[1:]):
            return False
        if not are_finite([*short, *long]):
            return False
        padding = Padding(dict.fromkeys(self.candidates, 0), outputs)
        for batched in filled:
            length = LONG if batched is filled[-1] else SHORT
            for alone, row in zip(long if length == LONG else short, batched, strict=True):
                cut = {n: padding.cut_back(n, row[n], length, LONG) for n in row}
                if not all_agree(alone, cut):
                    return False
        self.padding = padding
        return True


def _axes(short: Arrays, long: Arrays) -> dict[str, tuple[int, ...]] | None:
    """By output: which axes are as long as the input. None: what to cut is unknown."""
    outputs: dict[str, tuple[int, ...]] = {}
    for name, array in short.items():
        pairs = zip(array.shape, long[name].shape, strict=True)
        changed = [axis for axis, (one, other) in enumerate(pairs) if one != other]
        if any(array.shape[axis] != SHORT for axis in changed):
            return None  # longer with its input, but not as long
        outputs[name] = tuple(changed)
    return outputs


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
    return tuple(tensor.name for tensor in varying) if any(map(is_mask, varying)) else ()
