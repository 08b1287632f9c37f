"""`/admin/drain`: out of the balancers' sight, without losing what still comes."""

from typing import Literal

import msgspec

from headway.hosting.registry import Registry
from headway.server.json.body import decode_fields
from headway.server.net.messages import Request, Response

ROUTES: list[tuple[Literal["GET", "POST"], str, str]] = [
    ("GET", "/admin/drain", "state"),
    ("POST", "/admin/drain", "drain"),
]


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    draining: bool = True


class Draining:
    """Not ready from now on, until it is told otherwise; requests are answered all the same."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def state(self, request: Request) -> Response:
        return Response(msgspec.json.encode({"draining": self._registry.is_draining}))

    async def drain(self, request: Request) -> Response:
        asked = await decode_fields(request, _Body, default=b"{}")
        self._registry.drain(is_draining=asked.draining)
        return await self.state(request)
