"""The page to talk to a language model. It says nothing of the models: it asks, with a key."""

from importlib import resources

from headway.server.auth.access import Access
from headway.server.service.routes import Route
from headway.wire.messages import Request, Response

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class ChatPage:
    """The routes and their handlers."""

    def __init__(self) -> None:
        self._page = resources.files(__package__).joinpath("page.html").read_bytes()

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET", "/chat", self.page, Access.OPEN, summary="A page to talk to a language model"
            )
        ]

    async def page(self, request: Request) -> Response:
        return Response(
            self._page,
            content_type="text/html; charset=utf-8",
            headers=(("Content-Security-Policy", _POLICY),),
        )
