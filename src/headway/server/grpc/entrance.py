"""Who may call is asked at a call's head, on either stack, before any of its request is read."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import grpc

from headway.observe import logs
from headway.server.auth.access import Access, access_of_method
from headway.server.grpc.calls import SERVICE, Calls, Refusal

RefusalOf: TypeAlias = Callable[[str, Iterable[tuple[str, Any]]], Refusal | None]
_PREFIX = f"/{SERVICE.full_name}/"


class Entrance:
    def __init__(self, service: Any, calls: Calls) -> None:
        """`service` may have `why_not(name, metadata)`, which gives an error or None."""
        self._why_not = getattr(service, "why_not", None)
        self._calls = calls

    @property
    def refusal_of(self) -> RefusalOf | None:
        """None: everybody may do everything."""
        return None if self._why_not is None else self._refusal_of

    def _refusal_of(self, path: str, metadata: Iterable[tuple[str, Any]]) -> Refusal | None:
        if self._why_not is None or not path.startswith(_PREFIX):
            return None
        error = self._why_not(path[len(_PREFIX) :], dict(metadata))
        if error is None:
            return None
        refusal = self._calls.refusal_of(error)
        if self._calls.are_observed:
            line = logs.LoggedRequest(request_id="", method="gRPC", path=path)
            line.code = error.code
            line.log(refusal.code.name)
        return refusal

    def is_open(self, path: str) -> bool:
        """Health and reflection are; of our own methods, those that say so."""
        if not path.startswith(_PREFIX):
            return True
        return access_of_method(path[len(_PREFIX) :]) is Access.OPEN


class AtHead(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # it has no types
    """For grpc.aio. A handler of streams is called before a message is read; one of single requests
    is not."""

    def __init__(self, refusal_of: RefusalOf) -> None:
        self._refusal_of = refusal_of

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        refusal = self._refusal_of(details.method, details.invocation_metadata or ())
        if refusal is None:
            return await continuation(details)

        async def refuse(_: Any, context: Any) -> None:
            await context.abort(*refusal)

        return grpc.stream_stream_rpc_method_handler(refuse)
