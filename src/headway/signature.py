"""What a model takes and gives on the wire, read from its type hints.

Rows of named tensors become a model's Python values and back; every mistake names its tensor.
It knows nothing of protocols: they only need `inputs`, `outputs` and the conversions.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

import msgspec
import numpy

from headway.errors import ConfigError, InvalidInput, ModelFailed
from headway.model import End, Model, Tensor, TensorModel, overrides

Array: TypeAlias = numpy.ndarray[Any, Any]
BYTES = "object"  # the numpy name for strings of any length
_SCALARS = {str: BYTES, bytes: BYTES, int: "int64", float: "float64", bool: "bool"}
_SEQUENCES = (list, tuple, Sequence, Iterable)
_WORDS = (1, 8, 32, 128)  # of sample texts, where the length matters


def array_of(value: Any, dtype: str) -> Array:
    """A JSON value as an array. Raises ValueError for what only resembles it: text for numbers,
    null for NaN, fractions for whole numbers, a number that the dtype cannot hold."""
    if dtype == BYTES:
        return numpy.asarray(value, dtype)
    wanted, found = numpy.dtype(dtype), numpy.asarray(value)
    if found.size and found.dtype.kind not in ("b" if wanted.kind == "b" else "iuf"):
        raise ValueError(f"{wanted} is expected")
    if wanted.kind != "b" and _has_bool(value):
        raise ValueError(f"{wanted} is expected, not true or false")
    if wanted.kind in "iu" and found.dtype.kind == "f":
        found = numpy.asarray(_whole(value))  # 2.0 is 2; as a float, a large neighbour loses digits
    with numpy.errstate(over="ignore", invalid="ignore"):
        array = found.astype(wanted)
    most = numpy.finfo(wanted).max if wanted.kind == "f" else 0
    is_held = numpy.abs(found) <= most if wanted.kind == "f" else array == found
    if not is_held.all():
        raise ValueError(f"a number is not {wanted}")
    return array


def _has_bool(value: Any) -> bool:
    """Among numbers, numpy takes true for 1."""
    if not isinstance(value, list):
        return isinstance(value, bool)
    kinds = set(map(type, value))
    return bool in kinds or (list in kinds and any(map(_has_bool, value)))


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(each) for each in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
    return int(value) if is_whole else value


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One tensor, and what one row of it is in Python."""

    tensor: Tensor
    hint: Any = None  # None: not known
    key: str | None = None  # the field of a record; None: the whole value

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def is_scalar(self) -> bool:
        return len(self.tensor.shape) == 1

    def column(self, array: Array) -> list[Any]:
        """One Python value for each row. Raises InvalidInput."""
        self._check_dtype(array)
        if self.is_scalar and array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]  # [n, 1] is how many clients write n scalars
        if not _fits(array.shape, self.tensor.shape):
            raise InvalidInput(
                f"input {self.name!r} has shape {list(array.shape)}; "
                f"{list(self.tensor.shape)} is expected"
            )
        if self._is_json:
            return [self._from_json(row, index) for index, row in enumerate(array.tolist())]
        if self.tensor.dtype == BYTES:
            is_text = self._is_text
            return [self._text(row, index, is_text) for index, row in enumerate(array.tolist())]
        if self.is_scalar or _is_sequence(self.hint):
            return array.tolist()  # type: ignore[no-any-return]  # of an array with axes: a list
        return list(array if array.flags.writeable else array.copy())  # rows are the model's own

    def stack(self, rows: Sequence[Any]) -> Array:
        """One array of all rows. Raises ModelFailed: it is the model that gave them."""
        try:
            array = self._stacked(rows)
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelFailed(
                f"output {self.name!r} is not {self.tensor.dtype}: {error}"
            ) from error
        if not _fits(array.shape, self.tensor.shape):
            raise ModelFailed(
                f"output {self.name!r} has shape {list(array.shape)}; "
                f"{list(self.tensor.shape)} was promised"
            )
        return array

    def decode(self, value: Any) -> Any:
        """A value that came as JSON, as the model wants it. Raises InvalidInput."""
        try:
            if self._is_array:
                array = array_of(value, self.tensor.array_dtype)
                if not _fits((1, *array.shape), self.tensor.shape):
                    raise ValueError(
                        f"shape {list(array.shape)}; {list(self.tensor.shape[1:])} is expected"
                    )
                return array
            if self.hint is None:
                return value
            return msgspec.convert(value, self.hint, dec_hook=_numpy_scalar)
        except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(f"input {self.name!r}: {error}") from error

    def json_schema(self) -> dict[str, Any]:
        """One value of it, for an OpenAPI page."""
        if self.hint is not None and not self._is_array:
            with suppress(TypeError):  # a kind that msgspec does not know
                return msgspec.json.schema(self.hint)
        schema = _json_schema(self.tensor.array_dtype)
        for axis in reversed(self.tensor.shape[1:]):
            limits = {} if axis == -1 else {"minItems": axis, "maxItems": axis}
            schema = {"type": "array", "items": schema, **limits}
        return schema

    def samples(self, *, varies: bool) -> list[Any]:
        """Typical values for a first look at the model's speed; none where they would mislead."""
        shape = self.tensor.shape[1:]
        if self.tensor.dtype == BYTES:
            texts = [" ".join(["word"] * words) for words in (_WORDS if varies else _WORDS[1:2])]
            values: list[Any] = [text if self._is_text else text.encode() for text in texts]
            return values if self.is_scalar else []
        if -1 in shape:
            return []
        row = numpy.ones(shape, self.tensor.array_dtype)
        return [row.tolist() if self.is_scalar or _is_sequence(self.hint) else row]

    @property
    def _is_text(self) -> bool:
        return bytes not in _alternatives(_innermost(self.hint))

    @property
    def _is_json(self) -> bool:
        """One text a row, of what has more parts than a tensor can say."""
        is_text = self.tensor.dtype == BYTES and self.is_scalar
        return is_text and (_is_sequence(self.hint) or bool(_record_parts(self.hint)))

    @property
    def _is_array(self) -> bool:
        return (
            not self.is_scalar
            and self.tensor.dtype != BYTES
            and not _is_sequence(self.hint)
            and get_origin(self.hint) not in (Union, UnionType)
        )

    def _check_dtype(self, array: Array) -> None:
        want = self.tensor.array_dtype
        if array.dtype.kind in "OSU" if want == BYTES else array.dtype == numpy.dtype(want):
            return
        raise InvalidInput(f"input {self.name!r} has dtype {array.dtype}, not {want}")

    def _text(self, row: Any, index: int, is_text: bool) -> Any:
        if isinstance(row, list):
            return [self._text(each, index, is_text) for each in row]
        if isinstance(row, str):
            return row if is_text else row.encode()
        if not isinstance(row, bytes):
            raise InvalidInput(f"input {self.name!r} row {index} is no text but {row!r:.40}")
        if not is_text:
            return row
        try:
            return row.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"input {self.name!r} row {index} is not UTF-8: {error}") from error

    def _from_json(self, row: Any, index: int) -> Any:
        try:
            return msgspec.json.decode(row, type=self.hint)
        except (msgspec.DecodeError, UnicodeError, TypeError, RecursionError) as error:
            raise InvalidInput(f"input {self.name!r} row {index}: {error}") from error

    def _stacked(self, rows: Sequence[Any]) -> Array:
        if self.tensor.dtype == BYTES:
            if not self.is_scalar:
                return numpy.array([_encoded(row) for row in rows], dtype=object)
            encode = msgspec.json.encode if self._is_json else _encoded_text
            array = numpy.empty(len(rows), dtype=object)
            array[:] = [encode(row) for row in rows]
            return array
        if rows and isinstance(rows[0], numpy.ndarray):
            return numpy.stack(rows).astype(self.tensor.array_dtype, copy=False)
        return numpy.array(rows, dtype=self.tensor.array_dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """All that goes in, or all that comes out: one value, or a record with a tensor per field."""

    fields: tuple[Field, ...]
    record: Callable[..., Any] | None = None

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
        return [self._made(row) for row in zip(*columns, strict=True)]

    def arrays(self, rows: Sequence[Any]) -> dict[str, Array]:
        if self.record is None:
            return {field.name: field.stack(rows) for field in self.fields}
        try:
            columns = {
                field.name: [_get(row, field.key or "") for row in rows] for field in self.fields
            }
        except (KeyError, AttributeError, TypeError) as error:
            raise ModelFailed(f"a result lacks a field: {error}") from error
        return {field.name: field.stack(columns[field.name]) for field in self.fields}

    def decode(self, value: Any) -> Any:
        if self.record is None:
            return self.fields[0].decode(value)
        names = {field.key for field in self.fields}
        if not isinstance(value, Mapping) or value.keys() != names:
            raise InvalidInput(f"an object with {sorted(map(str, names))} is expected")
        return self._made(field.decode(value[field.key]) for field in self.fields)

    def json_schema(self) -> dict[str, Any]:
        if self.record is None:
            return self.fields[0].json_schema()
        properties = {field.key or field.name: field.json_schema() for field in self.fields}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    def samples(self, *, varies: bool) -> list[Any]:
        columns = [field.samples(varies=varies) for field in self.fields]
        if self.record is None or not all(columns):
            return columns[0] if self.record is None else []
        count = max(map(len, columns))
        return [self._made(each[min(n, len(each) - 1)] for each in columns) for n in range(count)]

    def _made(self, parts: Iterable[Any]) -> Any:
        assert self.record is not None
        named = {
            field.key or field.name: part for field, part in zip(self.fields, parts, strict=True)
        }
        return self.record(**named)


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """Both sides of an item model, with the hints of the whole values (None where unknown)."""

    input: Side
    output: Side
    input_hint: Any = None
    output_hint: Any = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.input.tensors

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self.output.tensors


def signature_of(model: Model[Any, Any]) -> Signature:
    """From `inputs` and `outputs` where the class declares them, else from its hints."""
    takes, gives = _input_hint(model), _output_hint(model)
    return Signature(
        input=_side(model, "inputs", takes),
        output=_side(model, "outputs", gives),
        input_hint=takes,
        output_hint=gives,
    )


def _side(model: Model[Any, Any], which: str, hint: Any) -> Side:
    declared = getattr(model, which, ())
    if declared:
        return side_of(declared, hint)
    side = _derived(hint, which.removesuffix("s"))
    if side is None:
        raise ConfigError(_how_to_declare(type(model).__name__, which, hint))
    return side


def side_of(tensors: Sequence[Tensor], hint: Any = None) -> Side:
    """Declared tensors: one is the value itself, several are a dict of them."""
    if len(tensors) == 1:
        return Side((Field(tensors[0], hint),))
    return Side(tuple(Field(tensor, key=tensor.name) for tensor in tensors), record=dict)


def _how_to_declare(model: str, which: str, hint: Any) -> str:
    where = "prepare (or predict)" if which == "inputs" else "finish (or predict)"
    found = "it has no type hint" if hint is None else f"its hint says {_spelled(hint)}"
    name = which.removesuffix("s")
    return (
        f"{model}: its {which} cannot be derived from {where}: {found}. Either give it a hint "
        "(str, bytes, int, float, bool, list[float], a dataclass or TypedDict of those, "
        'Annotated[numpy.ndarray, headway.Tensor("x", "float32", (-1, 4))]), or declare on the '
        f'class, rows first: {which} = [headway.Tensor("{name}", "float32", (-1, 4))]'
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ParameterHints:
    """The types of a model's parameters: keyword-only arguments of its methods."""

    hints: Mapping[str, Any]

    @classmethod
    def of(cls, model: "Model[Any, Any] | TensorModel") -> "ParameterHints":
        hints: dict[str, Any] = {}
        for method in ("prepare", "predict", "stream"):
            if overrides(model, method):
                hints |= _keyword_hints(model, method)
        return cls(hints)

    def convert(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Numbers may come as text, as in a URL. What has no hint stays as it is."""
        converted = dict(given)
        for name in given.keys() & self.hints.keys():
            try:
                converted[name] = msgspec.convert(given[name], self.hints[name], strict=False)
            except (msgspec.ValidationError, TypeError, OverflowError) as error:
                raise InvalidInput(f"parameter {name!r}: {error}") from error
        return converted


# ---- reading hints


def _input_hint(model: Model[Any, Any]) -> Any:
    if overrides(model, "prepare"):
        return _parameter(model, "prepare")
    if overrides(model, "predict"):
        found = _element(_parameter(model, "predict"))
    else:
        found = _element(_parameter(model, "stream"))
    return _type_argument(model, 0) if found is None else found


def _output_hint(model: Model[Any, Any]) -> Any:
    if overrides(model, "finish"):
        return _known(_hints(model, "finish").get("return"))
    if overrides(model, "predict"):
        found = _element(_hints(model, "predict").get("return"))
        return _type_argument(model, 1) if found is None else found
    steps = _hints(model, "stream").get("return")
    chunk = _element(_first_argument(steps))
    chunks = [each for each in _alternatives(chunk) if each not in (None, NoneType, End)]
    return chunks[0] if len(chunks) == 1 else _type_argument(model, 1)


def _hints(model: "Model[Any, Any] | TensorModel", method: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(getattr(type(model), method), include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"{type(model).__name__}.{method}: bad type hint: {error}") from error


def _keyword_hints(model: "Model[Any, Any] | TensorModel", method: str) -> dict[str, Any]:
    """Only those are looked at: the arrays' may be names that only type checkers import."""
    function = inspect.unwrap(getattr(type(model), method))
    written = {
        each.name: each.annotation
        for each in inspect.signature(function).parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.annotation is not each.empty
    }
    names = getattr(function, "__globals__", {})
    try:
        return typing.get_type_hints(SimpleNamespace(__annotations__=written), names)
    except (NameError, TypeError) as error:
        raise ConfigError(f"{type(model).__name__}.{method}: bad type hint: {error}") from error


def _parameter(model: Model[Any, Any], method: str) -> Any:
    """The hint of its first argument; keywords are parameters, not values."""
    parameters = inspect.signature(getattr(model, method)).parameters.values()
    first = next((each.name for each in parameters if each.kind is not each.KEYWORD_ONLY), "")
    return _known(_hints(model, method).get(first))


def _type_argument(model: Model[Any, Any], index: int) -> Any:
    """In or Out of `class Mine(headway.Model[In, Out])`."""
    for kind in type(model).__mro__:
        for base in getattr(kind, "__orig_bases__", ()):
            if get_origin(base) is Model:
                return _known(get_args(base)[index])
    return None


def _element(hint: Any) -> Any:
    """What a batch consists of. An annotated array is rows already."""
    if _tensor_in(hint) is not None:
        return hint
    return _first_argument(hint) if _is_sequence(hint) else None


def _first_argument(hint: Any) -> Any:
    return _known(next(iter(get_args(hint)), None))


def _known(hint: Any) -> Any:
    return None if hint is Any or isinstance(hint, typing.TypeVar) else hint


def _derived(hint: Any, name: str) -> Side | None:
    if hint is None:
        return None
    field = _field(hint, name, key=None)
    if field is not None:
        return Side((field,))
    parts = _record_parts(hint)
    fields = [_field(each, key, key=key) for key, each in parts.items()]
    known = tuple(field for field in fields if field is not None)
    if not known or len(known) < len(fields):
        return None
    return Side(known, record=hint)


def _field(hint: Any, name: str, *, key: str | None) -> Field | None:
    tensor = _tensor_in(hint)
    if tensor is not None:
        return Field(tensor, _plain(hint) if tensor.dtype == BYTES else None, key)
    axes, inner = [-1], _plain(hint)
    while _is_sequence(inner):
        axes.append(-1)
        inner = _plain(_first_argument(inner))
    dtype = _dtype(inner)
    return None if dtype is None else Field(Tensor(name, dtype, tuple(axes)), hint, key)


def _dtype(kind: Any) -> str | None:
    if isinstance(kind, type) and issubclass(kind, numpy.generic):
        return numpy.dtype(kind).name
    return _SCALARS.get(kind) if isinstance(kind, type) else None


def _record_parts(hint: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint):
        return typing.get_type_hints(hint, include_extras=True)
    return {}


def _tensor_in(hint: Any) -> Tensor | None:
    if get_origin(hint) is Annotated:
        return next((each for each in hint.__metadata__ if isinstance(each, Tensor)), None)
    return None


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _is_sequence(hint: Any) -> bool:
    origin = get_origin(_plain(hint))
    return isinstance(origin, type) and origin in (*_SEQUENCES, Iterator)


def _innermost(hint: Any) -> Any:
    while _is_sequence(hint):
        hint = _first_argument(_plain(hint))
    return _plain(hint)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _spelled(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


# ---- rows


def _fits(shape: Sequence[int], want: Sequence[int]) -> bool:
    if len(shape) != len(want):
        return False
    return all(each in (-1, have) for have, each in zip(shape[1:], want[1:], strict=True))


def _numpy_scalar(kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, numpy.generic):
        return kind(value)
    raise NotImplementedError


def _json_schema(dtype: str) -> dict[str, Any]:
    """One element, with the limits that `array_of` holds it to."""
    if dtype == BYTES:
        return {"type": "string"}
    kind = numpy.dtype(dtype)
    match kind.kind:
        case "b":
            return {"type": "boolean"}
        case "i" | "u":
            whole = numpy.iinfo(kind)
            return {"type": "integer", "minimum": int(whole.min), "maximum": int(whole.max)}
        case _:
            most = float(numpy.finfo(kind).max)
            limits = {"minimum": -most, "maximum": most} if kind.itemsize < 8 else {}
            return {"type": "number", **limits}


def _get(row: Any, key: str) -> Any:
    return row[key] if isinstance(row, Mapping) else getattr(row, key)


def _encoded(row: Any) -> Any:
    if isinstance(row, list | tuple | numpy.ndarray):
        return [_encoded(each) for each in row]
    return _encoded_text(row)


def _encoded_text(text: Any) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise TypeError(f"{text!r:.40} is no text")
