"""OpenAI's list of models, with what a client has to know beside it."""

import time
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from headway.errors import HeadwayError
from headway.server.auth.access import Access
from headway.server.service.model_tasks import task_of
from headway.server.service.models import VisibleModels
from headway.server.service.routes import ErrorFormat, Gives, Route
from headway.server.service.vectors import token_ids_of
from headway.wire.messages import Request, Response


class ModelEntry(TypedDict):
    """OpenAI's fields, and others that clients need."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str  # vLLM's: the model that computes; of an adapter its parent, of an alias its model
    parent: NotRequired[str]  # of an adapter
    task: NotRequired[str]
    token_ids: NotRequired[dict[str, Any]]
    max_model_len: NotRequired[int]  # vLLM's, of a language model: prompt and answer together
    name: NotRequired[str]  # with `ready`: KServe's first protocol has the same path
    ready: NotRequired[bool]


class ModelEntries(TypedDict):
    object: Literal["list"]
    data: list[ModelEntry]


class ModelList:
    """The routes and their handlers."""

    def __init__(self, models: VisibleModels) -> None:
        self._models = models
        self._created = int(time.time())

    def routes(self) -> list[Route]:
        return [
            Route(
                *("GET", "/v1/models", self.models, Access.READ, ErrorFormat.OPENAI),
                tag="openai",
                summary="The models that are served",
                gives=Gives(ModelEntries),
            ),
            Route(
                *("GET", "/v1/models/{model}", self.model, Access.READ, ErrorFormat.OPENAI),
                tag="openai",
                summary="One model",
                gives=Gives(ModelEntry),
            ),
        ]

    async def models(self, request: Request) -> Response:
        data = [self._entry(request, name) for name in self._models.names(request.caller)]
        for alias, name in self._models.aliases(request.caller).items():
            data.append({**self._entry(request, name), "id": alias})
        adapters = self._models.adapters(request.caller)
        data += [self._entry(request, name, parent) for name, parent in adapters.items()]
        answer: ModelEntries = {"object": "list", "data": data}
        return Response(msgspec.json.encode(answer))

    async def model(self, request: Request, model: str) -> Response:
        self._models.find_ready(request.caller, model)
        parent = self._models.adapters(request.caller).get(model, "")
        name = self._models.aliases(request.caller).get(model, model)
        entry = self._entry(request, name, parent)
        entry["id"] = model
        entry["name"], entry["ready"] = model, True
        return Response(msgspec.json.encode(entry))

    def _entry(self, request: Request, name: str, parent: str = "") -> ModelEntry:
        entry: ModelEntry = {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "headway",
            "root": parent or name,
        }
        if parent:
            entry["parent"] = parent
        try:
            served = self._models.get(request.caller, name)
        except HeadwayError:  # one that is not loaded says nothing of itself
            return entry
        task, token_ids = task_of(served), token_ids_of(served)
        if task is not None:
            entry["task"] = task
        if token_ids is not None:
            entry["token_ids"] = token_ids
        if served.language is not None:
            entry["max_model_len"] = served.language.max_context
        return entry
