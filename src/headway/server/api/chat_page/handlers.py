"""The page to talk to a language model. It says nothing of the models: it asks, with a key."""

from importlib import resources
from typing import Literal

from headway.server.net.messages import Request, Response

ROUTES: list[tuple[Literal["GET", "POST"], str, str]] = [("GET", "/chat", "page")]
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class ChatPage:
    """The handler that ROUTES names."""

    def __init__(self) -> None:
        self._page = resources.files(__package__).joinpath("page.html").read_bytes()

    async def page(self, request: Request) -> Response:
        return Response(
            self._page,
            content_type="text/html; charset=utf-8",
            headers=(("Content-Security-Policy", _POLICY),),
        )
