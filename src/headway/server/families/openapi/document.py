"""`/openapi.json`, OpenAPI 3.1: made of the routes' rows, and of the models as they are now. Pure.

Each model has its own plain route, with the schemas of its own type hints (`own_routes.py`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headway.hosting.registry import ServedModel
from headway.server.auth.access import Access
from headway.server.families.openapi.operation_parts import (
    URGENCY,
    Operation,
    answer_of,
    body_of,
    failures_of,
    operation_of,
)
from headway.server.families.openapi.own_routes import OWN, own_name, own_routes
from headway.server.families.openapi.schemas import COMPONENTS, KEYS, PARAMETERS, schemas_of
from headway.server.service import model_tasks
from headway.server.service.examples import Schema
from headway.server.service.routes import Gives, Route, Takes

UNANSWERED = "x-headway-unanswered"  # on an operation: no model that is served now can answer it
CHAT = "/v1/chat/completions"
_PARTS = {  # of paths
    "model": "its name",
    "version": "one that is served",
    "task": "as Hugging Face names it",
    "region": "a name that the client chose",
    "repository": "any: there is one",
}
TAGS = {
    "plain": "One value as JSON in, its result out",
    "openai": "As OpenAI's clients speak",
    "huggingface": "As Hugging Face's and TEI's clients speak",
    "cohere": "As Cohere's client speaks",
    "v1": "KServe's and TensorFlow Serving's first protocol",
    "v2": "KServe v2 / Open Inference Protocol, as Triton has it",
}


def document_of(
    models: Iterable[ServedModel],
    rows: Iterable[Route] = (),
    *,
    version: str,
    has_keys: bool = False,
) -> dict[str, Any]:
    """Of these models, as they are now, on these routes. `has_keys`: every call needs one."""
    served = sorted(models, key=lambda model: model.name)
    described = [row for row in rows if row.tag and not row.template.startswith(OWN)]
    schemas, components = _schemas_of(described)
    components = COMPONENTS | components
    paths: dict[str, dict[str, Operation]] = {}
    for model in served:
        of_model, own = own_routes(model, has_keys=has_keys)
        paths |= {path: {"post": operation} for path, operation in of_model.items()}
        components |= own
    for row in described:
        operation = _operation(row, served, schemas, has_keys=has_keys)
        paths.setdefault(row.template, {})[row.method.lower()] = operation
    if len(served) == 1 and not model_tasks.classifies_texts(served[0]):
        only = paths[f"/v1/predict/{served[0].name}"]["post"]
        paths["/predict"] = {"post": {**only, "operationId": "predict_only"}}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Headway",
            "version": version,
            "description": "Models behind standard protocols; requests that meet share a batch.",
        },
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "x-headway-models": [_shown(model) for model in served],
        "paths": paths,
        "components": {"schemas": components, "parameters": PARAMETERS},
    }
    if has_keys:
        document["components"]["securitySchemes"] = KEYS
        document["security"] = [{name: []} for name in KEYS]
    return document


def _schemas_of(rows: Sequence[Route]) -> tuple[Mapping[Any, Schema], dict[str, Schema]]:
    """Each type that a route takes or gives, and the types that they are made of."""
    taken = [row.takes for row in rows if row.takes is not None]
    absent = [each.kind for each in taken if each.null_is_absence]
    others = [each.kind for each in taken if not each.null_is_absence]
    others += [kind for row in rows for kind in _kinds_of(row.gives)]
    schemas, components = schemas_of(dict.fromkeys(others), null_is_absence=False)
    more, read = schemas_of(dict.fromkeys(absent), null_is_absence=True)
    return {**schemas, **more}, components | read


def _operation(
    row: Route, served: Sequence[ServedModel], schemas: Mapping[Any, Schema], *, has_keys: bool
) -> Operation:
    parts = re.findall(r"\{(\w+)\}", row.template)
    found = operation_of(
        name=operation_id(row.method, row.template),
        tag=row.tag,
        summary=row.summary,
        description=row.description,
        parameters=[
            *(_path_part(part, served) for part in parts),
            *(URGENCY if row.access is Access.INFER else ()),
        ],
        body=None if row.takes is None else _body(row, row.takes, served, schemas),
        answer=answer_of(_answer(row.gives, schemas), row.gives.others),
        failures=failures_of(
            row.method, row.access, row.errors, has_model=bool(parts), has_keys=has_keys
        ),
    )
    if has_keys and row.access is Access.OPEN:
        found["security"] = []
    if row.task is not None and not any(model_tasks.does(model, row.task) for model in served):
        found[UNANSWERED] = True
    return found


def _kinds_of(gives: Gives) -> tuple[Any, ...]:
    if gives.kind is None:
        return ()
    return gives.kind if isinstance(gives.kind, tuple) else (gives.kind,)


def _answer(gives: Gives, schemas: Mapping[Any, Schema]) -> Schema | None:
    found = [schemas[kind] for kind in _kinds_of(gives)]
    return {"anyOf": found} if len(found) > 1 else next(iter(found), None)


def _body(
    row: Route, takes: Takes, served: Sequence[ServedModel], schemas: Mapping[Any, Schema]
) -> dict[str, Any]:
    if takes.example_of is not None:
        made = {model.name: takes.example_of(model) for model in served}
        examples = {name: example for name, example in made.items() if example is not None}
    else:
        examples = {"typical": _with_model(row, takes, served)}
    body = body_of(schemas[takes.kind], examples, takes.media)
    body["content"] |= {media: {} for media in takes.others}
    body["required"] = not takes.is_optional
    return body


def _with_model(row: Route, takes: Takes, served: Sequence[ServedModel]) -> dict[str, Any]:
    """An example that names a model, where it needs one."""
    if not takes.names_model:
        return dict(takes.example)
    able = (model.name for model in served if row.task and model_tasks.does(model, row.task))
    return {"model": next(able, "name of a model"), **takes.example}


def operation_id(method: str, template: str) -> str:
    words = [word for word in re.split(r"\W+", template) if word]
    return "_".join([method.lower(), *words])


def _path_part(name: str, served: Sequence[ServedModel]) -> dict[str, Any]:
    schema: Schema = {"type": "string"}
    known = {"model": [model.name for model in served], "version": [m.version for m in served]}
    if known.get(name):
        schema["enum"] = sorted(set(known[name]))
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _PARTS[name],
        "schema": schema,
    }


def _shown(model: ServedModel) -> dict[str, Any]:
    """What /docs shows first: its name, and where it is called."""
    operation = operation_id("POST", CHAT) if model_tasks.generates(model) else own_name(model)
    return {"name": model.name, "version": model.version, "operation": operation}
