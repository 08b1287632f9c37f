"""The weights in a torch checkpoint, read without torch and without unpickling.

A checkpoint of before torch 1.6 is five pickles, then the numbers of one storage after another. A
pickle says which numbers are which tensor; it is only read, word by word, and nothing in it is
made or called.
"""

import pickletools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy

from headway.errors import ConfigError

Array = numpy.ndarray[Any, Any]
_COUNTERS = ".num_batches_tracked"  # whole numbers of 8 bytes, of use in training only


class _Tensor(NamedTuple):
    name: str
    storage: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in numbers: torch keeps them in whatever order they came


def read_checkpoint(path: Path) -> dict[str, Array]:
    """The weights by name. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            for _ in range(3):  # a magic number, a version, the sizes of C's types
                list(pickletools.genops(file))
            tensors = {each.storage: each for each in _tensors(file)}
            keys = [str(word) for code, word, _ in pickletools.genops(file) if _is_text(code)]
            return {tensors[key].name: _numbers(file, tensors[key]) for key in keys}
    except (OSError, ValueError, TypeError, LookupError, struct.error) as error:
        raise ConfigError(f"{path} is not the checkpoint it should be: {error}") from error


def _tensors(file: BinaryIO) -> Iterator[_Tensor]:
    """Each is written as its name, its storage's key, a mark, its offset, shape and strides."""
    texts: list[str] = []
    numbers: list[int] = []
    tuples: list[tuple[int, ...]] = [(), ()]  # shape and strides; complete until the next mark
    for code, word, _ in pickletools.genops(file):
        if _is_text(code) and word not in ("storage", "cpu"):
            texts.append(str(word))
        elif code.name == "BINPERSID":
            numbers, tuples = [], []
        elif "BININT" in code.name:
            numbers.append(int(word or 0))
        elif "TUPLE" in code.name and len(tuples) < 2:
            tuples.append(tuple(numbers if tuples else numbers[1:]))
            numbers = []
            if len(tuples) == 2:
                yield _Tensor(texts[-2], texts[-1], *tuples)


def _numbers(file: BinaryIO, tensor: _Tensor) -> Array:
    dtype = numpy.dtype("<i8" if tensor.name.endswith(_COUNTERS) else "<f4")
    (count,) = struct.unpack("<q", file.read(8))
    data = file.read(count * dtype.itemsize)
    strides = [step * dtype.itemsize for step in tensor.strides]
    return numpy.ndarray(tensor.shape, dtype, data, strides=strides)  # checks that it fits


def _is_text(code: Any) -> bool:
    return bool(code.name == "BINUNICODE")
