"""`/admin/drain`: out of the balancers' sight, without losing what still comes."""

import msgspec

from headway.hosting.registry import Registry
from headway.server.auth.keys import check_whole_server
from headway.server.service.routes import Route, Takes
from headway.wire.messages import Request, Response


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    draining: bool = True


class Draining:
    """Makes the server report itself as not ready; requests are still answered."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/admin/drain", self.state, summary="Whether the server is draining"),
            Route(
                *("POST", "/admin/drain", self.drain),
                summary="Drain, or stop draining",
                takes=Takes(_Body, is_optional=True),
            ),
        ]

    async def state(self, request: Request) -> Response:
        check_whole_server(request.caller)
        return Response(msgspec.json.encode({"draining": self._registry.is_draining}))

    async def drain(self, request: Request, asked: _Body) -> Response:
        check_whole_server(request.caller)
        self._registry.drain(is_draining=asked.draining)
        return await self.state(request)
