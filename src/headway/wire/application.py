"""The interface of the application: the wire hands it requests, and knows no route, key or
model."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from headway.wire.messages import Answer, Asker, ErrorResponse, Headers, Pending, Request, Response

# Begins the answer to a body; None: `handle` must do it. The asker is called once, later.
Start: TypeAlias = Callable[[bytes, Asker], Pending | None]


class Rejection(NamedTuple):
    """The reason why a request is not read to its end."""

    status: int
    code: str
    message: str
    headers: Headers = ()


class HttpApplication(Protocol):
    async def handle(self, request: Request) -> Answer:
        """Answer a request. Raises nothing but the caller's own cancellation."""

    def direct(self, url: bytes, headers: dict[bytes, bytes]) -> Start | None:
        """How to begin a POST with this head without a task; None if it uses an optional feature.

        The wire may keep it for every later request with the same head.
        """

    def reject_head(self, headers: Mapping[str, str]) -> Rejection | None:
        """Called before a long body is read: a refusal of it, or None to read it."""

    def answer_error(self, request: Request, error: BaseException) -> Response:
        """The answer for an error that a stream raised before its first chunk."""

    def refuse(
        self, path: str, status: int, message: str, *, code: str, headers: Headers = ()
    ) -> ErrorResponse:
        """The answer to a request that the wire itself refuses."""

    def note_error(self, code: str) -> None:
        """A request ends with this error, made by the wire."""
