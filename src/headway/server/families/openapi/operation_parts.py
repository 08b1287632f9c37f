"""The parts of one operation of `/openapi.json`."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from headway.server.auth.access import Access
from headway.server.families.openapi.schemas import PARAMETERS, ref
from headway.server.service.examples import Schema
from headway.server.service.routes import ErrorFormat

Operation: TypeAlias = dict[str, Any]
URGENCY = [{"$ref": f"#/components/parameters/{name}"} for name in PARAMETERS]
_MODEL_FAILS = (
    "400",
    "404",
    "413",
    "429",
    "500",
    "501",
    "503",
    "504",
)  # what a model's route may answer
_ERRORS = {ErrorFormat.OPENAI: "OpenAIError", ErrorFormat.ANTHROPIC: "AnthropicError"}
_WHY = {
    "400": "the request is malformed, or does not fit the model",
    "401": "the key is missing or unknown",
    "403": "this key, or this client, has no right to it",
    "404": "there is no such model",
    "413": "the request is too large",
    "429": "the caller has used up its quota",
    "500": "the model failed",
    "501": "the server lacks a library for it",
    "503": "the server is full or not ready: try again after `Retry-After` seconds",
    "504": "the caller's own time limit has passed",
}


def operation_of(
    *,
    name: str,
    tag: str,
    summary: str,
    description: str = "",
    parameters: Sequence[Any] = (),
    body: Mapping[str, Any] | None = None,
    answer: Mapping[str, Any],
    failures: Mapping[str, Any],
) -> Operation:
    found: Operation = {"tags": [tag], "operationId": name, "summary": summary}
    if description:
        found["description"] = description
    if parameters:
        found["parameters"] = list(parameters)
    if body is not None:
        found["requestBody"] = body
    found["responses"] = {"200": answer, **failures}
    return found


def body_of(schema: Schema, examples: Mapping[str, Any], media: str) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schema}
    if examples:
        content["examples"] = {name: {"value": value} for name, value in examples.items()}
    return {"required": True, "content": {media: content}}


def answer_of(schema: Schema | None, others: Sequence[str] = ()) -> dict[str, Any]:
    """`others`: media types beside JSON. They get no schema: tools disagree whether it would
    describe the whole text or each event."""
    content: dict[str, Any] = {} if schema is None else {"application/json": {"schema": schema}}
    content |= {media: {} for media in others}
    described: dict[str, Any] = {"description": "done"}
    return {**described, "content": content} if content else described


def failures_of(
    method: str, access: Access, errors: ErrorFormat, *, has_keys: bool
) -> dict[str, Any]:
    """The error answers of a route, by status."""
    if access is Access.INFER:
        statuses = [*_MODEL_FAILS]
    elif method == "GET":
        statuses = ["400", "404", "503"]
    else:
        statuses = ["400", "403", "404", "413", "503"]
    if has_keys and access is not Access.OPEN:
        statuses = sorted({*statuses, "401", "403"})
    shape = ref(_ERRORS.get(errors, "Error"))
    found = {status: {**answer_of(shape), "description": _WHY[status]} for status in statuses}
    if "503" in found:
        found["503"]["headers"] = {
            "Retry-After": {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}
        }
    return found
