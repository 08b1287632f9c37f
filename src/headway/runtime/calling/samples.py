"""Rows made from a model's signature, to try it out before traffic; and whether two answers to the
same row are the same, up to rounding."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headway.model import Tensor

Arrays = Mapping[str, Any]

TOLERANCE = 1e-3  # of the largest value
_SHORT_TOLERANCE = 2e-2  # half precision has few digits
_MASK = re.compile(r"(^|_)mask$")
_MASK_TYPES = frozenset(["bool", "int8", "int32", "int64", "float32"])
_LARGE = 4  # from this content on, numbers are large


class Attempt(NamedTuple):
    """The properties of made-up rows."""

    length: int = 5  # of axes that vary: no power of two
    below: int = 2  # for indices: 0 and 1 are in nearly every table
    is_positive: bool = False  # for what takes a logarithm or a root


ATTEMPTS = (
    Attempt(),
    Attempt(32),
    Attempt(224),
    Attempt(below=1, is_positive=True),
    Attempt(32, below=1, is_positive=True),
)


class SampleRows:
    """Rows of one model, each by the number of its content: indices that are all 0, all 1, and
    mixed ones. A mask marks everything as real."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors

    def row(self, content: int, attempt: Attempt) -> dict[str, Any]:
        import numpy

        rng = numpy.random.default_rng([attempt.length, content])
        row = {}
        for tensor in self._tensors:
            lengths = (attempt.length if axis == -1 else axis for axis in tensor.shape[1:])
            row[tensor.name] = _array(rng, tensor, (1, *lengths), content, attempt)
        return row


def _array(rng: Any, tensor: Tensor, shape: tuple[int, ...], content: int, attempt: Attempt) -> Any:
    import numpy

    dtype = numpy.dtype(tensor.array_dtype)
    if is_mask(tensor):
        return numpy.ones(shape, dtype)
    if dtype.kind == "O":
        return numpy.full(shape, str(content).encode(), dtype)  # a text, and a number
    if dtype.kind in "iub":
        drawn = rng.integers(0, attempt.below, shape)
        return (numpy.full(shape, content % attempt.below) if content < 2 else drawn).astype(dtype)
    numbers = rng.standard_normal(shape)
    # So large that what is compared with the largest of all rows comes to nothing.
    numbers = 500 * numbers + 300 if content >= _LARGE else numbers
    return (numpy.abs(numbers) if attempt.is_positive else numbers).astype(dtype)


def is_mask(tensor: Tensor) -> bool:
    is_named = _MASK.search(tensor.name.lower()) is not None
    return is_named and len(tensor.shape) == 2 and tensor.dtype in _MASK_TYPES


def are_finite(answers: Sequence[Arrays]) -> bool:
    """Are all numbers finite? Others hide differences."""
    import numpy

    arrays = [array for answer in answers for array in map(numpy.asarray, answer.values())]
    return all(numpy.isfinite(array).all() for array in arrays if array.dtype.kind == "f")


def deciding(answer: Arrays) -> Arrays:
    """The outputs by which two answers are compared: numbers if there are any, because a class
    may change if two are nearly equal."""
    import numpy

    floats = {n: array for n, array in answer.items() if numpy.asarray(array).dtype.kind == "f"}
    return floats or answer


def all_agree(one: Arrays, other: Arrays, *, slack: float = 1.0) -> bool:
    return not differing(one, other, slack=slack)


def differing(one: Arrays, other: Arrays, *, slack: float = 1.0) -> list[str]:
    """The outputs that are not the same. `slack`: times the tolerance that is usual."""
    return [
        name
        for name, array in one.items()
        if name not in other or not _agree(array, other[name], slack)
    ]


def _agree(one: Any, other: Any, slack: float) -> bool:
    import numpy

    one, other = numpy.asarray(one), numpy.asarray(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return bool((one == other).all())
    is_finite = numpy.isfinite(one)
    if not numpy.array_equal(one[~is_finite], other[~is_finite], equal_nan=True):
        return False
    tolerance = slack * (_SHORT_TOLERANCE if one.dtype.itemsize == 2 else TOLERANCE)
    numbers = one[is_finite].astype(numpy.float64)
    error = numpy.abs(numbers - other[is_finite].astype(numpy.float64))
    scale = float(numpy.abs(numbers).max(initial=0.0)) or 1.0
    return float(error.max(initial=0.0)) <= tolerance * scale
