"""`grpc.health.v1`: for an empty name or the inference service, the health of all models; for a
model's name, of that model. Needs no key, so it shows no model's name."""

import asyncio
from typing import Any

from headway.errors import HeadwayError, NotReady
from headway.hosting.registry import Registry
from headway.server.grpc.calls import SERVICE
from headway.server.grpc.standard import health_pb2
from headway.wire.http2.status import Status

_LOOK_EVERY_S = 0.5  # for `Watch`
_Status = health_pb2.HealthCheckResponse


class HealthService:
    """The registry's word, at every call. Readiness depends on clocks and workers, which
    send no events: all `Watch` calls look again, at the same moments."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._is_stopping = False
        self._next_look: asyncio.Future[None] | None = None

    async def Check(self, request: Any, context: Any) -> Any:
        status = self._status(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            await context.abort(Status.NOT_FOUND, f"no model {request.service!r}")
        return _Status(status=status)

    async def Watch(self, request: Any, context: Any) -> None:
        written = None
        while True:
            status = self._status(request.service)
            if status != written:
                await context.write(_Status(status=status))
                written = status
            await asyncio.shield(self._wait_look())

    async def enter_graceful_shutdown(self) -> None:
        self._is_stopping = True
        self._look()

    def _status(self, service: str) -> Any:
        try:
            is_ready = self._is_ready(service)
        except HeadwayError:
            return _Status.SERVICE_UNKNOWN
        is_serving = is_ready and not self._is_stopping
        return _Status.SERVING if is_serving else _Status.NOT_SERVING

    def _is_ready(self, service: str) -> bool:
        if service in ("", SERVICE.full_name):
            return self._registry.is_ready
        try:
            self._registry.find_ready(service)
        except NotReady:
            return False
        return True

    def _wait_look(self) -> "asyncio.Future[None]":
        if self._next_look is None:
            loop = asyncio.get_running_loop()
            self._next_look = loop.create_future()
            loop.call_later(_LOOK_EVERY_S, self._look)
        return self._next_look

    def _look(self) -> None:
        looking, self._next_look = self._next_look, None
        if looking is not None and not looking.done():
            looking.set_result(None)
