"""Schemas: of the types that routes take and give, and of what no type says."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headway.server.bodies.neutral import schema_of
from headway.server.service.dtypes import DATATYPES
from headway.server.service.examples import Schema
from headway.server.service.requests import InputParameters, OutputParameters

COMPONENT = "#/components/schemas/{name}"

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}


def ref(name: str) -> Schema:
    return {"$ref": COMPONENT.format(name=name)}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required)}


def closed(**properties: Schema) -> Schema:
    """An object with all of these properties and no others."""
    return {**record(properties), "additionalProperties": False}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def schemas_of(
    kinds: Iterable[Any], *, null_is_absence: bool
) -> tuple[Mapping[Any, Schema], dict[str, Schema]]:
    """The schema of each type; and by name, those that they refer to."""
    kinds = list(kinds)
    found, components = msgspec.json.schema_components(kinds, ref_template=COMPONENT)
    for kind in kinds:
        for name, values in getattr(kind, "NEUTRAL", {}).items():
            components[kind.__name__]["properties"][name] = schema_of(values)
    for name, details in DETAILS.items():
        if name in components:
            components[name]["properties"] |= details
    for name, description in OTHER_FIELDS.items():
        if name in components:
            components[name]["additionalProperties"] = {"description": description}
    if null_is_absence:
        components = {name: _nulls_are_absence(each) for name, each in components.items()}
    return dict(zip(kinds, found, strict=True)), components


def _nulls_are_absence(fields: Schema) -> Schema:
    """The fields as `decode_fields` reads them: those that may be absent may also be null."""
    needed = fields.get("required", ())
    properties = {
        name: each if name in needed or _may_be_null(each) else nullable(each)
        for name, each in fields["properties"].items()
    }
    found = {**fields, "properties": properties}
    if fields.get("additionalProperties") is False:
        found["additionalProperties"] = {"type": "null"}
    return found


def _may_be_null(schema: Schema) -> bool:
    return any(each.get("type") == "null" for each in schema.get("anyOf", ()))


def _fields_of(kind: Any) -> Schema:
    """The schema of a dictionary that is read by name: unknown fields are refused."""
    found = msgspec.json.schema(kind)["$defs"][kind.__name__]
    return {**found, "additionalProperties": {"type": "null"}}


_PARAMETERS: Schema = {
    "type": "object",
    "description": "v2's own (priority, timeout, …) and those that the model takes; no others",
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
_DATATYPE: Schema = {"type": "string", "enum": list(DATATYPES)}

# What the handlers' types do not say: of data that is read later, of numbers that are checked then.
DETAILS: dict[str, dict[str, Schema]] = {
    "WireRequest": {"parameters": nullable(_PARAMETERS)},
    "WireInput": {
        "shape": array(_COUNT),
        "datatype": _DATATYPE,
        "data": {"type": "array", "description": "nested or flat, row by row"},
        "parameters": nullable(_fields_of(InputParameters)),
    },
    "WireOutput": {"parameters": nullable(_fields_of(OutputParameters))},
    "WireResult": {"datatype": _DATATYPE, "shape": array(_COUNT)},
    "GenerateRequest": {"parameters": nullable(_PARAMETERS)},
    "TranscriptionForm": {"file": {"type": "string", "format": "binary"}},
}
# Descriptions of the fields whose names depend on the model.
OTHER_FIELDS = {
    "GenerateRequest": "inputs by their own names, and parameters",
    "GenerateResponse": "outputs by name; a text is `text_output`",
}

# One that does not fit is answered by its own error, so any will do for the whole.
ITEMS: Schema = {"type": "array", "description": "each one item"}
COMPONENTS: dict[str, Schema] = {
    "Error": closed(error=_TEXT),
    "OpenAIError": closed(
        error=closed(message=_TEXT, type=_TEXT, param=nullable(_TEXT), code=_TEXT)
    ),
    "AnthropicError": closed(type=_TEXT, error=closed(type=_TEXT, message=_TEXT)),
}


def _header(name: str, description: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": schema}


PARAMETERS: dict[str, dict[str, Any]] = {
    "timeout": _header(
        "Headway-Timeout-Ms",
        "answer within this many milliseconds, or not at all",
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e12},
    ),
    "priority": _header(
        "Headway-Priority",
        "high goes before normal before low",
        {"type": "string", "enum": ["high", "normal", "low"]},
    ),
    "tenant": _header("Headway-Tenant", "on whose behalf; tenants share by weight", _TEXT),
}

# Either will do.
KEYS: dict[str, dict[str, Any]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}
