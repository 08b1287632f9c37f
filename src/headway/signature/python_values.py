"""All inputs, or all outputs, of a model over Python values."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy

from headway.errors import InvalidInput, ModelFailed, called
from headway.model import JSON, Tensor
from headway.signature.arrays import BYTES, Array
from headway.signature.fields import Field
from headway.signature.hints import (
    first_argument,
    get,
    is_mixed,
    is_sequence,
    known,
    optional_parts,
    plain,
    record_parts,
    tensor_in,
)
from headway.signature.values import Values, values_of

_SCALARS = {str: BYTES, bytes: BYTES, int: "int64", float: "float64", bool: "bool"}


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """The inputs or the outputs: a single value, or a record with a tensor for each field."""

    fields: tuple[Field, ...]
    record: Callable[..., Any] | None = None
    hint: Any = None
    # Of JSON, from the hint; None: field by field, as an array's dtype and shape need.
    whole: Values | None = None
    codec: Values = dataclasses.field(init=False)
    _kinds: tuple[type, ...] = dataclasses.field(init=False)  # that a value may be of

    def __post_init__(self) -> None:
        is_text = self.record is None and plain(self.hint) in (str, bytes)
        object.__setattr__(self, "_kinds", (str, bytes) if is_text else (object,))
        codec = ByField(self.fields, self.record) if self.whole is None else self.whole
        object.__setattr__(self, "codec", codec)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(field.tensor for field in self.fields)

    def values(self, arrays: Mapping[str, Array]) -> list[Any]:
        names = {field.name for field in self.fields}
        if arrays.keys() != names:
            raise InvalidInput(f"the inputs are {sorted(names)}, not {sorted(arrays)}")
        columns = [field.column(arrays[field.name]) for field in self.fields]
        rows = {len(column) for column in columns}
        if len(rows) != 1 or not all(rows):
            shapes = {name: list(array.shape) for name, array in arrays.items()}
            raise InvalidInput(f"every input needs the same number of rows (at least 1): {shapes}")
        if self.record is None:
            return columns[0]
        return [self.made(row) for row in zip(*columns, strict=True)]

    def arrays(self, rows: Sequence[Any]) -> dict[str, Array]:
        if self.record is None:
            return {field.name: field.stack(rows) for field in self.fields}
        try:
            columns = {
                field.name: [get(row, field.key or "") for row in rows] for field in self.fields
            }
        except (KeyError, AttributeError, TypeError) as error:
            raise ModelFailed(f"a result lacks a field: {error}") from error
        return {field.name: field.stack(columns[field.name]) for field in self.fields}

    def check(self, result: Any) -> None:
        """JSON would write any value where a text was promised. Raises ModelFailed."""
        if not issubclass(type(result), self._kinds):
            kind = type(result).__name__
            raise ModelFailed(f"output {self.fields[0].name!r} is not a text but of type {kind}")

    def decode(self, value: Any) -> Any:
        """A value that came as JSON, as the model wants it. Raises InvalidInput."""
        return self.codec.decode(value)

    def json_schema(self) -> dict[str, Any]:
        return self.codec.schema()

    def samples(self, *, varies: bool) -> list[Any]:
        columns = [field.samples(varies=varies) for field in self.fields]
        if self.record is None or not all(columns):
            return columns[0] if self.record is None else []
        count = max(map(len, columns))
        return [self.made(each[min(n, len(each) - 1)] for each in columns) for n in range(count)]

    def made(self, parts: Iterable[Any]) -> Any:
        assert self.record is not None
        named = {
            field.key or field.name: part for field, part in zip(self.fields, parts, strict=True)
        }
        return self.record(**named)


class ByField:
    """The JSON codec of a side that has arrays in it: each field checks its own."""

    def __init__(self, fields: Sequence[Field], record: Callable[..., Any] | None) -> None:
        self._fields, self._record = fields, record
        self._keys = [str(field.key) for field in fields]
        optional = optional_parts(record)
        self._needed = [name for name in self._keys if name not in optional]

    def decode(self, value: Any) -> Any:
        if self._record is None:
            return self._fields[0].decode(value)
        if not isinstance(value, Mapping):
            raise InvalidInput(f"an object is expected, with {', '.join(self._keys)}")
        for name in value:
            if name not in self._keys:
                raise InvalidInput(f"{called(name)} is unknown; there are {', '.join(self._keys)}")
        for name in self._needed:
            if name not in value:
                raise InvalidInput(f"{called(name)} is missing")
        given = [field for field in self._fields if field.key in value]
        return self._record(**{str(each.key): each.decode(value[each.key]) for each in given})

    def decode_form(self, value: Any) -> Any:
        return self.decode(value)

    def read(self, text: bytes) -> Any:
        return self.decode(msgspec.json.decode(text))

    def schema(self) -> dict[str, Any]:
        if self._record is None:
            return self._fields[0].json_schema()
        properties = {field.key or field.name: field.json_schema() for field in self._fields}
        return {
            "type": "object",
            "properties": properties,
            "required": self._needed,
            "additionalProperties": False,
        }


def side_of(tensors: Sequence[Tensor], hint: Any = None) -> Side:
    """Declared tensors: one is the value itself, several are a dict of them."""
    if len(tensors) == 1:
        field = Field.of(tensors[0], hint)
        return Side((field,), hint=hint, whole=field.values)
    fields = tuple(Field.of(tensor, key=tensor.name) for tensor in tensors)
    return Side(fields, record=dict, hint=hint)


def derived_side(hint: Any, name: str) -> Side:
    """The side that a hint describes. If it describes no tensors, each row is one text of JSON."""
    field = _field(hint, name)
    if field is not None:
        return Side((field,), hint=hint, whole=field.values)
    fields = _record_fields(hint)
    if fields:
        has_arrays = any(field.is_array for field in fields)
        return Side(
            fields, record=hint, hint=hint, whole=None if has_arrays else values_of(hint, name)
        )
    values = values_of(hint, name)
    carrier = Tensor(name, BYTES, (-1,), content_type=JSON)
    return Side((Field(carrier, hint, values=values),), hint=hint, whole=values)


def _record_fields(hint: Any) -> tuple[Field, ...]:
    """None unless every field is a tensor that callers must give, or can."""
    found = []
    if optional_parts(hint) and not hasattr(hint, "__dataclass_fields__"):
        return ()  # of a TypedDict; a row of tensors has all of its keys
    for key, each in record_parts(hint).items():
        field = _field(each, key, key)
        if field is None:
            return ()
        found.append(field)
    return tuple(found)


def _field(hint: Any, name: str, key: str | None = None) -> Field | None:
    """None: no tensor can express it."""
    tensor = tensor_in(hint)
    if tensor is not None:
        return Field.of(tensor, plain(hint) if tensor.dtype == BYTES else None, key)
    tensor = _tensor(hint, name)
    return None if tensor is None else Field.of(tensor, hint, key)


def _tensor(hint: Any, name: str) -> Tensor | None:
    axes, inner = [-1], plain(hint)
    while is_sequence(inner):
        if is_mixed(inner):
            return None
        axes.append(-1)
        inner = plain(first_argument(inner))
    dtype = _dtype(inner)
    return None if dtype is None else Tensor(name, dtype, tuple(axes))


def _dtype(kind: Any) -> str | None:
    if known(kind) is None or not isinstance(kind, type):
        return None
    if issubclass(kind, numpy.generic):
        return numpy.dtype(kind).name
    return _SCALARS.get(kind)
