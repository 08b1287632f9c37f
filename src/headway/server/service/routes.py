"""A row of the routing table: the path, its handler, the right it takes, its errors, its
bodies, and its direct path, if it has one. Each family in `families/` has its rows."""

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from headway.errors import InvalidInput
from headway.hosting.registry import ServedModel
from headway.server.auth.access import Access
from headway.server.bodies.json_body import decode_fields
from headway.server.service.error_words import anthropic_error, in_tritons_words, openai_error
from headway.server.service.model_tasks import Task
from headway.wire.messages import JSON, Answer, ErrorResponse, Headers, Pending, Request

Handler: TypeAlias = Callable[..., Awaitable[Answer]]  # (request, its decoded body, **params)

# (body, asker, caller, tenant, **params): starts the commonest kind of request without a task, or
# gives None.
DirectHandler: TypeAlias = Callable[..., Pending | None]
# Whether the headers ask for nothing that only the general path does.
IsDirect: TypeAlias = Callable[[dict[bytes, bytes]], bool]


class ErrorFormat(Enum):
    """How a family's clients read an error: the value under `error`."""

    TEXT = "text"
    TRITON = "triton"  # a text, with words that Triton's clients look for
    OPENAI = "openai"  # an object
    ANTHROPIC = "anthropic"  # an object, beside a type

    def refusal(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Headers = (),
    ) -> ErrorResponse:
        # A model's words may hold what no encoding can carry: half of a surrogate pair.
        message = message.encode("utf-8", "replace").decode()
        body: dict[str, Any] = {"error": message}
        if self is ErrorFormat.TRITON:
            body = {"error": in_tritons_words(code, message)}
        elif self is ErrorFormat.OPENAI:
            body = {"error": openai_error(status, message, code=code, param=param)}
        elif self is ErrorFormat.ANTHROPIC:
            body = anthropic_error(status, message, code=code)
        return ErrorResponse(msgspec.json.encode(body), status, code=code, headers=headers)


class Takes(NamedTuple):
    """The body of a route's requests."""

    kind: Any  # its type
    example: Mapping[str, Any] = {}
    example_of: Callable[[ServedModel], Any] | None = None  # instead: of each model; None: none
    names_model: bool = False  # in a field `model`
    is_decoded: bool = True  # the handler gets it after the request; False: it reads the body
    is_optional: bool = False  # an empty body is `{}`
    null_is_absence: bool = True
    neutral_query: str = ""  # a query that changes nothing
    media: str = JSON
    others: tuple[str, ...] = ()  # media types of bodies that are no JSON


class Gives(NamedTuple):
    """The body of a route's answers."""

    kind: Any = None  # the type of its JSON, or a tuple of types; None: it is never JSON
    others: tuple[str, ...] = ()  # media types beside JSON


class Route(NamedTuple):
    method: str
    template: str  # e.g. /v2/models/{model}/infer
    handler: Handler
    access: Access = Access.ADMIN
    errors: ErrorFormat = ErrorFormat.TEXT
    direct: DirectHandler | None = None
    is_direct: IsDirect | None = None  # None: any headers will do
    may_compress: bool = False  # answers, on request
    # What `/openapi.json` and `docs/reference/http.md` say of it.
    summary: str = ""
    description: str = ""
    tag: str = ""  # the protocol; empty: not in `/openapi.json`
    takes: Takes | None = None
    gives: Gives = Gives()
    task: Task | None = None  # of the models that answer; None: any


def decoding(route: Route) -> Handler:
    """The route's handler, which gets the request's body decoded, as `takes` says."""
    takes, handler = route.takes, route.handler
    if takes is None or not takes.is_decoded:
        return handler
    default = b"{}" if takes.is_optional else b""

    async def decoded(request: Request, **params: str) -> Answer:
        if request.query != takes.neutral_query:
            no_query(request)
        body = await decode_fields(request, takes.kind, default=default)
        return await handler(request, body, **params)

    return decoded


def no_query(request: Request) -> None:
    """Refuse a query, on routes whose options are in the body: it would be ignored."""
    if request.query:
        name = request.query.partition("&")[0].partition("=")[0]
        raise InvalidInput(f"query parameter {name!r} is unknown; this route takes none")


class RouteFamily(Protocol):
    """Handlers that share a protocol."""

    def routes(self) -> list[Route]: ...
