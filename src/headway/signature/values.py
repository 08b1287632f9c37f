"""JSON to a model's own values and back to its description: one codec a side, made at load.

msgspec checks what it knows, pydantic what is pydantic's; nothing is checked beyond what the hint
says, but a field that a dataclass or TypedDict does not have: a misspelled one that has a default
would else be dropped in silence.
"""

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from headway.errors import ConfigError, HeadwayError, InvalidInput, ModelFailed, called
from headway.signature import foreign
from headway.signature.hints import (
    alternatives,
    is_record,
    known,
    optional_parts,
    plain,
    record_parts,
    spelled,
)

Schema = dict[str, Any]
_decode_any = msgspec.json.Decoder().decode
_decode_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode  # of an object's members
_AT = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_NO_CHOICE = "Invalid enum value"  # as msgspec says it
_MANY_VALUES = 4096
_NOT_THE_KIND = (TypeError, ValueError, OverflowError, RecursionError)


class Decoded(NamedTuple):
    """A value as the model takes it, or why it cannot be: it is not decoded again."""

    value: Any
    error: HeadwayError | None = None

    def get(self) -> Any:
        """Raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


class Values(Protocol):
    """Converts values of one type. Every method raises InvalidInput; or ModelFailed, where the
    model's own code failed."""

    def decode(self, value: Any) -> Any:
        """Convert Python objects that were decoded from JSON."""

    def decode_form(self, value: Any) -> Any:
        """Convert the fields of a form: bytes for files, texts for numbers."""

    def read(self, text: bytes) -> Any:
        """Decode JSON. Raises msgspec.DecodeError or UnicodeError, too, where it is not JSON."""

    def schema(self) -> Schema: ...


def values_of(hint: Any, name: str) -> Values:
    """Raises ConfigError for a class that no JSON becomes. `name`: as mistakes call the value."""
    if known(plain(hint)) is None:
        return Anything()
    if foreign.is_pydantic(hint):
        return ByPydantic(hint, name)
    try:
        return ByMsgspec(hint, name)
    except TypeError as error:
        choices = alternatives(plain(hint))
        if len(choices) > 1:  # a union that msgspec cannot tell apart: the first that fits
            return FirstOf([values_of(each, name) for each in choices], hint, name)
        raise ConfigError(
            f"the hint {spelled(hint)} cannot be checked: {error}. Write types that JSON "
            "distinguishes, a pydantic model, or Any"
        ) from error


class Anything:
    """No hint: the value as it came."""

    def decode(self, value: Any) -> Any:
        return value

    decode_form = decode

    def read(self, text: bytes) -> Any:
        return _decode_any(text)

    def schema(self) -> Schema:
        return {}


class ByMsgspec:
    def __init__(self, hint: Any, name: str) -> None:
        """Raises TypeError, ConfigError."""
        self._hint, self._name = hint, name
        self._decoder = msgspec.json.Decoder(hint, dec_hook=foreign.from_json)
        for kind in _custom_kinds(msgspec.inspect.type_info(hint)):
            if not foreign.is_known(kind):
                raise ConfigError(
                    f"JSON cannot become a {spelled(kind)}: write prepare(self, raw: dict) that "
                    "makes it from what callers send"
                )
        kind = plain(hint)
        self._names = list(record_parts(kind))
        self._known = frozenset(self._names) if is_record(kind) else None
        self._needed = () if self._known is None else sorted(self._known - optional_parts(kind))

    def decode(self, value: Any) -> Any:
        return self._convert(value, is_strict=True)

    def decode_form(self, value: Any) -> Any:
        return self._convert(value, is_strict=False)

    def _convert(self, value: Any, *, is_strict: bool) -> Any:
        try:
            self._check_fields(value)
            return msgspec.convert(
                value, self._hint, dec_hook=foreign.from_json, str_keys=True, strict=is_strict
            )
        except Exception as error:
            raise self._told(error) from error

    def read(self, text: bytes) -> Any:
        try:
            if self._known is None:
                return self._decoder.decode(text)
            try:
                if self._known.issuperset(_decode_names(text)):
                    return self._decoder.decode(text)
            except msgspec.ValidationError:
                pass  # the mistake is reported below, as for a decoded value
            value = _decode_any(text)
        except msgspec.ValidationError as error:
            raise self._told(error) from error
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise
        except Exception as error:
            raise self._told(error) from error
        return self.decode(value)

    def _told(self, error: Exception) -> HeadwayError:
        if not str(error).startswith(_NO_CHOICE):
            return _told(self._name, error)
        at = _AT.search(str(error))
        choices = choices_at(self.schema(), at[1] if at else "")
        there_are = f"; there are {', '.join(map(repr, choices))}" if choices else ""
        place = called(at[1] if at else self._name)
        given = str(error)[: at.start() if at else None].removeprefix(_NO_CHOICE).strip()
        return InvalidInput(f"{place}: {given:.60} is unknown{there_are}")

    def schema(self) -> Schema:
        with suppress(TypeError):  # a kind that has no schema
            schema = msgspec.json.schema(self._hint, schema_hook=foreign.schema_of)
            return schema if self._known is None else _closed(schema, self._names)
        return {}

    def _check_fields(self, value: Any) -> None:
        if self._known is None:
            return
        if type(value) is dict:
            if self._known.issuperset(value):
                return
            unknown = next(name for name in value if name not in self._known)
            raise InvalidInput(f"{called(unknown)} is unknown; there are {self._fields()}")
        if value is None or isinstance(value, str | bytes | int | float | list):
            raise InvalidInput(f"an object is expected, with {self._fields()}")

    def _fields(self) -> str:
        assert self._known is not None
        more = sorted(self._known.difference(self._needed))
        optional = f" (and optionally {', '.join(more)})" if more else ""
        return f"{', '.join(self._needed)}{optional}"


