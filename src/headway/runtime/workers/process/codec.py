"""Values as bytes, laid out so that arrays need not be touched: first a head, then their data.

Named arrays are described in the head and copied as they are; so are the arrays of a list of short
ones, such as the tokens of many texts. Anything else is pickled, with the data of the arrays in it
beside the pickle. Only between processes of ours: reading runs code.
"""

import itertools
import marshal
import pickle
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy

from headway.runtime.calling.runner import Rows

_ALIGN = 64
_ARRAYS, _PICKLE, _LIST = 0, 1, 2  # kinds of values
_HEAD_BYTES = struct.Struct("<I")
_OUT_OF_BAND_BYTES = 4096  # smaller ones are quicker inside the pickle
_PLAIN = frozenset(
    numpy.dtype(name).str
    for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
)
_DTYPES = {name: numpy.dtype(name) for name in _PLAIN}

Array = numpy.ndarray[Any, Any]


class Layout(NamedTuple):
    """The layout of a value: how many bytes it needs, and what goes where."""

    length: int
    head: bytes
    parts: list[tuple[int, Any]]  # offset, and an array, Rows or bytes


def layout_of(value: Any, beside: bytes = b"") -> Layout:
    """`beside`: sent along in the head. Raises what pickling raises."""
    if type(value) is list and _are_short(value):
        lengths = [len(array) for array in value]
        data = b"".join(value)  # faster than copying one by one
        return _laid_out([_LIST, beside, value[0].dtype.str, lengths], [len(data)], [data])
    described = _described(value) if type(value) is dict else None
    if described is None:
        return _pickled(value, beside)
    lengths = [array.nbytes for array in value.values()]
    return _laid_out([_ARRAYS, beside, *described], lengths, value.values())


def write(layout: Layout, into: Any) -> None:
    """Write the value into a buffer of at least `layout.length` bytes."""
    _HEAD_BYTES.pack_into(into, 0, len(layout.head))
    target = memoryview(into)
    target[4 : 4 + len(layout.head)] = layout.head
    for offset, part in layout.parts:
        if isinstance(part, Rows):
            numpy.concatenate(part.arrays, out=_array(part.shape, part.dtype, into, offset))
        elif isinstance(part, numpy.ndarray):
            _array(part.shape, part.dtype, into, offset)[...] = part
        else:
            target[offset : offset + len(part)] = part


def read(source: Any) -> tuple[Any, bytes]:
    """The value, and `beside`. Its arrays are views of `source`, and keep it alive."""
    (head_length,) = _HEAD_BYTES.unpack_from(source, 0)
    kind, beside, *head = marshal.loads(memoryview(source)[4 : 4 + head_length])
    offset = _aligned(4 + head_length)
    if kind == _ARRAYS:
        arrays = {}
        for name, dtype, shape in head:
            arrays[name] = array = _array(shape, _DTYPES[dtype], source, offset)
            offset = _aligned(offset + array.nbytes)
        return arrays, beside
    if kind == _LIST:
        dtype, lengths = head
        whole = _array((sum(lengths),), _DTYPES[dtype], source, offset)
        ends = list(itertools.accumulate(lengths))
        return [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)], beside
    view, parts = memoryview(source), []
    for length in head:
        parts.append(view[offset : offset + length])
        offset = _aligned(offset + length)
    return pickle.loads(parts[0], buffers=parts[1:]), beside


def _described(value: Mapping[Any, Any]) -> list[tuple[str, str, tuple[int, ...]]] | None:
    """None if a value is not an array of numbers, or has no name."""
    described = []
    for name, array in value.items():
        if type(array) not in (numpy.ndarray, Rows) or type(name) is not str:
            return None
        dtype = array.dtype.str
        if dtype not in _PLAIN:
            return None
        described.append((name, dtype, array.shape))
    return described


def _are_short(values: list[Any]) -> bool:
    """Are these rows of numbers of one type, so short that pickling would be most of the work?"""
    if not values or type(values[0]) is not numpy.ndarray:
        return False
    dtype, most = values[0].dtype, _OUT_OF_BAND_BYTES
    return dtype.str in _PLAIN and all(
        type(each) is numpy.ndarray
        and each.ndim == 1
        and each.dtype == dtype
        and each.nbytes < most
        and each.flags.c_contiguous
        for each in values
    )


def _pickled(value: Any, beside: bytes) -> Layout:
    buffers: list[memoryview] = []

    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _OUT_OF_BAND_BYTES:
            return True
        buffers.append(raw)
        return False

    if type(value) is dict:
        value = {
            name: numpy.concatenate(each.arrays) if type(each) is Rows else each
            for name, each in value.items()
        }
    data = pickle.dumps(value, 5, buffer_callback=keep_inside)
    parts = [data, *buffers]
    lengths = [len(part) for part in parts]
    return _laid_out([_PICKLE, beside, *lengths], lengths, parts)


def _laid_out(head: list[Any], lengths: list[int], parts: Any) -> Layout:
    described = marshal.dumps(head)
    offset = end = _aligned(4 + len(described))
    placed = []
    for length, part in zip(lengths, parts, strict=True):
        placed.append((offset, part))
        end = offset + length
        offset = _aligned(end)
    return Layout(end, described, placed)


def _array(shape: tuple[int, ...], dtype: Any, buffer: Any, offset: int) -> Array:
    return numpy.ndarray(shape, dtype, buffer, offset)


def _aligned(offset: int) -> int:
    return (offset + _ALIGN - 1) // _ALIGN * _ALIGN
