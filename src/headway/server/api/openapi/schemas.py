"""The shapes that do not depend on the models: v2's, OpenAI's, and the headers of urgency."""

from typing import Any, TypeAlias

from headway.server.api.v2.dtypes import DATATYPES

Schema: TypeAlias = dict[str, Any]

# One white pixel as PNG in base64: an example for whatever takes bytes, images above all.
IMAGE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQEAHLCMmQAAAABJRU5ErkJggg=="
)
_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_BOOL: Schema = {"type": "boolean"}


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


def only(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """Of these, and nothing else: what is not known is refused."""
    return {**record(required, optional), "additionalProperties": False}


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


_PARAMETERS: Schema = {
    "type": "object",
    "description": "v2's own (priority, timeout, …) and those that the model takes; no others",
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
_SHARED: dict[str, Schema] = {
    "shared_memory_region": nullable(_TEXT),
    "shared_memory_byte_size": nullable(_COUNT),
    "shared_memory_offset": nullable(_COUNT),
}
_DATATYPE: Schema = {"type": "string", "enum": list(DATATYPES)}
_OUTPUT_PARAMETERS = only(
    {}, {"binary_data": nullable(_BOOL), "classification": nullable(_COUNT), **_SHARED}
)
_PORT = record({"name": _TEXT, "datatype": _DATATYPE, "shape": array(_WHOLE)})
_DURATION = record({"count": _COUNT, "ns": _COUNT})
_REGION = {"name": _TEXT, "key": _TEXT, "offset": _COUNT, "byte_size": _COUNT}
_OPENAI_MODEL = {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT}

# What the handlers' types do not say: of dicts that are read by hand, of data that is read later.
DETAILS: dict[str, dict[str, Schema]] = {
    "WireRequest": {"parameters": nullable(_PARAMETERS)},
    "WireInput": {
        "shape": array(_COUNT),
        "datatype": _DATATYPE,
        "data": {"type": "array", "description": "nested or flat, row by row"},
        "parameters": nullable(only({}, {"binary_data_size": nullable(_COUNT), **_SHARED})),
    },
    "WireOutput": {"parameters": nullable(_OUTPUT_PARAMETERS)},
    "WireResult": {"datatype": _DATATYPE, "shape": array(_COUNT)},
}

# One that does not fit is answered by its own error, so any will do for the whole.
ITEMS: Schema = {"type": "array", "description": "each one item"}
COMPONENTS: dict[str, Schema] = {
    "Error": closed(error=_TEXT),
    "OpenAIError": closed(
        error=closed(message=_TEXT, type=_TEXT, param=nullable(_TEXT), code=_TEXT)
    ),
    # ---- v2
    "ModelMetadata": record(
        {
            "name": _TEXT,
            "versions": array(_TEXT),
            "platform": _TEXT,
            "inputs": array(_PORT),
            "outputs": array(_PORT),
        }
    ),
    "ModelConfig": record({"name": _TEXT, "max_batch_size": _COUNT}),
    "Statistics": record(
        {
            "model_stats": array(
                record(
                    {
                        "name": _TEXT,
                        "version": _TEXT,
                        "last_inference": _COUNT,
                        "inference_count": _COUNT,
                        "execution_count": _COUNT,
                        "inference_stats": {"type": "object", "additionalProperties": _DURATION},
                        "batch_stats": array(
                            record({"batch_size": _COUNT, "compute_infer": _DURATION})
                        ),
                    }
                )
            )
        }
    ),
    "GenerateRequest": record(
        {},
        {
            "text_input": {
                "description": "or the input by its own name; other keys are parameters"
            },
            "id": nullable(_TEXT),
            "parameters": nullable(_PARAMETERS),
        },
    ),
    "GenerateResponse": record({"model_name": _TEXT, "model_version": _TEXT}, {"id": _TEXT}),
    "LoadRequest": nulls_are_absence(
        only({}, {"parameters": only({}, {"config": nullable(_TEXT)})})
    ),
    "UnloadRequest": nulls_are_absence(
        only({}, {"parameters": only({}, {"unload_dependents": nullable(_BOOL)})})
    ),
    "TraceSetting": only(
        {},
        {
            "trace_level": nullable(array(_TEXT)),
            **{
                name: nullable(_TEXT)
                for name in (
                    *("trace_rate", "trace_count", "log_frequency"),
                    *("trace_file", "trace_mode"),
                )
            },
        },
    ),
    "LogSettings": only(
        {},
        {
            **{name: nullable(_BOOL) for name in ("log_info", "log_warning", "log_error")},
            "log_verbose_level": nullable(_COUNT),
            **{name: nullable(_TEXT) for name in ("log_file", "log_format")},
        },
    ),
    "SharedRegion": record(_REGION),
    # ---- OpenAI
    "OpenAIModel": record(_OPENAI_MODEL),
    "OpenAIModels": record({"object": {"const": "list"}, "data": array(ref("OpenAIModel"))}),
    "Embeddings": record(
        {
            "object": {"const": "list"},
            "model": _TEXT,
            "data": array(
                record(
                    {
                        "object": {"const": "embedding"},
                        "index": _COUNT,
                        "embedding": {"anyOf": [array({"type": "number"}), _TEXT]},
                    }
                )
            ),
            "usage": record({"prompt_tokens": _COUNT, "total_tokens": _COUNT}),
        }
    ),
    # ---- Cohere
    "Ranked": record(
        {
            "id": _TEXT,
            "model": _TEXT,
            "results": array(
                record(
                    {"index": _COUNT, "relevance_score": {"type": "number"}},
                    {"document": {"type": "object"}},
                )
            ),
            "usage": record({"total_tokens": _COUNT}),
        }
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
