"""What every description of a route is made of."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from headway.server.service.schemas import Schema, ref

Operation: TypeAlias = dict[str, Any]
RUNNING = ("400", "404", "413", "429", "500", "503", "504")  # what a model's route may answer
WHY = {
    "400": "the request is malformed, or does not fit the model",
    "401": "no key, or one that is not known",
    "403": "this caller may not",
    "404": "there is no such model",
    "413": "the request is too large",
    "429": "the caller has used up its share",
    "500": "the model failed",
    "503": "no room or not ready: come back after `Retry-After` seconds",
    "504": "the caller's own time limit has passed",
}


def operation_of(
    tag: str,
    name: str,
    summary: str,
    answer: Mapping[str, Any] | None,
    fails: Sequence[str] = (),
    *,
    description: str = "",
    parameters: Sequence[Any] | None = None,
    body: Mapping[str, Any] | None = None,
) -> Operation:
    """`answer`: with status 200; `fails`: the statuses of its errors."""
    found: Operation = {"tags": [tag], "operationId": name, "summary": summary}
    if description:
        found["description"] = description
    if parameters is not None:
        found["parameters"] = list(parameters)
    if body is not None:
        found["requestBody"] = body
    succeeds = {} if answer is None else {"200": answer}
    found["responses"] = {**succeeds, **errors_of(fails)}
    return found


def path_part(name: str, description: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """`names`: those that there are; none: any."""
    schema: Schema = {"type": "string", "enum": list(names)} if names else {"type": "string"}
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
    }


def body_of(schema: Schema, *, example: Any = None) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schema}
    if example is not None:
        content["examples"] = {"typical": {"value": example}}
    return {"required": True, "content": {"application/json": content}}


def json_of(description: str, schema: Schema) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def errors_of(statuses: Sequence[str], *, shape: str = "Error") -> Mapping[str, Any]:
    found = {status: json_of(WHY[status], ref(shape)) for status in statuses}
    if "503" in found:
        found["503"]["headers"] = {
            "Retry-After": {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}
        }
    return found
