"""The plain routes of each model, with the schemas of its own type hints."""

import logging
from typing import Any

import msgspec

from headway.hosting.registry import ItemsMean, ServedModel
from headway.server.auth.access import Access
from headway.server.families.openapi.operation_parts import (
    URGENCY,
    Operation,
    answer_of,
    body_of,
    failures_of,
    operation_of,
)
from headway.server.families.openapi.schemas import COMPONENT, ITEMS, array, closed, nullable, ref
from headway.server.service.examples import Schema, example_of
from headway.server.service.routes import ErrorFormat
from headway.signature.values import field_hints, is_file
from headway.wire.messages import JSON

PREDICT = "/v1/predict/"
_log = logging.getLogger(__name__)
_BODY: dict[ItemsMean, str] = {
    "one": "The body is one item.",
    "several": "The body is one item; or several as `items`, each answered by a result or its own "
    "error.",
    "unclear": "The body is one item. The model has no type hint, so an object whose only field is "
    "`items` is refused: several items have a route of their own, `/batch`.",
}


def own_routes(
    model: ServedModel, *, has_keys: bool
) -> tuple[dict[str, Operation], dict[str, Schema]]:
    """The model's operations by path, and the schemas that they refer to. If its type hints cannot
    be described, it is shown as taking and giving any value."""
    try:
        described = _described(model, *_schemas_of(model), has_keys=has_keys)
        msgspec.json.encode(described)  # a default of some kind may have no JSON form
        return described
    except Exception:  # noqa: BLE001  the hints are the model's
        _log.warning("%s cannot be described", model.name, exc_info=True)
        return _described(model, {}, {}, has_keys=has_keys)


def own_name(model: ServedModel) -> str:
    return f"predict_{model.name}"


def _described(
    model: ServedModel, takes: Schema, gives: Schema, *, has_keys: bool
) -> tuple[dict[str, Operation], dict[str, Schema]]:
    components: dict[str, Schema] = {}
    item, result = f"{model.name}.item", f"{model.name}.result"
    components[item] = _hoisted(takes, model.name, components)
    components[result] = _hoisted(_as_written(gives), model.name, components)
    batch = closed(items=ITEMS)
    results = closed(results=array({"anyOf": [ref(result), ref("Error")]}))
    takes_several = not model.only_streams
    may_send_items = takes_several and model.meaning_of_items == "several"
    body_schema = {"anyOf": [ref(item), batch]} if may_send_items else ref(item)
    answer_schema = {"anyOf": [ref(result), results]} if may_send_items else ref(result)
    failures = failures_of("POST", Access.INFER, ErrorFormat.TEXT, has_keys=has_keys)
    example = example_of(takes)
    one = operation_of(
        name=own_name(model),
        tag="plain",
        summary=f"One value through {model.name}",
        description=_BODY[model.meaning_of_items if takes_several else "one"],
        parameters=URGENCY,
        body=body_of(body_schema, {} if example is None else {"typical": example}, JSON),
        answer=answer_of(answer_schema, _other_answers(model, gives)),
        failures=failures,
    )
    one["requestBody"]["content"] |= _uploads(model)
    operations = {f"{PREDICT}{model.name}": one}
    if takes_several:
        operations[f"{PREDICT}{model.name}/batch"] = operation_of(
            name=f"batch_{model.name}",
            tag="plain",
            summary=f"Several values through {model.name}",
            description="Each value is answered by its result or its own error, in their order.",
            parameters=URGENCY,
            body=body_of(batch, {} if example is None else {"typical": {"items": [example]}}, JSON),
            answer=answer_of(results),
            failures=failures,
        )
    return operations, components


def _other_answers(model: ServedModel, gives: Schema) -> list[str]:
    """The media types beside JSON: a file's, if the result is a file; events, if it is streamed."""
    others = ["text/event-stream"] if model.streams else []
    if not gives or "contentEncoding" in gives or model.media_type:
        others.append("*/*")
    return others


def _uploads(model: ServedModel) -> dict[str, Any]:
    """The other media types of the body, if the model takes a file."""
    signature = model.signature
    hint = None if signature is None else signature.input.hint
    files = [name for name, each in field_hints(hint).items() if is_file(each)]
    if not (files or is_file(hint)):
        return {}
    file = {"type": "string", "contentMediaType": "application/octet-stream"}
    form = {"type": "object", "properties": dict.fromkeys(files or ["file"], file)}
    return {"multipart/form-data": {"schema": form}, "application/octet-stream": {}}


def _schemas_of(model: ServedModel) -> tuple[Schema, Schema]:
    takes, gives = model.json_schemas()
    if model.signature is None and len(model.inputs) == 1:
        # A tensor model's only input may be named or not.
        takes = {"anyOf": [takes, closed(**{model.inputs[0].name: takes})]}
    return takes, gives


def _hoisted(schema: Schema, owner: str, components: dict[str, Schema]) -> Schema:
    """Move definitions to the components, which is where the document's references point."""
    schema = dict(schema)
    for name, definition in schema.pop("$defs", {}).items():
        components[f"{owner}.{name}"] = _hoisted(definition, owner, components)
    return {key: _moved(value, owner, components) for key, value in schema.items()}


def _moved(value: Any, owner: str, components: dict[str, Schema]) -> Any:
    if isinstance(value, dict):
        return _hoisted(value, owner, components)
    if isinstance(value, list):
        return [_moved(each, owner, components) for each in value]
    if isinstance(value, str) and value.startswith("#/$defs/"):
        return COMPONENT.format(name=f"{owner}.{value.removeprefix('#/$defs/')}")
    return value


def _as_written(schema: Any) -> Any:
    """The schema of numbers as JSON has them: without NaN and infinity, for which the answer has
    null."""
    if isinstance(schema, list):
        return [_as_written(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        return nullable({"type": "number"})
    return {key: _as_written(value) for key, value in schema.items()}
