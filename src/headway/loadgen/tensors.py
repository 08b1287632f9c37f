"""Tensors of v2 with values that a model may be asked about, as JSON or as bytes."""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.errors import ConfigError

_INTEGERS = {
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
}
_FLOATS = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
DTYPES: Mapping[str, type] = {**_INTEGERS, **_FLOATS, "BOOL": np.bool_}  # but BYTES
_TEXT = (
    "the time between two trains is short enough when nobody on the platform looks at a clock "
    "and long enough when every seat is taken so that no one has to stand for the whole ride"
)
_USUAL_WORDS = 16
_MOST_VALUES = 2**26  # of a tensor, unless it is asked for by its shape
_LARGEST = 100  # of whole numbers: most models take these, as class numbers or tokens


def words(rng: np.random.Generator, length: int | None) -> str:
    """A text with that many words."""
    return " ".join(rng.choice(_TEXT.split(), length or _USUAL_WORDS))


@dataclass(frozen=True, slots=True)
class TensorInput:
    name: str
    datatype: str
    shape: tuple[int, ...]  # -1: as long as the request's length says

    @classmethod
    def of(
        cls, about: dict[str, Any], *, rows: int, shape: tuple[int, ...] | None
    ) -> "TensorInput":
        """From the model's metadata. The first axis without a length is that of the rows."""
        name, datatype = about["name"], about["datatype"]
        if datatype not in (*DTYPES, "BYTES"):
            raise ConfigError(f"the input {name} is {datatype}, for which bench makes no values")
        declared = tuple(about["shape"])
        if shape is not None:
            if rows not in (1, shape[0]):
                raise ConfigError(f"--shape gives {name} {shape[0]} rows", field="--rows")
            return cls(name, datatype, shape)
        if declared and declared[0] == -1:
            declared = (rows, *declared[1:])
        elif rows != 1:
            raise ConfigError(f"the input {name} has no axis of rows: {declared}", field="--rows")
        if math.prod(abs(each) for each in declared) > _MOST_VALUES:
            raise ConfigError(
                f"the input {name} has the shape {list(declared)}, more than {_MOST_VALUES} values",
                field="--shape",
            )
        return cls(name, datatype, declared)

    @property
    def has_length(self) -> bool:
        """Does a request's length change it?"""
        return -1 in self.shape or self.datatype == "BYTES"

    def values(self, rng: np.random.Generator, length: int | None) -> NDArray[Any]:
        """`length`: of every axis that has none, and of a text in words."""
        if -1 in self.shape and length is None:
            raise ConfigError(
                f"the input {self.name} has the shape {list(self.shape)}: --shape "
                f"{self.name}:… or --lengths says how long",
                field="--shape",
            )
        shape = tuple(length or 1 if each == -1 else each for each in self.shape)
        if self.datatype in _FLOATS:
            return rng.standard_normal(shape).astype(_FLOATS[self.datatype])
        if self.datatype == "BYTES":
            texts = [words(rng, length).encode() for _ in range(int(np.prod(shape)))]
            return np.array(texts, object).reshape(shape)
        if self.datatype == "BOOL":
            return rng.integers(0, 2, shape).astype(np.bool_)
        return rng.integers(0, _LARGEST, shape).astype(_INTEGERS[self.datatype])


def json_body(
    inputs: Sequence[TensorInput], name: str, rng: np.random.Generator, length: int | None
) -> tuple[bytes, bytes]:
    """A mark of its answer, and the body of a request."""
    tensors = []
    for each in inputs:
        values = each.values(rng, length)
        flat = values.ravel().tolist()
        data = [text.decode() for text in flat] if each.datatype == "BYTES" else flat
        tensors.append(
            {
                "name": each.name,
                "shape": list(values.shape),
                "datatype": each.datatype,
                "data": data,
            }
        )
    body = {"id": name, "inputs": tensors}
    return f'"{name}"'.encode(), json.dumps(body, separators=(",", ":")).encode()


def binary_body(
    inputs: Sequence[TensorInput], name: str, rng: np.random.Generator, length: int | None
) -> tuple[bytes, bytes, bytes]:
    """A mark of its answer, the JSON at the head of the body, and the tensors behind it."""
    tensors, parts = [], []
    for each in inputs:
        values = each.values(rng, length)
        data = as_bytes(values, each.datatype)
        tensors.append(
            {
                "name": each.name,
                "shape": list(values.shape),
                "datatype": each.datatype,
                "parameters": {"binary_data_size": len(data)},
            }
        )
        parts.append(data)
    head = {"id": name, "parameters": {"binary_data_output": True}, "inputs": tensors}
    return f'"{name}"'.encode(), json.dumps(head, separators=(",", ":")).encode(), b"".join(parts)


def as_bytes(values: NDArray[Any], datatype: str) -> bytes:
    """In the order of v2: little-endian, row by row; texts with their lengths before them."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(each)) + each for each in values.ravel().tolist())
    return values.astype(values.dtype.newbyteorder("<")).tobytes()
