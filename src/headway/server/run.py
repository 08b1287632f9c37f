"""The server's life: models start, the front ends listen, everything stops in order."""

import asyncio
import importlib.metadata
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from headway.config import Config, KeyConfig, ModelConfig, ServerConfig, keys_of
from headway.errors import ConfigError, HeadwayError
from headway.server import draining, metrics, notify, plain
from headway.server.app import App
from headway.server.guard.access import access_of_route
from headway.server.guard.guard import Guard, with_tenants
from headway.server.guard.http import Gate, gate_without_keys
from headway.server.guard.local import is_loopback
from headway.server.http.server import HttpServer
from headway.server.observing import Observing
from headway.server.openai import handlers as openai
from headway.server.openapi import handlers as openapi
from headway.server.reloading import changes_of, key_changes_of, merged
from headway.server.served import Served
from headway.server.serving import Registry
from headway.server.signals import Signals
from headway.server.timed import TimedServed
from headway.server.v2 import handlers as v2
from headway.server.v2.shared_memory import SharedRegions
from headway.server.v2.statistics import ModelStatistics
from headway.server.v2.tensors import Limits

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


async def run(
    config: Config,
    announce: Announce | None = None,
    *,
    reread: Callable[[], Config] | None = None,
) -> None:
    """Serve until asked to stop. `announce` learns the addresses, and that everything is ready;
    `reread` gives the configuration as it is now, for SIGHUP."""
    keys = keys_of(config)
    guard = Guard(config.server, keys)
    with _regions(config.server) as regions, _observing(config.server) as observing:
        async with serving(with_tenants(config, keys), observing) as registry:
            app = guard.app(
                registry,
                lambda view, gate: make_app(
                    view, config.server, regions=regions, gate=gate, observing=observing
                ),
            )
            observing.wrap(app)
            http = HttpServer(app, config.server, tls=guard.tls(), admit=guard.admit)
            grpc = make_grpc(
                registry, config.server, regions=regions, guard=guard, observing=observing
            )

            def say() -> None:
                addresses = Addresses(http.url, None if grpc is None else grpc.address)
                _log.info("listening on %s", addresses.http)
                if addresses.grpc is not None:
                    _log.info("listening for gRPC on %s", addresses.grpc)
                if announce is not None:
                    announce(addresses, registry)
                notify.ready()

            reloader = Reloader(config, keys, guard, http)
            await serve(
                [http] if grpc is None else [http, grpc],
                reloader,
                say,
                hang_up=None if reread is None else lambda: reloader.reload(reread),
                leave=registry.drain,
            )


class Reloader:
    """The configuration in force. SIGHUP changes of it what can be changed, and says so."""

    def __init__(
        self, config: Config, keys: Sequence[KeyConfig], guard: Guard, http: HttpServer
    ) -> None:
        self.config = config
        self._keys = keys
        self._guard = guard
        self._http = http

    def reload(self, reread: Callable[[], Config]) -> None:
        notify.reloading()
        try:
            new = reread()
            keys = keys_of(new)
        except HeadwayError as error:
            _log.error("the configuration stays as it was: %s", error)
        else:
            self._change(new, keys)
        if self._guard.certificates is not None:
            self._guard.certificates.refresh()
        notify.ready()

    def _change(self, new: Config, keys: Sequence[KeyConfig]) -> None:
        changes = [*changes_of(self.config, new), *key_changes_of(self._keys, keys)]
        for change in changes:
            (_log.info if change.is_live else _log.warning)("%s", change)
        _log.info("configuration read again: %d changes", len(changes))
        self.config = merged(self.config, new)
        self._http.change(self.config.server)
        if self._guard.has_keys and keys:
            self._guard.change_keys(keys)
            self._keys = keys


def make_app(
    registry: Registry,
    config: ServerConfig,
    *,
    regions: SharedRegions | None = None,
    gate: Gate | None = None,
    observing: Observing | None = None,
) -> App:
    """All routes, for these models; `gate` says who may call which."""
    gate = gate or gate_without_keys(is_local=is_loopback(config.host))
    errors = None if observing is None else observing.http_errors
    app = App(max_body_bytes=config.max_body_bytes, debug=config.debug, errors=errors)
    version = importlib.metadata.version("headway")
    limits = Limits(config.max_request_rows, config.max_tensor_elements)
    watching = [] if observing is None or observing.page is None else [observing.page]
    for routes, handlers in (
        (v2.ROUTES, v2.V2(registry, version=version, regions=regions, limits=limits)),
        (openai.ROUTES, openai.OpenAI(registry)),
        (plain.ROUTES, plain.Plain(registry, max_rows=limits.rows)),
        (openapi.ROUTES, openapi.OpenAPI(registry, version=version)),
        (draining.ROUTES, draining.Draining(registry)),
        *((metrics.ROUTES, page) for page in watching),
    ):
        for method, template, name in routes:
            handler = getattr(handlers, name)
            gated = gate(access_of_route(method, template), handler)
            # The direct way goes past the gate: only where there is none.
            direct = getattr(handlers, f"{name}_direct", None) if gated is handler else None
            app.add(method, template, gated, direct=direct)
    return app


def make_grpc(
    registry: Registry,
    config: ServerConfig,
    *,
    regions: SharedRegions | None = None,
    guard: Guard | None = None,
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
    return GrpcServer(
        registry, config, version=version, regions=regions, guard=guard, observing=observing
    )


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
    reloader: Reloader,
    say: Callable[[], None],
    *,
    hang_up: Callable[[], None] | None = None,
    leave: Callable[[], None],
) -> None:
    """Listen until the process is asked to stop; then `leave` the balancers' sight, and finish
    what has begun, on all at once."""
    with Signals(hang_up) as signals:
        try:
            for front_end in front_ends:
                await _listen(front_end, reloader.config.server)
            say()
            await signals.wait_stop()
            notify.stopping()
            leave()
            await _wait(reloader.config.server.stop_delay_s)
        finally:
            await asyncio.gather(*(front_end.stop() for front_end in front_ends))


async def _wait(seconds: float) -> None:
    """Balancers take a moment to notice that we are not ready: serve whom they still send."""
    if seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().create_future()


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
        model = Served(config) if config.timeout_ms is None else TimedServed(config)
    except ConfigError as error:
        raise ConfigError(f"model {config.name!r}: {error}") from error
    model.statistics = statistics = ModelStatistics()
    model.batcher.observe(statistics.observe)
    if observing is not None:
        observing.watch(model, statistics)
    return model
