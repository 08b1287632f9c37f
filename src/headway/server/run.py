"""The server's life: models start, the front ends listen, everything stops in order."""

import asyncio
import importlib.metadata
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from headway.config import Config, ModelConfig, ServerConfig
from headway.errors import ConfigError
from headway.server import metrics, plain
from headway.server.app import App
from headway.server.http.server import HttpServer
from headway.server.observing import Observing
from headway.server.openai import handlers as openai
from headway.server.openapi import handlers as openapi
from headway.server.served import Served
from headway.server.serving import Registry
from headway.server.v2 import handlers as v2
from headway.server.v2.shared_memory import SharedRegions
from headway.server.v2.statistics import ModelStatistics

if TYPE_CHECKING:
    from headway.server.grpc.server import GrpcServer

_log = logging.getLogger(__name__)


class Addresses(NamedTuple):
    """Where clients find us."""

    http: str  # a URL
    grpc: str | None  # host:port; None: not served


Announce: TypeAlias = Callable[[Addresses, Registry], None]


class FrontEnd(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


async def run(config: Config, announce: Announce | None = None) -> None:
    """Serve until asked to stop. `announce` learns the addresses, and that everything is ready."""
    with _regions(config.server) as regions, _observing(config.server) as observing:
        async with serving(config, observing) as registry:
            app = make_app(registry, config.server, regions=regions, observing=observing)
            observing.wrap(app)
            http = HttpServer(app, config.server)
            grpc = make_grpc(registry, config.server, regions=regions, observing=observing)

            def say() -> None:
                addresses = Addresses(http.url, None if grpc is None else grpc.address)
                _log.info("listening on %s", addresses.http)
                if addresses.grpc is not None:
                    _log.info("listening for gRPC on %s", addresses.grpc)
                if announce is not None:
                    announce(addresses, registry)

            await serve([http] if grpc is None else [http, grpc], config.server, say)


def make_app(
    registry: Registry,
    config: ServerConfig,
    *,
    regions: SharedRegions | None = None,
    observing: Observing | None = None,
) -> App:
    """All routes, for these models."""
    errors = None if observing is None else observing.http_errors
    app = App(max_body_bytes=config.max_body_bytes, debug=config.debug, errors=errors)
    version = importlib.metadata.version("headway")
    watching = [] if observing is None or observing.page is None else [observing.page]
    for routes, handlers in (
        (v2.ROUTES, v2.V2(registry, version=version, regions=regions)),
        (openai.ROUTES, openai.OpenAI(registry)),
        (plain.ROUTES, plain.Plain(registry)),
        (openapi.ROUTES, openapi.OpenAPI(registry, version=version)),
        *((metrics.ROUTES, page) for page in watching),
    ):
        for method, template, name in routes:
            direct = getattr(handlers, f"{name}_direct", None)
            app.add(method, template, getattr(handlers, name), direct=direct)
    return app


def make_grpc(
    registry: Registry,
    config: ServerConfig,
    *,
    regions: SharedRegions | None = None,
    observing: Observing | None = None,
) -> "GrpcServer | None":
    """None where it is not wanted, or not installed: then HTTP serves alone."""
    if config.grpc_port < 0:
        return None
    try:
        from headway.server.grpc.server import GrpcServer
    except ImportError as error:
        _log.warning("no gRPC: %s; to have it: pip install 'headway[grpc]'", error)
        return None
    version = importlib.metadata.version("headway")
    return GrpcServer(registry, config, version=version, regions=regions, observing=observing)


@contextmanager
def _regions(config: ServerConfig) -> Iterator[SharedRegions | None]:
    """Shared memory that clients register, over whichever front end; None: it is off."""
    regions = SharedRegions() if config.shared_memory else None
    try:
        yield regions
    finally:
        if regions is not None:
            regions.close()


@contextmanager
def _observing(config: ServerConfig) -> Iterator[Observing]:
    if not config.tracing:
        yield Observing(config)
        return
    from headway.observe.tracing import Tracing, provider

    with provider() as spans:
        yield Observing(config, tracing=Tracing(spans))


async def serve(
    front_ends: Sequence[FrontEnd], config: ServerConfig, say: Callable[[], None]
) -> None:
    """Listen until the process is asked to stop; then finish what has begun, on all at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    try:
        try:
            for front_end in front_ends:
                await _listen(front_end, config)
            say()
            await stop.wait()
        finally:
            await asyncio.gather(*(front_end.stop() for front_end in front_ends))
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)


async def _listen(front_end: FrontEnd, config: ServerConfig) -> None:
    try:
        await front_end.start()
    except OSError as error:  # taken, not ours, no such address
        reason = os.strerror(error.errno) if error.errno else error
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {reason}") from error


@asynccontextmanager
async def serving(config: Config, observing: Observing | None = None) -> AsyncIterator[Registry]:
    """All models loaded and warm; drained and closed afterwards, also when one of them fails."""
    models = [_made(each, observing) for each in config.models]
    registry = Registry()
    for model in models:
        registry.add(model)
    try:
        for model in models:  # one after the other: probes must not disturb each other
            await _start(model)
            _log.info("%s is ready", model.name, extra={"model": model.name})
        yield registry
    finally:
        drain_s = config.server.drain_s
        await asyncio.gather(*(model.close(drain_s=drain_s) for model in models))


async def _start(model: Served) -> None:
    try:
        await model.start()
    except ConfigError as error:
        raise ConfigError(f"model {model.name!r}: {error}") from error


def _made(config: ModelConfig, observing: Observing | None) -> Served:
    try:
        model = Served(config)
    except ConfigError as error:
        raise ConfigError(f"model {config.name!r}: {error}") from error
    model.statistics = statistics = ModelStatistics()
    model.batcher.observe(statistics.observe)
    if observing is not None:
        observing.watch(model, statistics)
    return model
