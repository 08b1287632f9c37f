"""Web pages of other origins that may call: answers to the browser's questions. Off unless set."""

from collections.abc import Iterable

from headway.server.app import Handle
from headway.wire.messages import Answer, Headers, Request, Response

_METHODS = "GET, HEAD, POST"
# What a page may send and see beside the harmless few.
_SENT = (
    "Authorization, Content-Type, Content-Encoding, X-Api-Key, X-Request-Id, "
    "Inference-Header-Content-Length, Headway-Timeout-Ms, Headway-Priority, Headway-Tenant, "
    "Headway-Adapter, Headway-Explain"
)
_SEEN = "X-Request-Id, Retry-After, Inference-Header-Content-Length, Headway-Batch"
_REMEMBER_S = 600


class Cors:
    """A layer around the whole app: a preflight request has no key, and errors need the headers,
    too."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.rstrip("/") for origin in origins)

    @staticmethod
    def may_pass(headers: dict[bytes, bytes]) -> bool:
        """Not if a page of another origin asks."""
        return b"origin" not in headers

    def around(self, handle: Handle) -> Handle:
        async def answered(request: Request) -> Answer:
            origin = request.headers.get("origin")
            is_allowed = origin is not None and bool(self._origins & {"*", origin})
            if request.method == "OPTIONS" and "access-control-request-method" in request.headers:
                answer: Answer = Response(status=204, headers=_PREFLIGHT if is_allowed else ())
            else:
                answer = await handle(request)
            answer.headers = (*answer.headers, *self._headers(origin if is_allowed else None))
            return answer

        return answered

    def _headers(self, origin: str | None) -> Headers:
        """The headers for the page's origin. Cookies are not used, so credentials are never
        allowed."""
        if "*" in self._origins:
            allowed = "*" if origin is not None else None
            vary: Headers = ()
        else:
            allowed, vary = origin, (("Vary", "Origin"),)
        if allowed is None:
            return vary
        return (
            ("Access-Control-Allow-Origin", allowed),
            ("Access-Control-Expose-Headers", _SEEN),
            *vary,
        )


_PREFLIGHT: Headers = (
    ("Access-Control-Allow-Methods", _METHODS),
    ("Access-Control-Allow-Headers", _SENT),
    ("Access-Control-Max-Age", str(_REMEMBER_S)),
)
