"""The routes of the pages, and `/`, which lists models and routes for programs."""

from collections.abc import Sequence

import msgspec

from headway.server.auth.access import Access
from headway.server.families.web.assembly import Page
from headway.server.service.models import VisibleModels
from headway.server.service.routes import Gives, Handler, Route
from headway.wire.messages import Request, Response


class WebPages:
    """The routes and their handlers, over the models."""

    def __init__(self, models: VisibleModels, *, version: str = "0") -> None:
        self._models = models
        self._version = version
        self._home = Page("home", "Headway")

    def routes(self) -> list[Route]:
        return [
            Route(
                *("GET", "/", self.root, Access.OPEN),
                tag="huggingface",
                summary="The models' names and the server's main links; for a browser, a page",
                gives=Gives(dict),
            ),
            _route("docs", "Headway: routes", "The routes, as a page"),
            _route("chat", "Headway: chat", "A page to talk to a language model"),
            _route(
                *("dashboard", "Headway: dashboard", "A live page: batches, queues, percentiles"),
                parts=("readings", "timetable", "what_if"),
            ),
        ]

    async def root(self, request: Request) -> Response:
        """A browser gets a page; a program gets the models and links."""
        if "text/html" in request.headers.get("accept", ""):
            return self._home.answer()
        names = self._models.names(request.caller)  # none without a key
        links = {"docs": "docs", "openapi": "openapi.json", "ready": "v2/health/ready"}
        found = {"name": "headway", "version": self._version, "models": names, **links}
        return Response(msgspec.json.encode(found))


def _route(name: str, title: str, summary: str, *, parts: Sequence[str] = ()) -> Route:
    page = Page(name, title, parts=parts)
    return Route("GET", f"/{name}", _handler(page), Access.OPEN, summary=summary)


def _handler(page: Page) -> Handler:
    async def handler(request: Request) -> Response:
        return page.answer()

    return handler
