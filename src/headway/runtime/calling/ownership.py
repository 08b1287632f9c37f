"""Ownership of data: values that pass between callers and a model are copied on the way.

A model may write into what it is given and go on writing into what it has returned. Plain data is
copied: builtin containers, arrays, tensors, and classes that declare their fields (dataclasses and
their like). What cannot change needs no copy, nor does a large array that no other code can reach.
An object of any other class is passed as it is: what belongs to it cannot be known.
"""

import array
import collections
import copy
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_IMMUTABLE = frozenset([type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis)])
_SETS = frozenset([set, frozenset])  # what is hashable counts as immutable
# Below, a copy costs less than a look at what else might hold the array.
_LARGE_BYTES = 2**16

_SMALL_BYTES = 32 * 2**10


def own(value: Any) -> Any:
    """A copy for one owner alone. A value that cannot be copied is returned unchanged."""
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    try:
        # Most values are flat, or hold flat ones: these take this short way.
        if kind is dict:
            if (copied := _copied_nest(value, value.values())) is not None:
                return copied
        elif kind is list:
            if (copied := _copied_nest(value, value)) is not None:
                return copied
        elif kind is _ndarray() and not value.dtype.hasobject:
            return _copied(value)
        return _Copying().whole(value)
    except BaseException:  # noqa: BLE001  user code: how a class of theirs is copied
        return value


def _copied(array: Any) -> Any:
    """A small one is copied as bytes: numpy gives the interpreter's lock away for more than 500
    numbers, and would then have to wait for it beside a busy event loop."""
    if array.nbytes <= _SMALL_BYTES and array.flags.c_contiguous:
        try:
            return _ndarray()(array.shape, array.dtype, bytearray(array.data))
        except (ValueError, BufferError):  # a dtype that buffers do not support: dates
            pass
    return array.copy()


def _copied_nest(nest: Any, members: Iterable[Any]) -> Any:
    """A flat list or dict, or one of flat ones. None: a member is more than that, or occurs
    twice."""
    copied = nest.copy()
    if _IMMUTABLE.issuperset(map(type, members)):
        return copied
    seen = set()
    for key, member in nest.items() if type(nest) is dict else enumerate(nest):
        kind = type(member)
        if kind in _IMMUTABLE:
            continue
        if kind is list:
            is_flat = _IMMUTABLE.issuperset(map(type, member))
        elif kind is dict:
            is_flat = _IMMUTABLE.issuperset(map(type, member.values()))
        else:
            return None
        if not is_flat or id(member) in seen:
            return None
        seen.add(id(member))
        copied[key] = member.copy()
    return copied


def own_all(values: list[Any]) -> list[Any]:
    """A new list of copies, each for an owner of its own."""
    if _IMMUTABLE.issuperset(map(type, values)):
        return values.copy()
    return [own(value) for value in values]


def own_results(results: Any) -> list[Any]:
    """`own_all` for the results of a model: a sequence, or an array of rows."""
    if type(results) is not list:
        ndarray = _ndarray()
        is_array = ndarray is not None and isinstance(results, ndarray)
        return list(own(results)) if is_array else own_all(list(results))
    is_shared = sys.getrefcount(results) > _FRESH
    if _IMMUTABLE.issuperset(map(type, results)):
        return results.copy()
    if is_shared or _ndarray() not in set(map(type, results)):
        return [own(result) for result in results]
    return [
        results[place] if _is_unreachable(results, place) else own(results[place])
        for place in range(len(results))
    ]


