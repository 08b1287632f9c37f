"""Schemas whose objects have their described properties only.

Many tools are described without `additionalProperties: false`. What is written by the closed schema
meets the open one, too; and the function that is called knows all of its arguments.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

_COMBINED = frozenset(["allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas"])
_OPEN = frozenset(["additionalProperties", "patternProperties", "unevaluatedProperties"])
_NAMED = ("properties", "$defs", "definitions")  # schemas by name
_LISTED = ("anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


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
    if not isinstance(schema, Mapping):
        return schema
    made = {name: copy.copy(value) for name, value in schema.items()}
    for value, (name, *key) in _parts(schema):
        if key:
            made[name][key[0]] = _closed(value)
        else:
            made[name] = _closed(value)
    if made.get("properties") and _OPEN.isdisjoint(made):
        made["additionalProperties"] = False
    return made
