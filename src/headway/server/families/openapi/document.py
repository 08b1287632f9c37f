"""`/openapi.json`, OpenAPI 3.1: describes the routes, and the models as they are now. Pure.

Each model has a plain route of its own, with the schemas of its type hints (`own_routes.py`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

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
from headway.server.families.openapi.own_routes import PREDICT, own_name, own_routes
from headway.server.families.openapi.schemas import COMPONENTS, KEYS, PARAMETERS, schemas_of
from headway.server.service import model_tasks
from headway.server.service.examples import Schema
from headway.server.service.models import VisibleModels
from headway.server.service.routes import Gives, Route, Takes
from headway.wire.messages import Request, Response

UNANSWERED = "x-headway-unanswered"  # on an operation: no model that is served now can answer it
CHAT = "/v1/chat/completions"
_PARTS = {  # of paths
    "model": "the model's name",
    "version": "a version that is served",
    "task": "the task, as Hugging Face names it",
    "region": "the region's name, chosen by the client",
    "repository": "any name: the server has one repository",
}
TAGS = {
    "plain": "One value as JSON in, its result out",
    "openai": "For OpenAI's clients",
    "anthropic": "For Anthropic's clients",
    "huggingface": "For Hugging Face's and TEI's clients",
    "cohere": "For Cohere's client",
    "ollama": "For Ollama's clients",
    "v1": "KServe v1, the protocol of TensorFlow Serving",
    "v2": "KServe v2 / Open Inference Protocol, with Triton's extensions",
}


def document_of(
    models: Iterable[ServedModel],
    routes: Iterable[Route] = (),
    *,
    version: str,
    has_keys: bool = False,
) -> dict[str, Any]:
    """The document that describes `models`, as they are now, and `routes`. `has_keys`: every call
    needs a key."""
    served = sorted(models, key=lambda model: model.name)
    # In place of `/v1/predict/{model}`, each model has an entry with its own schemas.
    described = [each for each in routes if each.tag and not each.template.startswith(PREDICT)]
    schemas, components = _schemas_of(described)
    components = COMPONENTS | components
    paths: dict[str, dict[str, Operation]] = {}
    for model in served:
        operations, own_schemas = own_routes(model, has_keys=has_keys)
        paths |= {path: {"post": operation} for path, operation in operations.items()}
        components |= own_schemas
    for route in described:
        operation = _operation(route, served, schemas, has_keys=has_keys)
        paths.setdefault(route.template, {})[route.method.lower()] = operation
    # A model that classifies texts answers `/predict` in TEI's format, which is described above.
    if len(served) == 1 and not model_tasks.classifies_texts(served[0]):
        only = paths[f"{PREDICT}{served[0].name}"]["post"]
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


def _schemas_of(routes: Sequence[Route]) -> tuple[Mapping[Any, Schema], dict[str, Schema]]:
    """The schema of each type that a route takes or gives, and those that they refer to."""
    taken = [route.takes for route in routes if route.takes is not None]
    absent = [each.kind for each in taken if each.null_is_absence]
    others = [each.kind for each in taken if not each.null_is_absence]
    others += [kind for route in routes for kind in _kinds_of(route.gives)]
    schemas, components = schemas_of(dict.fromkeys(others), null_is_absence=False)
    more, read = schemas_of(dict.fromkeys(absent), null_is_absence=True)
    return {**schemas, **more}, components | read


def _operation(
    route: Route, served: Sequence[ServedModel], schemas: Mapping[Any, Schema], *, has_keys: bool
) -> Operation:
    parts = re.findall(r"\{(\w+)\}", route.template)
    found = operation_of(
        name=operation_id(route.method, route.template),
        tag=route.tag,
        summary=route.summary,
        description=route.description,
        parameters=[
            *(_path_part(part, served) for part in parts),
            *(URGENCY if route.access is Access.INFER else ()),
        ],
        body=None if route.takes is None else _body(route, route.takes, served, schemas),
        answer=answer_of(_answer(route.gives, schemas), route.gives.others),
        failures=failures_of(route.method, route.access, route.errors, has_keys=has_keys),
    )
    if has_keys and route.access is Access.OPEN:
        found["security"] = []
    if route.task is not None and not any(model_tasks.does(each, route.task) for each in served):
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
    route: Route, takes: Takes, served: Sequence[ServedModel], schemas: Mapping[Any, Schema]
) -> dict[str, Any]:
    if takes.example_of is not None:
        made = {model.name: takes.example_of(model) for model in served}
        examples = {name: example for name, example in made.items() if example is not None}
    else:
        examples = {"typical": _with_model(route, takes, served)}
    body = body_of(schemas[takes.kind], examples, takes.media)
    body["content"] |= {media: {} for media in takes.others}
    body["required"] = not takes.is_optional
    return body


def _with_model(route: Route, takes: Takes, served: Sequence[ServedModel]) -> dict[str, Any]:
    """The route's example; it names a model if the route needs one."""
    if not takes.names_model:
        return dict(takes.example)
    able = (each.name for each in served if route.task and model_tasks.does(each, route.task))
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
    """The first facts that /docs shows: the model's name and the operation that calls it."""
    operation = operation_id("POST", CHAT) if model_tasks.generates(model) else own_name(model)
    return {"name": model.name, "version": model.version, "operation": operation}


class OpenAPI:
    """The routes and their handlers, over the models."""

    def __init__(
        self,
        models: VisibleModels,
        rows: Sequence[Route],
        *,
        version: str = "0",
        has_keys: bool = False,
    ) -> None:
        """`rows`: the other routes."""
        self._models = models
        self._rows = rows
        self._version = version
        self._has_keys = has_keys

    def routes(self) -> list[Route]:
        return [
            Route(
                *("GET", "/openapi.json", self.openapi, Access.READ),
                summary="The routes, as OpenAPI 3.1",
            )
        ]

    async def openapi(self, request: Request) -> Response:
        models = self._models.answering(request.caller)
        rows = [*self._rows, *self.routes()]
        document = document_of(models, rows, version=self._version, has_keys=self._has_keys)
        return Response(msgspec.json.encode(document))