def own_outputs(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """`own_results` for named arrays."""
    if type(outputs) is not dict or sys.getrefcount(outputs) > _FRESH:
        return {name: own(array) for name, array in outputs.items()}
    return {
        name: outputs[name] if _is_unreachable(outputs, name) else own(outputs[name])
        for name in outputs
    }


def _is_unreachable(container: Any, key: Any) -> bool:
    """Does only this container hold a large array and its memory? A view, a memoryview or a
    tensor of its memory holds the array; a weak reference alone does not show in the count."""
    if type(container[key]) is not _ndarray() or container[key].nbytes < _LARGE_BYTES:
        return False
    return bool(
        container[key].flags.owndata
        and container[key].base is None
        and not container[key].dtype.hasobject
        and sys.getrefcount(container[key]) <= _FRESH_INSIDE
        and not weakref.getweakrefcount(container[key])
    )


def _ndarray() -> Any:
    """The array class; None if numpy was not imported: then there are no arrays."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else getattr(numpy, "ndarray", None)


class _Copying:
    """One value on its way. Lists and dicts are walked without recursion: JSON may be nested
    deeper than Python's stack. What occurs twice, or contains itself, does so in the copy."""

    def __init__(self) -> None:
        self._copies: dict[int, Any] = {}  # by the id of the original, which its holder keeps
        self._todo: list[Any] = []  # copies that still contain original members

    def whole(self, value: Any) -> Any:
        copied = self._one(value)
        while self._todo:
            self._fill(self._todo.pop())
        return copied

    def _fill(self, container: Any) -> None:
        if isinstance(container, dict):
            if not _IMMUTABLE.issuperset(map(type, container.values())):
                for name, member in container.items():
                    if type(member) not in _IMMUTABLE:
                        container[name] = self._one(member)
        elif not _IMMUTABLE.issuperset(map(type, container)):
            for place, member in enumerate(container):
                if type(member) not in _IMMUTABLE:
                    container[place] = self._one(member)

    def _one(self, value: Any) -> Any:
        kind = type(value)
        if kind in _IMMUTABLE:
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        if kind is list or kind is dict:
            copied: Any = value.copy()
            self._todo.append(copied)
        elif kind is _ndarray() and not value.dtype.hasobject:
            copied = _copied(value)
        elif isinstance(value, tuple):
            copied = self._tuple(value)
        else:
            copied = self._other(value)
        self._copies[id(value)] = copied
        return copied

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        if _IMMUTABLE.issuperset(map(type, value)):
            return value
        members = [self._one(member) for member in value]
        return tuple.__new__(type(value), members)  # a named tuple's, too

    def _other(self, value: Any) -> Any:
        kind = type(value)
        if kind in _SETS or kind is bytearray or kind is array.array:
            return copy.copy(value)
        if kind is memoryview:
            return _memory_of(value)
        if isinstance(value, dict | list | collections.deque):
            members = copy.copy(value)
            self._todo.append(members)
            return members
        if isinstance(value, collections.UserDict):
            copied = copy.copy(value)
            copied.data = self._one(value.data)
            return copied
        if (names := _fields(kind)) is not None:
            return self._record(value, names)
        return self._array(value)

    def _record(self, value: Any, names: list[str]) -> Any:
        copied = copy.copy(value)
        for name in names:
            member = getattr(value, name, None)
            if type(member) not in _IMMUTABLE:
                object.__setattr__(copied, name, self._one(member))  # a frozen one's, too
        return copied

    def _array(self, value: Any) -> Any:
        numpy: Any = sys.modules.get("numpy")
        torch: Any = sys.modules.get("torch")
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.void):
            copied = value.copy()
            if value.dtype.kind == "O" and value.ndim:
                self._fill_objects(copied.reshape(-1))
            for name, member in getattr(value, "__dict__", {}).items():  # a subclass has more
                copied.__dict__[name] = self._one(member)
            return copied
        tensor = getattr(torch, "Tensor", None)
        is_tensor = tensor is not None and isinstance(value, tensor)
        return value.clone() if is_tensor else value

    def _fill_objects(self, flat: Any) -> None:
        members = flat.tolist()
        if not _IMMUTABLE.issuperset(map(type, members)):
            for place, member in enumerate(members):
                if type(member) not in _IMMUTABLE:
                    flat[place] = self._one(member)


def _fields(kind: type) -> list[str] | None:
    """The fields of a class that declares them: a dataclass, or one of msgspec, attrs, pydantic."""
    for declared in ("__dataclass_fields__", "__struct_fields__", "__pydantic_fields__"):
        if (names := getattr(kind, declared, None)) is not None:
            return list(names)
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else [each.name for each in attributes]


def _memory_of(view: memoryview) -> memoryview:
    if view.readonly and type(view.obj) is bytes:
        return view
    copied = memoryview(bytearray(view.tobytes()))
    as_before: Any = copied.cast
    return copied if view.format == "B" and view.ndim == 1 else as_before(view.format, view.shape)


# ---- the number of references to an object without other holders: measured, because it depends on
# the interpreter; a number that is too small means a needless copy, never a shared array


def _references(container: Any) -> int:
    return sys.getrefcount(container)


def _member_references(container: Any) -> int:
    return sys.getrefcount(container["y"])


def _as_called(count: Callable[[Any], int]) -> int:
    container = {"y": object()}  # held by a variable of the caller's, as the model's results are
    return count(container)


_FRESH = _as_called(_references)
_FRESH_INSIDE = _as_called(_member_references)