class ByPydantic:
    def __init__(self, hint: Any, name: str) -> None:
        pydantic: Any = sys.modules["pydantic"]  # a model with such a hint has imported it
        self._adapter = pydantic.TypeAdapter(hint)
        self._wrong = pydantic.ValidationError
        self._name = name
        self._failing_fast: Any = None  # made when it is needed

    def decode(self, value: Any) -> Any:
        """Convert as if from JSON: only from there does a strict model take a list for a tuple."""
        try:
            text = msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError):  # it has been decoded already
            return self.decode_form(value)
        return self.read(text)

    def decode_form(self, value: Any) -> Any:
        try:
            return self._adapter.validate_python(value)
        except Exception as error:
            raise self._told(error) from error

    def read(self, text: bytes) -> Any:
        foreign.check_objects(text)
        try:
            return self._reader(text).validate_json(text)
        except self._wrong as error:
            if foreign.first_of(error, 1)[0]["type"] == "json_invalid":
                _decode_any(text)  # says what is wrong as for every other model
            raise self._told(error) from error
        except Exception as error:
            raise self._told(error) from error

    def _reader(self, text: bytes) -> Any:
        """Thousands of mistakes take longer than thousands of values: there, few are looked for."""
        if text.count(b",") <= _MANY_VALUES:
            return self._adapter
        if self._failing_fast is None:
            self._failing_fast = foreign.failing_fast(self._adapter)
        return self._failing_fast

    def schema(self) -> Schema:
        described: Schema = {}
        with suppress(Exception):  # a type of the model's own may have no schema
            described = self._adapter.json_schema()
        return described

    def _told(self, error: Exception) -> HeadwayError:
        if not isinstance(error, self._wrong):
            return _told(self._name, error)
        mistakes = foreign.mistakes_of(error)
        return InvalidInput(
            "; ".join(f"{called(place or self._name)}: {what}" for place, what in mistakes)
        )


class FirstOf:
    """A union that msgspec cannot resolve: its members are tried in order."""

    def __init__(self, choices: Sequence[Values], hint: Any, name: str) -> None:
        self._choices, self._hint, self._name = choices, hint, name

    def decode(self, value: Any) -> Any:
        return self._first([choice.decode for choice in self._choices], value)

    def decode_form(self, value: Any) -> Any:
        return self._first([choice.decode_form for choice in self._choices], value)

    def _first(self, choices: Sequence[Callable[[Any], Any]], value: Any) -> Any:
        reasons: list[str] = []
        for choice in choices:
            try:
                return choice(value)
            except InvalidInput as error:
                reasons.append(str(error))
        raise InvalidInput(
            f"{called(self._name)}: it is not one of {spelled(self._hint)}: {'; or '.join(reasons)}"
        )

    def read(self, text: bytes) -> Any:
        return self.decode(_decode_any(text))

    def schema(self) -> Schema:
        return {"anyOf": [choice.schema() for choice in self._choices]}


