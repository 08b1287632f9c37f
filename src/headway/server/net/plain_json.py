"""What a model gives, as JSON can carry it."""

from typing import Any

import numpy


def plain_of(value: Any) -> Any:
    """For msgspec, where it does not know a kind. Raises NotImplementedError."""
    if isinstance(value, numpy.ndarray | numpy.generic):
        return value.tolist()
    if isinstance(value, str):  # of a class of its own, which says more than the text
        return str.__str__(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")
