"""The routes of the pages, and `/`, which lists models and routes for programs."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

import msgspec

from headway.server.auth.access import Access
from headway.server.service.models import VisibleModels
from headway.server.service.routes import Gives, Handler, Route
from headway.wire.messages import Request, Response

_POLICY = (
    "default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Page:
    """The frame and the look that all pages share, and what is its own. Its browser runs the very
    script and style that are in it, by their digests, and nothing else. It says nothing of the
    models: what it shows it asks for, with a key."""

    def __init__(self, name: str, title: str, *, parts: Sequence[str] = ()) -> None:
        """`name`: of its link and its files, which may be absent. `parts`: of its script."""
        style = _text("look.css") + _text(f"{name}.css")
        script = "".join(_text(f"{each}.js") for each in ("common", *parts, name))
        filled = {"title": title, "style": style, "script": script, "body": _text(f"{name}.html")}
        page = _text("frame.html").replace(f'data-name="{name}"', 'aria-current="page"')
        for part, text in filled.items():
            page = page.replace(f"<!-- {part} -->", text)
        self._body = page.encode()
        policy = _POLICY.format(style=_digest(style), script=_digest(script))
        self._headers = (("Content-Security-Policy", policy), ("Cache-Control", "no-cache"))

    def answer(self) -> Response:
        return Response(self._body, content_type="text/html; charset=utf-8", headers=self._headers)


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


def _text(name: str) -> str:
    found = resources.files(__package__).joinpath(name)
    return found.read_text("utf-8") if found.is_file() else ""


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
