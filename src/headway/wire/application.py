"""The interface of the application: the wire hands it requests, and knows no route, key or
model."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from headway.wire.messages import Answer, Asker, ErrorResponse, Headers, Pending, Request, Response


class Rejection(NamedTuple):
    """The reason why a request is not read to its end."""

    status: int
    code: str
    message: str
    headers: Headers = ()


class HttpApplication(Protocol):
    async def handle(self, request: Request) -> Answer:
        """Answer a request. Raises nothing but the caller's own cancellation."""
        ...

    def start_direct(
        self, url: bytes, body: bytes, asker: Asker, headers: dict[bytes, bytes]
    ) -> Pending | None:
        """Begin a POST without a task, if it uses no optional feature; None: `handle` must do it.
        The asker is called once, later."""
        ...

    def reject_head(self, headers: Mapping[str, str]) -> Rejection | None:
        """Called before a long body is read: a refusal of it, or None to read it."""
        ...

    def answer_error(self, request: Request, error: BaseException) -> Response:
        """The answer for an error that a stream raised before its first chunk."""
        ...

    def refuse(
        self, path: str, status: int, message: str, *, code: str, headers: Headers = ()
    ) -> ErrorResponse:
        """The answer to a request that the wire itself refuses."""
        ...

    def note_error(self, code: str) -> None:
        """A request ends with this error, made by the wire."""
        ...
