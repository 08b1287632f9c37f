"""The server's life: models start, the front ends listen, everything stops in order."""

import asyncio
import functools
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias

from headway.config import Config, KeyConfig, ModelConfig, ServerConfig, keys_of
from headway.errors import ConfigError, HeadwayError
from headway.hosting.generation.served import ServedGenerator
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.hosting.repository.keeper import Keeper
from headway.hosting.statistics import ModelStatistics
from headway.hosting.tables import ModelOrigin
from headway.models.catalogue import AnyModel
from headway.models.chat.model import LanguageModel
from headway.server import notify
from headway.server.app import App
from headway.server.auth.access import Access
from headway.server.auth.gates import http_gate
from headway.server.auth.guard import Guard
from headway.server.config_changes import changes_of, key_changes_of, merged, weights_of
from headway.server.cors import Cors
from headway.server.families import admin, cohere, kserve_v1, what_if
from headway.server.families.anthropic import messages
from headway.server.families.huggingface import handlers as huggingface
from headway.server.families.ollama import handlers as ollama
from headway.server.families.openai import (
    audio,
    chat,
    completions,
    embeddings,
    images,
    lora_adapters,
    rerank,
    tokens,
)
from headway.server.families.openai import model_list as model_list
from headway.server.families.openapi.document import OpenAPI
from headway.server.families.plain import handlers as plain
from headway.server.families.responses import responses
from headway.server.families.v2 import handlers as v2
from headway.server.families.web.handlers import WebPages
from headway.server.garbage import GarbagePauses
from headway.server.load_port import LoadPort
from headway.server.observing import Observing
from headway.server.pages import PageCheck
from headway.server.service.inference import Inference, inference_over
from headway.server.service.routes import Route, RouteFamily, decoding
from headway.server.service.shared_memory import SharedRegions
from headway.server.signals import Signals
from headway.version import VERSION
from headway.wire.body_room import BodyRoom
from headway.wire.http1.server import HttpServer
from headway.wire.listener import cannot_listen

if TYPE_CHECKING:
    from headway.server.grpc.server import GrpcServer

_log = logging.getLogger(__name__)
_NO_WEIGHTS: Mapping[str, float] = {}


class Addresses(NamedTuple):
    """The addresses that clients use."""

    http: str  # a URL
    grpc: str | None  # host:port; None: not served


Announce: TypeAlias = Callable[[Addresses, Registry], None]


class FrontEnd(Protocol):
    async def start(self) -> None: ...

    def change(self, config: ServerConfig) -> None:
        """Change limits and times of new connections; the address stays."""

    async def stop(self, drain_s: float) -> None: ...


async def run(
    config: Config,
    announce: Announce | None = None,
    *,
    reread: Callable[[], Config] | None = None,
    given: Mapping[str, Callable[[], AnyModel]] | None = None,
    port_option: str = "--port",
) -> None:
    """Serve until asked to stop. `announce` learns the addresses, and that everything is ready;
    `reread` gives the configuration as it is now, for SIGHUP; `given` makes models that no target
    names, of the program's own; `port_option` is what chooses the port, for an error's text.

    The ports are open before the models are loaded: live at once, ready later.
    """
    keys = keys_of(config)
    guard = Guard(config.server, keys)
    weights = weights_of(keys)  # changed in place: what is loaded later has the new ones
    room = BodyRoom(config.server)
    with regions_of(config.server) as regions, observing_of(config.server) as observing:
        make = functools.partial(make_served, weights=weights, observing=observing)
        async with Keeper(config, make, given=given, stages=observing.stages) as keeper:
            registry = keeper.registry
            observing.follow(registry)
            inference = inference_over(registry, config.server, version=VERSION, regions=regions)
            app = make_app(inference, config.server, guard=guard, observing=observing, room=room)
            app = observing.around(app)
            http = HttpServer(app, config.server, tls=guard.tls(), room=room)
            grpc = make_grpc(inference, config.server, guard=guard, observing=observing, room=room)
            pauses = GarbagePauses(registry, observing.history)

            def announce_ready() -> None:
                pauses.start()
                addresses = Addresses(http.url, None if grpc is None else grpc.address)
                if addresses.grpc is not None:
                    _log.info("listening for gRPC on %s", addresses.grpc)
                _log.info("listening on %s", addresses.http)
                if announce is not None:
                    announce(addresses, registry)
                notify.ready()

            watchdog = notify.SystemdWatchdog(lambda: registry.is_live)
            front_ends = [http, *beside_http(grpc, registry, config.server, observing)]
            reloader = Reloader(config, keys, weights, guard, front_ends, keeper)
            watchdog.start()
            try:
                await serve(
                    front_ends=front_ends,
                    reloader=reloader,
                    models_started=keeper.wait_started(),
                    models_crashed=keeper.wait_crashed(),
                    announce_ready=announce_ready,
                    on_hang_up=None if reread is None else lambda: reloader.reload(reread),
                    leave_balancers=registry.drain,
                    end_models_by=keeper.end_by,
                    port_option=port_option,
                )
            finally:
                watchdog.stop()
                pauses.stop()
                await reloader.close()


