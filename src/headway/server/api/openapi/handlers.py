"""The description of all routes: for programs as OpenAPI, for people as a page to try them on."""

from importlib import resources
from typing import Literal

import msgspec

from headway.server.api.openapi.document import document_of
from headway.server.models import Models
from headway.server.net.messages import Request, Response

ROUTES: list[tuple[Literal["GET", "POST"], str, str]] = [
    ("GET", "/", "root"),
    ("GET", "/openapi.json", "openapi"),
    ("GET", "/docs", "docs"),
]
_PAGE = "page.html"
# The page is one file: it loads nothing, and asks only the server it came from.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class OpenAPI:
    """The handlers that ROUTES names, over the models."""

    def __init__(self, models: Models, *, version: str = "0", has_keys: bool = False) -> None:
        self._models = models
        self._version = version
        self._has_keys = has_keys
        self._page = resources.files(__package__).joinpath(_PAGE).read_bytes()

    async def root(self, request: Request) -> Response:
        """A browser is led to the page; a program is told what there is."""
        if "text/html" in request.headers.get("accept", ""):
            return Response(status=307, content_type="text/plain", headers=(("Location", "docs"),))
        names = self._models.names(request.caller)  # none without a key
        links = {"docs": "docs", "openapi": "openapi.json", "ready": "v2/health/ready"}
        found = {"name": "headway", "version": self._version, "models": names, **links}
        return Response(msgspec.json.encode(found))

    async def openapi(self, request: Request) -> Response:
        models = self._models.answering(request.caller)
        document = document_of(models, version=self._version, has_keys=self._has_keys)
        return Response(msgspec.json.encode(document))

    async def docs(self, request: Request) -> Response:
        return Response(
            self._page,
            content_type="text/html; charset=utf-8",
            headers=(("Content-Security-Policy", _POLICY),),
        )
