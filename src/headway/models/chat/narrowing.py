"""Schemas made narrower: what is written by them meets the original, too.

Many tools are described without `additionalProperties: false`; with it, the function that is called
knows all of its arguments. And the grammars' library lets through dates that no calendar has, and
email addresses of any length.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_COMBINED = frozenset(["allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas"])
_OPEN = frozenset(["additionalProperties", "patternProperties", "unevaluatedProperties"])
_NAMED = ("properties", "$defs", "definitions")  # schemas by name
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_DAY = (
    r"[1-9]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)"
    r"|02-(0[1-9]|1\d|2[0-8]))"
)
_LEAP_DAY = r"([1-9]\d(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29"
_DATE = f"({_DAY}|{_LEAP_DAY})"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_NAME = r"[A-Za-z0-9_+-]{1,30}(\.[A-Za-z0-9_+-]{1,10}){0,3}"  # 64 characters are allowed
_HOST = r"([A-Za-z0-9]([A-Za-z0-9-]{0,40}[A-Za-z0-9])?\.){1,3}[A-Za-z]{2,16}"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": f"{_NAME}@{_HOST}",
}


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, closed; unchanged where one of its objects is described in several places."""
    if any(_is_combined(each) for each in _schemas(schema)):
        return dict(schema)
    made: dict[str, Any] = _closed(schema)
    return made


def _is_combined(schema: Mapping[str, Any]) -> bool:
    is_object = "properties" in schema and not _COMBINED.isdisjoint(schema)
    return is_object or "allOf" in schema


def _schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(schema, Mapping):
        yield schema
        for value, _ in _parts(schema):
            yield from _schemas(value)


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The schemas within a schema, each with its place."""
    for name in _SINGLE:
        if name in schema:
            yield schema[name], (name,)
    for name in (*_NAMED, *_LISTED):
        inner = schema.get(name)
        if isinstance(inner, Mapping) and name in _NAMED:
            yield from ((value, (name, key)) for key, value in inner.items())
        elif isinstance(inner, list) and name in _LISTED:
            yield from ((value, (name, index)) for index, value in enumerate(inner))


def _closed(schema: Any) -> Any:
    def close(made: dict[str, Any]) -> None:
        if made.get("properties") and _OPEN.isdisjoint(made):
            made["additionalProperties"] = False

    return _changed(schema, close)


def dated(schema: Any) -> Any:
    """The schema with expressions for dates and times (30 days in April, leap years, 60 seconds)
    and for email addresses of lengths that exist."""

    def date(made: dict[str, Any]) -> None:
        if made.get("format") in _FORMATS and "pattern" not in made:
            made["pattern"] = f"^{_FORMATS[made.pop('format')]}$"

    return _changed(schema, date)


def _changed(schema: Any, change: Callable[[dict[str, Any]], None]) -> Any:
    """The schema with a change in each of its schemas."""
    if not isinstance(schema, Mapping):
        return schema
    made = {name: copy.copy(value) for name, value in schema.items()}
    for value, (name, *key) in _parts(schema):
        if key:
            made[name][key[0]] = _changed(value, change)
        else:
            made[name] = _changed(value, change)
    change(made)
    return made