class Reloader:
    """The configuration in force. SIGHUP changes of it what can be changed, and says so."""

    def __init__(
        self,
        config: Config,
        keys: Sequence[KeyConfig],
        weights: dict[str, float],
        guard: Guard,
        front_ends: Sequence[FrontEnd],
        keeper: Keeper,
    ) -> None:
        self.config = config
        self._keys = keys
        self._weights = weights
        self._guard = guard
        self._front_ends = front_ends
        self._keeper = keeper
        self._models: asyncio.Task[None] | None = None  # being changed

    async def close(self) -> None:
        if self._models is not None:
            self._models.cancel()
            await asyncio.wait([self._models])

    def reload(self, reread: Callable[[], Config]) -> None:
        notify.reloading()
        try:
            new = reread()
            keys = keys_of(new, may_be_none=self._guard.keys is not None)
        except HeadwayError as error:
            _log.error("the configuration stays as it was: %s", error)
        else:
            self._change(new, keys)
        if self._guard.certificates is not None:
            self._guard.certificates.refresh()
        notify.ready()

    def _change(self, new: Config, keys: Sequence[KeyConfig]) -> None:
        has_keys = self._guard.keys is not None  # decided at start
        key_changes = key_changes_of(self._keys, keys, has_keys=has_keys)
        changes = [*changes_of(self.config, new), *key_changes]
        for change in changes:
            (_log.info if change.is_live else _log.warning)("%s", change)
        _log.info("configuration read again: %d changes", len(changes))
        if new.models != self.config.models:
            changing = self._change_models(self._models, new)
            self._models = asyncio.get_running_loop().create_task(changing)
        self.config = merged(self.config, new)
        for front_end in self._front_ends:
            front_end.change(self.config.server)
        self._keeper.change(self.config.server)
        if has_keys:
            if not keys:
                _log.error("no keys are left: every call that needs one is refused")
            self._change_keys(keys)

    def _change_keys(self, keys: Sequence[KeyConfig]) -> None:
        self._keys = keys
        self._guard.change_keys(keys)
        weights = weights_of(keys)
        if weights != self._weights:
            self._weights.clear()
            self._weights.update(weights)
            self._keeper.weigh(weights)

    async def _change_models(self, before: "asyncio.Task[None] | None", new: Config) -> None:
        """Change the models once the change before is complete; those that stay keep running."""
        if before is not None:
            await asyncio.wait([before])
        try:
            await self._keeper.reload_configuration(new)
        except HeadwayError as error:
            _log.error("models stay as they were: %s", error)