def _told(name: str, error: Exception) -> HeadwayError:
    """Which field is wrong, and where in the value."""
    if isinstance(error, HeadwayError):
        return error
    if not isinstance(error, _NOT_THE_KIND):
        return ModelFailed(f"the input cannot be read: {type(error).__name__}: {error}")
    text = str(error)
    at = _AT.search(text)
    place = at[1] if at else ""
    text = text[: at.start()] if at else text
    missing = _MISSING.fullmatch(text)
    if missing:
        path = f"{place}.{missing[1]}".lstrip(".")
        return InvalidInput(f"{called(path)} is missing")
    return InvalidInput(f"{called(place or name)}: {text}")


def _custom_kinds(info: Any) -> list[Any]:
    """The classes within a hint that msgspec leaves to its hook."""
    found: list[Any] = []
    seen: set[int] = set()
    waiting = [info]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, msgspec.inspect.CustomType):
            found.append(each.cls)
        elif isinstance(each, tuple | list):
            waiting.extend(each)
        elif isinstance(each, msgspec.Struct):
            waiting.extend(getattr(each, name) for name in each.__struct_fields__)
    return found


def _closed(schema: Schema, names: Sequence[str]) -> Schema:
    """A record's own description at the top: its fields, in their order, and no others."""
    definitions = dict(schema.get("$defs", {}))
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    top = dict(definitions.get(name, schema))
    if f'"#/$defs/{name}"'.encode() not in msgspec.json.encode(definitions):
        definitions.pop(name, None)
    top.pop("title", None)
    properties, required = top.get("properties", {}), top.get("required", ())
    top["properties"] = {name: properties[name] for name in names if name in properties}
    if required:
        top["required"] = [name for name in names if name in required]
    top["additionalProperties"] = False
    return {**top, "$defs": definitions} if definitions else top


def takes_object_with(schema: Schema, key: str) -> bool:
    """Whether an object that has this key may be a value of that description."""

    def has_key(kind: Schema) -> bool:
        properties = kind.get("properties", {})
        more = kind.get("additionalProperties", not properties)
        return "object" in _types(kind) and (key in properties or bool(more))

    return _takes(schema, has_key, {})


def choices_at(schema: Schema, place: str) -> list[Any]:
    """The values that the description lists for this place of a value; none: it lists none."""
    definitions = schema.get("$defs", {})
    at: Any = schema
    for step in re.findall(r"\w+|\[[\d.]+\]", place):
        at = _resolved(at, definitions)
        at = at.get("items", {}) if step.startswith("[") else at.get("properties", {}).get(step, {})
    return list(_resolved(at, definitions).get("enum", ()))


def _resolved(schema: Any, definitions: Schema) -> Schema:
    """The schema that a reference means; of several, the one that is a list or has properties."""
    if not isinstance(schema, dict):
        return {}
    if "$ref" in schema:
        return dict(definitions.get(schema["$ref"].rpartition("/")[2], {}))
    kinds = [_resolved(each, definitions) for each in schema.get("anyOf", ())]
    parts = ("enum", "properties", "items")
    return next((each for each in kinds if any(part in each for part in parts)), schema)


def takes(schema: Schema, kind: Literal["object", "string", "array"]) -> bool:
    """Whether a value of this kind meets that description."""
    return _takes(schema, lambda each: kind in _types(each), {})


def _takes(schema: Any, fits: Callable[[Schema], bool], definitions: Schema) -> bool:
    """Whether one of its kinds of value fits."""
    if schema is True or schema == {}:
        return True
    if not isinstance(schema, dict):
        return False
    definitions = {**definitions, **schema.get("$defs", {})}
    if "$ref" in schema:
        return _takes(definitions.get(schema["$ref"].rpartition("/")[2], {}), fits, definitions)
    choices = [schema.get(name, ()) for name in ("anyOf", "oneOf", "allOf") if name in schema]
    if choices:
        return any(_takes(each, fits, definitions) for choice in choices for each in choice)
    if "type" not in schema and "properties" not in schema:
        return not ({"const", "enum"} & schema.keys())
    return fits(schema)


def _types(schema: Schema) -> list[Any]:
    return _listed(schema.get("type", "object"))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def field_hints(hint: Any) -> dict[str, Any]:
    """The fields of a dataclass, TypedDict or pydantic model, with their hints; else empty."""
    kind = plain(hint)
    declared = getattr(kind, "__pydantic_fields__", None)
    if declared is not None:
        return {name: field.annotation for name, field in declared.items()}
    return record_parts(kind)


def is_file(hint: Any) -> bool:
    return any(each is bytes or foreign.is_image(each) for each in alternatives(plain(hint)))
