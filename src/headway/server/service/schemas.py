"""The shapes that do not depend on the models: v2's, OpenAI's, and the headers of urgency."""

from typing import Any, TypeAlias

import msgspec

from headway.server.service.dtypes import DATATYPES
from headway.server.service.requests import InputParameters, OutputParameters

Schema: TypeAlias = dict[str, Any]

# One white pixel as PNG in base64: an example for whatever takes bytes, images above all.
IMAGE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQEAHLCMmQAAAABJRU5ErkJggg=="
)
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required)}


def closed(**properties: Schema) -> Schema:
    """All of these, and nothing else."""
    return {**record(properties), "additionalProperties": False}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def nulls_are_absence(fields: Schema) -> Schema:
    """As `decode_fields` reads them: what need not be there may be null."""
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


def fields_of(kind: Any) -> Schema:
    """Of a dictionary that is read by name: what is not known is refused."""
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
        "parameters": nullable(fields_of(InputParameters)),
    },
    "WireOutput": {"parameters": nullable(fields_of(OutputParameters))},
    "WireResult": {"datatype": _DATATYPE, "shape": array(_COUNT)},
    "GenerateRequest": {"parameters": nullable(_PARAMETERS)},
    "TranscriptionForm": {"file": {"type": "string", "format": "binary"}},
}
# What fields are called whose names depend on the model.
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
    "tenant": _header(
        "Headway-Tenant",
        "on whose behalf; tenants share by weight",
        _TEXT,
    ),
}

# Either will do.
KEYS: dict[str, dict[str, Any]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}
