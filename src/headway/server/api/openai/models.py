"""OpenAI's list of models, with what a client has to know beside it."""

import time
from typing import Literal

import msgspec

from headway.errors import HeadwayError
from headway.server.api.kinds import task_of
from headway.server.api.vectors import token_ids_of
from headway.server.models import Models
from headway.server.net.messages import Request, Response

ROUTES: list[tuple[Literal["GET"], str, str]] = [
    ("GET", "/v1/models", "models"),
    ("GET", "/v1/models/{model}", "model"),
]


class ModelList:
    """The handlers that ROUTES names."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._created = int(time.time())

    async def models(self, request: Request) -> Response:
        data = [self._entry(request, name) for name in self._models.names(request.caller)]
        adapters = self._models.adapters(request.caller)
        data += [self._entry(request, name, parent) for name, parent in adapters.items()]
        return Response(msgspec.json.encode({"object": "list", "data": data}))

    async def model(self, request: Request, model: str) -> Response:
        self._models.find_ready(request.caller, model)
        parent = self._models.adapters(request.caller).get(model, "")
        kserve = {"name": model, "ready": True}  # its first protocol has the same path
        return Response(msgspec.json.encode({**self._entry(request, model, parent), **kserve}))

    def _more(self, request: Request, name: str) -> dict[str, object]:
        try:
            served = self._models.get(request.caller, name)
        except HeadwayError:  # one that is not loaded says nothing of itself
            return {}
        told = {"task": task_of(served), "token_ids": token_ids_of(served)}
        return {key: value for key, value in told.items() if value is not None}

    def _entry(self, request: Request, name: str, parent: str = "") -> dict[str, object]:
        """OpenAI's, and what a client has to know beside it."""
        return {
            **self._more(request, name),
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "headway",
            **({"parent": parent} if parent else {}),
        }
