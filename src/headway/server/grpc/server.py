"""The gRPC server: reports its health, and stops without losing an answer."""

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from headway.config import ServerConfig
from headway.hosting.registry import Registry
from headway.server.auth.gates import grpc_gate
from headway.server.auth.guard import Guard
from headway.server.grpc.admission import CallAdmission
from headway.server.grpc.call_logs import wrappers
from headway.server.grpc.calls import MOST_BYTES, SERVICE, Calls
from headway.server.grpc.direct import DirectInfer
from headway.server.grpc.health import HealthService
from headway.server.grpc.service import Methods
from headway.server.grpc.standard import health_pb2
from headway.server.grpc.standard.reflection import VERSIONS, Reflection
from headway.server.grpc.standard.serving import methods_of
from headway.server.grpc.streams import OpenStreams
from headway.server.service.inference import Inference, inference_over
from headway.server.service.shared_memory import SharedRegions
from headway.wire.body_room import BodyRoom
from headway.wire.http2.method import Method
from headway.wire.http2.server import H2Server
from headway.wire.listener import cannot_listen
from headway.wire.port import bracketed

if TYPE_CHECKING:
    from headway.server.observing import Observing

_log = logging.getLogger(__name__)


# What is a little too large is read, so that it can be refused in our own words and with our own
# code; what is far too large is cut off by the connection (RESOURCE_EXHAUSTED).
def _most_read(config: ServerConfig) -> int:
    return min(2 * config.max_body_bytes, MOST_BYTES)


class GrpcServer:
    """`async with GrpcServer(registry, config) as server:` serves until the block ends, then
    drains."""

    def __init__(
        self,
        models: Registry | Inference,
        config: ServerConfig,
        *,
        version: str = "0",
        regions: SharedRegions | None = None,
        guard: Guard | None = None,
        observing: "Observing | None" = None,
        room: BodyRoom | None = None,
    ) -> None:
        """`version` and `regions` are for a registry; a service has its own."""
        self._room = room or BodyRoom(config)
        self._inference = inference_over(models, config, version=version, regions=regions)
        self._config = config
        self._guard = guard or Guard(config)
        self._running: _Running | None = None
        self._errors = None if observing is None else observing.grpc_errors
        self._wrappers = [] if observing is None else wrappers(observing)
        self._requests = None if observing is None else observing.history.requests
        self.port = config.grpc_port

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def address(self) -> str:
        return f"{bracketed(self._config.host)}:{self.port}"

    async def start(self) -> None:
        """Raises ConfigError where the port is taken."""
        config = self._config
        calls = Calls(
            max_message_bytes=config.max_body_bytes,
            debug=config.debug,
            errors=self._errors,
            wrappers=self._wrappers,
            requests=self._requests,
        )
        running = _Running(self._inference, config, self._guard, calls, self._room)
        try:
            self.port = await running.wire.start(config.host, config.grpc_port)
        except OSError as error:
            raise cannot_listen(f"{self.address} for gRPC", error, "--grpc-port") from error
        self._running = running

    def change(self, config: ServerConfig) -> None:
        """Change limits and times of new connections; the address stays."""
        self._config = config
        if self._running is not None:
            self._running.wire.change(config)

    async def stop(self, drain_s: float | None = None) -> None:
        """Accept no more calls, finish running ones, cancel the remaining ones at the deadline."""
        running, self._running = self._running, None
        if running is not None:
            await running.stop(self._config.drain_s if drain_s is None else drain_s)


class _Running:
    """The parts of a server between its start and its stop."""

    def __init__(
        self, inference: Inference, config: ServerConfig, guard: Guard, calls: Calls, room: BodyRoom
    ) -> None:
        self._calls = calls
        has_keys = guard.keys is not None
        self._service = Methods(inference, calls, has_keys=has_keys, room=room)
        streams = OpenStreams()
        self._health = HealthService(inference.models.registry)
        watch = streams.bounded(self._health.Watch)
        self._health.Watch = watch  # type: ignore[assignment, method-assign]
        methods = calls.methods(self._service, grpc_gate(config, has_keys=has_keys))
        if not calls.are_observed:
            path = f"/{SERVICE.full_name}/ModelInfer"
            direct = DirectInfer(inference, calls, has_keys=has_keys)
            methods[path] = methods[path]._replace(direct=direct)
        self.wire = H2Server(
            methods | _standard(self._health, streams),
            config,
            limit_bytes=_most_read(config),
            tls=guard.tls("h2"),
            room=room,
            admit=CallAdmission(guard.keys, calls).admit,
        )

    async def stop(self, drain_s: float) -> None:
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.create_task(self.wire.stop(drain_s))  # new calls are refused
        self._service.finish_streams()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await self._calls.wait_idle()
            # A `Watch` or reflection call would hold up the rest of the drain.
            await self.wire.stop(None)
        finally:
            await stopping


def _standard(health: HealthService, streams: OpenStreams) -> dict[str, Method]:
    """gRPC's own services: health and reflection."""
    own = health_pb2.DESCRIPTOR.services_by_name["Health"]
    reflections = [
        (messages.DESCRIPTOR.services_by_name["ServerReflection"], messages)
        for messages in VERSIONS
    ]
    names = [SERVICE.full_name, own.full_name, *(each.full_name for each, _ in reflections)]
    found = methods_of(own, health_pb2, health)
    for service, messages in reflections:
        reflection: Any = Reflection(names, messages)
        reflection.ServerReflectionInfo = streams.bounded(reflection.ServerReflectionInfo)
        found |= methods_of(service, messages, reflection)
    return found
