"""Takes type hints apart. It looks at hints, never at values."""

import dataclasses
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin

import numpy

from headway.model import Tensor

_SEQUENCES = (list, tuple, Sequence, Iterable, Iterator)


def known(hint: Any) -> Any:
    """None where the hint says nothing."""
    is_silent = hint in (Any, object) or isinstance(hint, typing.TypeVar)
    return None if is_silent else hint


def plain(hint: Any) -> Any:
    """The hint without its annotations."""
    while get_origin(hint) in (Annotated, NotRequired, Required):
        hint = get_args(hint)[0]
    return hint


def first_argument(hint: Any) -> Any:
    return known(next(iter(get_args(hint)), None))


def is_sequence(hint: Any) -> bool:
    """Whether it is a sequence with a known element type: a bare `list` is not."""
    return get_origin(plain(hint)) in _SEQUENCES


def is_batch(hint: Any) -> bool:
    """Whether a method with this hint takes or gives a batch: any list, or an array of rows."""
    hint = plain(hint)
    origin = get_origin(hint) or hint
    is_array = isinstance(origin, type) and issubclass(origin, numpy.ndarray)
    return known(hint) is None or origin in _SEQUENCES or is_array


def innermost(hint: Any) -> Any:
    while is_sequence(hint):
        hint = first_argument(plain(hint))
    return plain(hint)


def is_mixed(hint: Any) -> bool:
    """Whether it is a tuple of several types: no tensor has two."""
    hint = plain(hint)
    places = [each for each in get_args(hint) if each is not Ellipsis]
    return get_origin(hint) is tuple and len(set(places)) > 1


def alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def admits(hint: Any, kind: type) -> bool:
    """Whether it is this class, or one of several that may be."""
    return kind in alternatives(plain(hint))


def is_nothing(hint: Any) -> bool:
    return hint is None or hint is NoneType


def is_record(hint: Any) -> bool:
    is_class = isinstance(hint, type)
    return is_class and (dataclasses.is_dataclass(hint) or typing.is_typeddict(hint))


def record_parts(hint: Any) -> dict[str, Any]:
    """The fields of a dataclass or TypedDict that callers give; none of anything else."""
    if not is_record(hint):
        return {}
    hints = typing.get_type_hints(hint, include_extras=True)
    if dataclasses.is_dataclass(hint):
        given = [each.name for each in dataclasses.fields(hint) if each.init]
        return {name: hints[name] for name in given}
    return hints


def optional_parts(hint: Any) -> frozenset[str]:
    """The names of the record's fields that may be left out."""
    if typing.is_typeddict(hint):
        return frozenset(hint.__optional_keys__)
    if not dataclasses.is_dataclass(hint):
        return frozenset()
    missing = dataclasses.MISSING
    return frozenset(
        each.name
        for each in dataclasses.fields(hint)
        if each.default is not missing or each.default_factory is not missing
    )


def tensor_in(hint: Any) -> Tensor | None:
    if get_origin(hint) is Annotated:
        return next((each for each in hint.__metadata__ if isinstance(each, Tensor)), None)
    return None


def parts_of(hint: Any) -> Iterator[Any]:
    """The hint and the hints inside it; not the fields of its classes."""
    yield hint
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        arguments = (arguments[0], *hint.__metadata__)
    for each in arguments:
        yield from parts_of(each)


def spelled(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def get(row: Any, key: str) -> Any:
    """A field of any kind of record."""
    return row[key] if isinstance(row, Mapping) else getattr(row, key)