def make_app(
    models: Registry | Inference,
    config: ServerConfig,
    *,
    guard: Guard | None = None,
    observing: Observing | None = None,
    room: BodyRoom | None = None,
) -> App:
    """The app with all routes for these models; `guard` decides which callers may use which."""
    guard = guard or Guard(config)
    errors = None if observing is None else observing.http_errors
    app = App(
        max_body_bytes=config.max_body_bytes,
        max_json_bytes=config.max_json_bytes,
        debug=config.debug,
        errors=errors,
        room=room,
        keys=guard.keys,
    )
    has_keys = guard.keys is not None
    gate = http_gate(config, has_keys=has_keys)
    inference = inference_over(models, config, version=VERSION)
    rows = routes_of(inference, has_keys=has_keys)
    if observing is not None:
        rows += observing.routes()
    metrics_page = None if observing is None else observing.page
    for row in rows:
        handler = decoding(row)
        if row.access is Access.INFER and metrics_page is not None:
            handler = metrics_page.reporting(handler)
        # Not the row's direct path: there the app checks the key, and the call charges the quota.
        app.add(row._replace(handler=gate(row.access, handler)))
    if guard.checks_pages:
        pages = PageCheck(app, config)
        app.wrap(pages.around, may_pass=pages.may_pass)
    if config.cors_origins:
        cors = Cors(config.cors_origins)
        app.wrap(cors.around, may_pass=cors.may_pass)
    return app


def routes_of(inference: Inference, *, has_keys: bool = False) -> list[Route]:
    """The table of all routes: the rows of every family."""
    models = inference.models
    plain_json = plain.Plain(inference)
    families: list[RouteFamily] = [
        v2.V2(inference),
        model_list.ModelList(models),
        embeddings.EmbeddingsRoutes(inference),
        chat.Chat(inference),
        messages.Messages(inference),
        responses.Responses(inference),
        completions.Completions(inference),
        tokens.Tokens(inference),
        lora_adapters.LoraAdapters(models),
        rerank.Reranking(inference),
        audio.Audio(inference),
        images.Images(inference),
        cohere.Cohere(inference),
        ollama.Ollama(inference),
        huggingface.HuggingFace(inference, plain_json),
        kserve_v1.Instances(inference),
        plain_json,
        admin.Admin(models),
        what_if.WhatIf(models),
        WebPages(models, version=inference.version),
    ]
    rows = [row for family in families for row in family.routes()]
    described = OpenAPI(models, rows, version=inference.version, has_keys=has_keys)
    return rows + described.routes()


def make_grpc(
    models: Registry | Inference,
    config: ServerConfig,
    *,
    guard: Guard | None = None,
    observing: Observing | None = None,
    room: BodyRoom | None = None,
) -> "GrpcServer | None":
    """None where it is not wanted, or not installed: then HTTP serves alone. Raises ConfigError
    where it is not installed and the port is one that somebody asked for."""
    if config.grpc_port < 0:
        return None
    try:
        check_grpc()
    except ConfigError as error:
        if config.grpc_port != ServerConfig().grpc_port:
            raise
        _log.warning("%s", error)
        return None
    from headway.server.grpc.server import GrpcServer

    inference = inference_over(models, config, version=VERSION)
    return GrpcServer(inference, config, guard=guard, observing=observing, room=room)


def beside_http(
    grpc: "GrpcServer | None", registry: Registry, config: ServerConfig, observing: Observing
) -> Sequence[FrontEnd]:
    """The other front ends that are wanted."""
    wanted: list[FrontEnd] = [] if grpc is None else [grpc]
    if config.load_port < 0:
        return wanted
    if observing.metrics is None:
        raise ConfigError("needs metrics", field="load_port")
    return [*wanted, LoadPort(observing.metrics.load, registry, config)]


def check_grpc() -> None:
    """Raises ConfigError where it is not installed."""
    try:
        import headway.server.grpc.server  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"gRPC is not installed ({error}): pip install 'headway[grpc]'", field="grpc_port"
        ) from error


