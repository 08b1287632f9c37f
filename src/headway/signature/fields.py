"""One tensor of a model over Python values: converts its rows to values and back."""

import dataclasses
from collections.abc import Sequence
from types import UnionType
from typing import Any, Union, get_origin

import msgspec
import numpy

from headway.errors import HeadwayError, InvalidInput, ModelFailed, called
from headway.model import JSON, Tensor
from headway.signature.arrays import BYTES, Array, array_of, fits, row_schema
from headway.signature.foreign import encode_plain
from headway.signature.hints import alternatives, innermost, is_sequence, record_parts
from headway.signature.values import Values, values_of

_WORDS = (1, 8, 32, 128)  # of sample texts, where the length matters


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A tensor, and the Python type of one row of it."""

    tensor: Tensor
    hint: Any = None  # None: not known
    key: str | None = None  # the field of a record; None: the whole value
    values: Values | None = None  # of one row; None: an array, or any value

    @classmethod
    def of(cls, tensor: Tensor, hint: Any = None, key: str | None = None) -> "Field":
        """Raises ConfigError."""
        field = cls(tensor, hint, key)
        if hint is None or field.is_array:
            return field
        return dataclasses.replace(field, values=values_of(hint, tensor.name))

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def is_scalar(self) -> bool:
        return len(self.tensor.shape) == 1

    @property
    def is_json(self) -> bool:
        """Whether each row is a text of JSON, for values that tensors cannot express."""
        if self.tensor.content_type == JSON:
            return True
        is_text = self.tensor.dtype == BYTES and self.is_scalar
        return is_text and (is_sequence(self.hint) or bool(record_parts(self.hint)))

    @property
    def is_array(self) -> bool:
        return (
            not self.is_scalar
            and self.tensor.dtype != BYTES
            and not is_sequence(self.hint)
            and get_origin(self.hint) not in (Union, UnionType)
        )

    def column(self, array: Array) -> list[Any]:
        """A Python value for each row. Raises InvalidInput."""
        self._check_dtype(array)
        if self.is_scalar and array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]  # [n, 1] is how many clients write n scalars
        if not fits(array.shape, self.tensor.shape):
            raise InvalidInput(
                f"{called(self.name)} has shape {list(array.shape)}; "
                f"{list(self.tensor.shape)} is expected"
            )
        if self.is_json:
            return [self._from_json(row, index) for index, row in enumerate(array.tolist())]
        if self.tensor.dtype == BYTES:
            is_text = self._is_text
            return [self._text(row, index, is_text) for index, row in enumerate(array.tolist())]
        if self.is_scalar or is_sequence(self.hint):
            return array.tolist()  # type: ignore[no-any-return]  # of an array with axes: a list
        return list(array if array.flags.writeable else array.copy())  # rows are the model's own

    def stack(self, rows: Sequence[Any]) -> Array:
        """An array of all rows. Raises ModelFailed, because the rows are the model's."""
        try:
            array = self._stacked(rows)
        except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
            what = "JSON" if self.is_json else self.tensor.dtype
            raise ModelFailed(f"output {self.name!r} is not {what}: {error}") from error
        if not fits(array.shape, self.tensor.shape):
            raise ModelFailed(
                f"output {self.name!r} has shape {list(array.shape)}; "
                f"{list(self.tensor.shape)} was promised"
            )
        return array

    def decode(self, value: Any) -> Any:
        """A value that came as JSON, as the model wants it. Raises InvalidInput."""
        if self.values is not None:
            return self.values.decode(value)
        if not self.is_array:
            return value
        try:
            array = array_of(value, self.tensor.array_dtype)
            if not fits((1, *array.shape), self.tensor.shape):
                raise ValueError(
                    f"shape {list(array.shape)}; {list(self.tensor.shape[1:])} is expected"
                )
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(f"{called(self.name)}: {error}") from error
        return array

    def json_schema(self) -> dict[str, Any]:
        """The schema of one value, for an OpenAPI page."""
        if self.values is not None:
            return self.values.schema()
        return row_schema(self.tensor.array_dtype, self.tensor.shape)

    def samples(self, *, varies: bool) -> list[Any]:
        """Typical values for a first look at the model's speed; none where they would mislead."""
        if self.is_json:
            return []
        shape = self.tensor.shape[1:]
        if self.tensor.dtype == BYTES:
            texts = [" ".join(["word"] * words) for words in (_WORDS if varies else _WORDS[1:2])]
            values: list[Any] = [text if self._is_text else text.encode() for text in texts]
            return values if self.is_scalar else []
        if -1 in shape:
            return []
        row = numpy.ones(shape, self.tensor.array_dtype)
        return [row.tolist() if self.is_scalar or is_sequence(self.hint) else row]

    @property
    def _is_text(self) -> bool:
        return bytes not in alternatives(innermost(self.hint))

    def _check_dtype(self, array: Array) -> None:
        want = self.tensor.array_dtype
        if array.dtype.kind in "OSU" if want == BYTES else array.dtype == numpy.dtype(want):
            return
        raise InvalidInput(f"{called(self.name)} has dtype {array.dtype}, not {want}")

    def _text(self, row: Any, index: int, is_text: bool) -> Any:
        if isinstance(row, list):
            return [self._text(each, index, is_text) for each in row]
        if isinstance(row, str):
            return row if is_text else row.encode()
        if not isinstance(row, bytes):
            raise InvalidInput(f"{called(self.name)} row {index} is not a text but {row!r:.40}")
        if not is_text:
            return row
        try:
            return row.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{called(self.name)} row {index} is not UTF-8: {error}") from error

    def _from_json(self, row: Any, index: int) -> Any:
        text = row.encode() if isinstance(row, str) else row
        try:
            if self.values is None:
                return msgspec.json.decode(text)
            return self.values.read(text)
        except (msgspec.DecodeError, UnicodeError, TypeError, RecursionError) as error:
            raise InvalidInput(
                f"{called(self.name)} row {index} is one text of JSON: {error}"
            ) from error
        except HeadwayError as error:
            raise InvalidInput(f"{called(self.name)} row {index}: {error}") from error

    def _stacked(self, rows: Sequence[Any]) -> Array:
        if self.tensor.dtype == BYTES:
            if not self.is_scalar:
                return numpy.array([_encoded(row) for row in rows], dtype=object)
            encode = encode_plain if self.is_json else _encoded_text
            array = numpy.empty(len(rows), dtype=object)
            array[:] = [encode(row) for row in rows]
            return array
        if rows and isinstance(rows[0], numpy.ndarray):
            return numpy.stack(rows).astype(self.tensor.array_dtype, copy=False)
        return numpy.array(rows, dtype=self.tensor.array_dtype)


def _encoded(row: Any) -> Any:
    if isinstance(row, list | tuple | numpy.ndarray):
        return [_encoded(each) for each in row]
    return _encoded_text(row)


def _encoded_text(text: Any) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise TypeError(f"{text!r:.40} is not a text")
