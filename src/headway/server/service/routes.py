"""What a row of the routing table says: the path, its handler, the right it takes, how its errors
are spelled, and its direct way, if it has one. Each family in `api/` has its rows."""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from headway.server.auth.access import Access
from headway.server.service.openai_errors import openai_error
from headway.server.service.triton_words import in_tritons_words
from headway.wire.messages import Answer, Headers, Pending, Refusal

Handler: TypeAlias = Callable[..., Awaitable[Answer]]  # (request, **params)


# (body, asker, caller, tenant, **params): starts the commonest kind of request without a task, or
# gives None.
DirectHandler: TypeAlias = Callable[..., Pending | None]
# Whether headers wish for nothing that only the general way gives.
IsDirect: TypeAlias = Callable[[dict[bytes, bytes]], bool]


class Errors(Enum):
    """How a family's clients read an error: the value under `error`."""

    TEXT = "text"
    TRITON = "triton"  # a text, with words that Triton's clients look for
    OPENAI = "openai"  # an object

    def refusal(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Headers = (),
    ) -> Refusal:
        # A model's words may hold what no encoding can carry: half of a surrogate pair.
        message = message.encode("utf-8", "replace").decode()
        error: Any = message
        if self is Errors.TRITON:
            error = in_tritons_words(code, message)
        elif self is Errors.OPENAI:
            error = openai_error(status, message, code=code, param=param)
        return Refusal(msgspec.json.encode({"error": error}), status, code=code, headers=headers)


class Route(NamedTuple):
    method: str
    template: str  # e.g. /v2/models/{model}/infer
    handler: Handler
    access: Access = Access.ADMIN
    errors: Errors = Errors.TEXT
    direct: DirectHandler | None = None
    is_direct: IsDirect | None = None  # None: whatever the headers
    may_compress: bool = False  # answers, on request


class Family(Protocol):
    """Handlers that share a protocol."""

    def routes(self) -> list[Route]: ...