@contextmanager
def regions_of(config: ServerConfig) -> Iterator[SharedRegions | None]:
    """The shared memory that clients register, over any front end; None: it is off."""
    regions = SharedRegions() if config.shared_memory else None
    try:
        yield regions
    finally:
        if regions is not None:
            regions.close()


@contextmanager
def observing_of(config: ServerConfig) -> Iterator[Observing]:
    if not config.tracing:
        yield Observing(config)
        return
    from headway.observe.genai import GenAI, is_opted_in, meters
    from headway.observe.tracing import Tracing, provider

    with ExitStack() as opened:
        spans = opened.enter_context(provider())
        genai = GenAI(opened.enter_context(meters())) if is_opted_in(os.environ) else None
        yield Observing(config, tracing=Tracing(spans, genai=genai))


async def serve(
    *,
    front_ends: Sequence[FrontEnd],
    reloader: Reloader,
    models_started: Coroutine[Any, Any, None],
    models_crashed: Coroutine[Any, Any, NoReturn],
    announce_ready: Callable[[], None],
    on_hang_up: Callable[[], None] | None,
    leave_balancers: Callable[[], None],
    end_models_by: Callable[[float], None],
    port_option: str,
) -> None:
    """Listen until the process is asked to stop; then leave the balancers' sight, and finish what
    has begun, on all at once. One deadline counts for the front ends and for the models after them.

    `announce_ready` is called once `models_started` is done. What `models_crashed` raises ends
    everything. `on_hang_up` is called for SIGHUP.
    """
    with Signals(leave_balancers, on_hang_up) as signals:
        loop = asyncio.get_running_loop()
        started, crashed = loop.create_task(models_started), loop.create_task(models_crashed)
        stopping = loop.create_task(signals.stop.wait())
        try:
            for front_end in front_ends:
                await _listen(front_end, reloader.config.server, port_option)
            await _first_done(started, crashed, stopping)
            if not signals.stop.is_set():
                announce_ready()
                await _first_done(crashed, stopping)
            notify.stopping()
            await _wait(reloader.config.server.stop_delay_s)
        finally:
            for task in (started, crashed, stopping):
                task.cancel()
            drain_s = reloader.config.server.drain_s
            end_models_by(asyncio.get_running_loop().time() + drain_s)
            await asyncio.gather(*(front_end.stop(drain_s) for front_end in front_ends))


async def _wait(seconds: float) -> None:
    """Keep serving for a moment: balancers still send requests until they notice that we are not
    ready."""
    if seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().create_future()


async def _listen(front_end: FrontEnd, config: ServerConfig, port_option: str) -> None:
    try:
        await front_end.start()
    except (OSError, UnicodeError) as error:
        raise cannot_listen(f"{config.host}:{config.port}", error, port_option) from error


async def _first_done(*tasks: "asyncio.Task[Any]") -> None:
    """Wait until one of the tasks has ended. Raises its error."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


@asynccontextmanager
async def serving(config: Config, observing: Observing | None = None) -> AsyncIterator[Registry]:
    """Load and warm up all models; drain and close them afterwards, also if one of them fails."""
    async with Keeper(config, functools.partial(make_served, observing=observing)) as keeper:
        await keeper.wait_started()
        yield keeper.registry


def make_served(
    config: ModelConfig,
    version: str,
    model: AnyModel,
    origin: ModelOrigin,
    *,
    weights: Mapping[str, float] = _NO_WEIGHTS,
    observing: Observing | None = None,
) -> Served | ServedGenerator:
    """One version of a model, with its observers. `weights`: of the keys' tenants; weights of the
    model's own take precedence."""
    if isinstance(model, LanguageModel):
        generator = ServedGenerator(config, model, version=version)
        if weights:
            generator.weigh(weights)
        if observing is not None:
            observing.watch_generator(generator)
        return generator
    served = Served(config, model=model, version=version, origin=origin)
    if weights:
        served.weigh(weights)
    served.statistics = statistics = ModelStatistics()
    served.batcher.observe(statistics.observe)
    if observing is not None:
        observing.watch(served, statistics)
    return served
