"""The description of all routes: for programs as OpenAPI, for people as a page to try them on."""

from collections.abc import Sequence
from importlib import resources

import msgspec

from headway.server.auth.access import Access
from headway.server.families.openapi.document import document_of
from headway.server.service.models import VisibleModels
from headway.server.service.routes import Gives, Route
from headway.wire.messages import Request, Response

_PAGE = "page.html"
# The page is one file: it loads nothing, and asks only the server it came from.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


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
        self._page = resources.files(__package__).joinpath(_PAGE).read_bytes()

    def routes(self) -> list[Route]:
        """The page of /docs says nothing of the models: for their description it asks with a
        key."""
        return [
            Route(
                *("GET", "/", self.root, Access.OPEN),
                tag="huggingface",
                summary="The models' names and the server's main links; a browser is sent to /docs",
                gives=Gives(dict),
            ),
            Route(
                *("GET", "/openapi.json", self.openapi, Access.READ),
                summary="The routes, as OpenAPI 3.1",
            ),
            Route("GET", "/docs", self.docs, Access.OPEN, summary="The routes, as a page"),
        ]

    async def root(self, request: Request) -> Response:
        """A browser is sent to /docs; a program gets the models and links."""
        if "text/html" in request.headers.get("accept", ""):
            return Response(status=307, content_type="text/plain", headers=(("Location", "docs"),))
        names = self._models.names(request.caller)  # none without a key
        links = {"docs": "docs", "openapi": "openapi.json", "ready": "v2/health/ready"}
        found = {"name": "headway", "version": self._version, "models": names, **links}
        return Response(msgspec.json.encode(found))

    async def openapi(self, request: Request) -> Response:
        models = self._models.answering(request.caller)
        rows = [*self._rows, *self.routes()]
        document = document_of(models, rows, version=self._version, has_keys=self._has_keys)
        return Response(msgspec.json.encode(document))

    async def docs(self, request: Request) -> Response:
        return Response(
            self._page,
            content_type="text/html; charset=utf-8",
            headers=(("Content-Security-Policy", _POLICY),),
        )
