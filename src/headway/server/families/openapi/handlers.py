"""The description of all routes, as OpenAPI: for programs, and for the page `/docs`."""

from collections.abc import Sequence

import msgspec

from headway.server.auth.access import Access
from headway.server.families.openapi.document import document_of
from headway.server.service.models import VisibleModels
from headway.server.service.routes import Route
from headway.wire.messages import Request, Response


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
