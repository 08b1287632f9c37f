"""The server's life: models start, the front ends listen, everything stops in order."""

import asyncio
import functools
import importlib.metadata
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from headway.config import Config, ModelConfig, ServerConfig
from headway.errors import ConfigError
from headway.models.catalogue import AnyModel
from headway.server import admin, metrics, plain
from headway.server.app import App
from headway.server.http.server import HttpServer
from headway.server.observing import Observing
from headway.server.openai import handlers as openai
from headway.server.openapi import handlers as openapi
from headway.server.repository.keeper import Keeper
from headway.server.served import ModelHome, Served
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
    """Serve until asked to stop. `announce` learns the addresses, and that everything is ready.

    The ports are open before the models are loaded: live at once, ready later.
    """
    with _regions(config.server) as regions, _observing(config.server) as observing:
        async with Keeper(config, functools.partial(make_served, observing=observing)) as keeper:
            registry = keeper.registry
            app = make_app(registry, config.server, regions=regions, observing=observing)
            observing.wrap(app)
            http = HttpServer(app, config.server)
            grpc = make_grpc(registry, config.server, regions=regions, observing=observing)

            def say() -> None:
                addresses = Addresses(http.url, None if grpc is None else grpc.address)
                if addresses.grpc is not None:
                    _log.info("listening for gRPC on %s", addresses.grpc)
                _log.info("listening on %s", addresses.http)
                if announce is not None:
                    announce(addresses, registry)

            front_ends: list[FrontEnd] = [http] if grpc is None else [http, grpc]
            await serve(front_ends, config.server, say, keeper.wait_started())


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
        (admin.ROUTES, admin.Admin(registry)),
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
    front_ends: Sequence[FrontEnd],
    config: ServerConfig,
    say: Callable[[], None],
    starting: Coroutine[Any, Any, None],
) -> None:
    """Listen until the process is asked to stop; then finish what has begun, on all at once.

    `say` is called when `starting` (the models) is done.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    started = loop.create_task(starting)
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    try:
        try:
            for front_end in front_ends:
                await _listen(front_end, config)
            if await _done_before(stop, started):
                say()
                await stop.wait()
        finally:
            started.cancel()
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


async def _done_before(stop: asyncio.Event, task: "asyncio.Task[None]") -> bool:
    """Has the task ended before we are asked to stop? Raises what it raised."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    if task.done():
        task.result()
    return task.done() and not stop.is_set()


@asynccontextmanager
async def serving(config: Config, observing: Observing | None = None) -> AsyncIterator[Registry]:
    """All models loaded and warm; drained and closed afterwards, also when one of them fails."""
    async with Keeper(config, functools.partial(make_served, observing=observing)) as keeper:
        await keeper.wait_started()
        yield keeper.registry


def make_served(
    config: ModelConfig,
    version: str,
    model: AnyModel,
    home: ModelHome,
    *,
    observing: Observing | None = None,
) -> Served:
    """One version of one model, with everybody who watches it."""
    served = Served(config, model=model, version=version, home=home)
    served.statistics = statistics = ModelStatistics()
    served.batcher.observe(statistics.observe)
    if observing is not None:
        observing.watch(served, statistics)
    return served
