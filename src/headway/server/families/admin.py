"""What an operator does while models are served: list, load, reload or unload them, and take the
server out of the balancers' sight without losing what still comes."""

from typing import Any

import msgspec

from headway.hosting.registry import VersionEntry
from headway.server.auth.keys import check_whole_server
from headway.server.service import adapters
from headway.server.service.models import VisibleModels
from headway.server.service.routes import Route, Takes
from headway.wire.messages import Request, Response


class _LoadBody(msgspec.Struct, forbid_unknown_fields=True):
    config: dict[str, Any] = {}


class _AdapterBody(msgspec.Struct, forbid_unknown_fields=True):
    folder: str


class _DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    draining: bool = True


class Admin:
    """The routes and their handlers. `server/auth` decides which keys may use them."""

    def __init__(self, models: VisibleModels) -> None:
        self._models = models

    def routes(self) -> list[Route]:
        model = "/admin/models/{model}"
        adapters = f"{model}/adapters"
        return [
            Route(
                *("GET", "/admin/models", self.models),
                summary="Every model and version, with its state",
            ),
            Route(
                *("GET", "/admin/workers", self.workers),
                summary="The workers of every version that answers",
            ),
            Route(
                *("POST", f"{model}/load", self.load),
                summary="Load a model from its folder as it is now; returns when it is ready",
                takes=Takes(_LoadBody, is_optional=True),
            ),
            Route(
                *("POST", f"{model}/reload", self.reload),
                summary="Load a model again, changed or not, beside the running version",
            ),
            Route(
                *("POST", f"{model}/unload", self.unload),
                summary="Unload a model after its running requests",
            ),
            Route(
                *("GET", adapters, self.adapters),
                summary="The adapters that a language model has loaded",
            ),
            Route(
                *("POST", f"{adapters}/{{adapter}}/load", self.load_adapter),
                summary="Load an adapter from a PEFT folder, or replace the one of that name; "
                "returns when requests may name it",
                takes=Takes(_AdapterBody),
            ),
            Route(
                *("POST", f"{adapters}/{{adapter}}/unload", self.unload_adapter),
                summary="Unload an adapter",
            ),
            Route(
                "GET", "/admin/drain", self.drain_state, summary="Whether the server is draining"
            ),
            Route(
                *("POST", "/admin/drain", self.drain),
                summary="Drain, or stop draining",
                takes=Takes(_DrainBody, is_optional=True),
            ),
        ]

    async def models(self, request: Request) -> Response:
        return _json({"models": [_line(entry) for entry in self._models.index(request.caller)]})

    async def workers(self, request: Request) -> Response:
        models = self._models.versions(request.caller)
        return _json({"workers": [line for model in models for line in model.workers()]})

    async def load(self, request: Request, body: _LoadBody, model: str) -> Response:
        await self._models.load(request.caller, model, body.config)
        return self._state(request, model)

    async def reload(self, request: Request, model: str) -> Response:
        await self._models.reload(request.caller, model)
        return self._state(request, model)

    async def unload(self, request: Request, model: str) -> Response:
        await self._models.unload(request.caller, model)
        return self._state(request, model)

    async def adapters(self, request: Request, model: str) -> Response:
        return _json({"adapters": adapters.lines_of(self._models.get(request.caller, model))})

    async def load_adapter(
        self, request: Request, body: _AdapterBody, model: str, adapter: str
    ) -> Response:
        served = self._models.get(request.caller, model)
        await adapters.load_adapter(self._models, served, adapter, body.folder, replaces=True)
        return _json({"adapters": adapters.lines_of(served)})

    async def unload_adapter(self, request: Request, model: str, adapter: str) -> Response:
        served = self._models.get(request.caller, model)
        await adapters.book_of(served).unload(adapter)
        return _json({"adapters": adapters.lines_of(served)})

    async def drain_state(self, request: Request) -> Response:
        check_whole_server(request.caller)
        return _json({"draining": self._models.registry.is_draining})

    async def drain(self, request: Request, asked: _DrainBody) -> Response:
        """Makes the server report itself as not ready; requests are still answered."""
        check_whole_server(request.caller)
        self._models.registry.drain(is_draining=asked.draining)
        return await self.drain_state(request)

    def _state(self, request: Request, model: str) -> Response:
        entries = [entry for entry in self._models.index(request.caller) if entry.name == model]
        return _json({"models": [_line(entry) for entry in entries]})


def _line(entry: VersionEntry) -> dict[str, str]:
    return {
        "name": entry.name,
        "version": entry.version,
        "state": entry.state,
        "reason": entry.reason,
    }


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value))
