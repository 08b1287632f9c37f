"""`headway.asgi` and `headway.serve`: models in a program of your own.

Everything heavy is imported when one of them is called, not with `import headway`.
"""

import asyncio
import functools
import logging
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.errors import ConfigError, HeadwayError, NotReady, nearest
from headway.model import ModelHandle

if TYPE_CHECKING:
    from headway.config import Config
    from headway.core.routing import Pace
    from headway.hosting.registry import Registry
    from headway.observe.load import LoadReading
    from headway.observe.metrics import Metrics
    from headway.server.grpc.mounted import MountedGrpc
    from headway.wire.asgi import AsgiApp

_log = logging.getLogger(__name__)
# A parent server listens, and so decides these.
_LISTENING = frozenset(
    [
        *("host", "port", "grpc_port", "load_port", "max_connections", "max_handshakes"),
        *("max_header_bytes", "header_timeout_s", "body_timeout_s", "write_timeout_s"),
        *("keep_alive_s", "stop_delay_s", "max_connections_per_address", "stream_interval_s"),
        *("tls_cert", "tls_key", "tls_client_ca"),
    ]
)


def asgi(models: Any, *, name: str | None = None, **settings: Any) -> "MountedApplication":
    """Models as an ASGI application, with every route of `headway serve`; to be mounted in FastAPI
    or Starlette, also under a prefix, or served by any ASGI server.

    `models`: a class, an instance or a function of yours, a target as for `headway serve`,
    or a mapping of names to those. `settings` are those of a server and of its models.
    """
    for each in sorted(_LISTENING & settings.keys()):
        raise ConfigError("the ASGI server that runs the application decides it", field=each)
    return MountedApplication(*_read(models, name, settings))


def serve(models: Any, *, name: str | None = None, **settings: Any) -> None:
    """Serve these models until Ctrl-C or SIGTERM, as `headway serve` does. For the main thread."""
    from headway.cli.greeting import announcing
    from headway.observe import logs
    from headway.server.event_loop import run as run_loop
    from headway.server.run import run

    config, given = _read(models, name, settings)
    logs.configure(format=config.server.log_format, level=config.server.log_level)
    run_loop(run(config, announcing(config), given=given, port_option="port=…"))


@contextmanager
def running(models: Any, *, name: str | None = None, **settings: Any) -> Iterator[str]:
    """A server in a thread of this process, on a free port of this machine; its URL. For tests."""
    from headway.server.embedded import embedded
    from headway.wire.http1.server import HttpServer

    config, given = _read(models, name, {"port": 0, "grpc_port": -1, "warm_up": False, **settings})
    started: Future[tuple[str, Callable[[], object]]] = Future()

    async def live() -> None:
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        async with embedded(config, given) as inside:
            http = HttpServer(inside.app, config.server)
            await http.start()
            stop = functools.partial(loop.call_soon_threadsafe, stopping.set)
            started.set_result((http.url, stop))
            await stopping.wait()
            await http.stop(config.server.drain_s)

    def run() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, name="headway-server")
    thread.start()
    try:
        url, stop = started.result()
        try:
            yield url
        finally:
            stop()
    finally:
        thread.join()


class ModelHandles(Mapping[str, ModelHandle[Any, Any]]):
    """The models of an application, by name, for a program's own routes."""

    def __init__(self, handle: Callable[[str], ModelHandle[Any, Any]], names: list[str]) -> None:
        self._handle = handle
        self._names = names

    def __getitem__(self, name: str) -> ModelHandle[Any, Any]:
        if name not in self._names:
            raise KeyError(name)
        return self._handle(name)

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Life(NamedTuple):
    """One start of an application, in one event loop."""

    loop: asyncio.AbstractEventLoop
    task: "asyncio.Task[None]"
    started: "asyncio.Future[_Started]"
    stopping: asyncio.Event


class _Started(NamedTuple):
    app: "AsgiApp"
    handle: Callable[[str], ModelHandle[Any, Any]]
    registry: "Registry"
    metrics: "Metrics | None"
    grpc: "Callable[[], MountedGrpc]"


class MountedApplication:
    """An ASGI application. Its models are loaded when the lifespan begins, and drained when it
    ends; where the parent sends no lifespan (a mounted application gets none), at the first
    request, and when the event loop ends. `FastAPI(lifespan=app.lifespan)` says so explicitly.
    """

    def __init__(self, config: "Config", given: Mapping[str, Callable[[], Any]]) -> None:
        self._config = config
        self._given = given
        self._life: _Life | None = None

    @property
    def models(self) -> ModelHandles:
        """`await app.models["embed"](text)` in a route of yours, queued with all other calls; once
        the application has started."""
        return ModelHandles(self._handle, [each.name for each in self._config.models])

    # ---- for what runs it: Ray, or a program of yours

    async def map(self, model: str, values: Sequence[Any]) -> list[Any]:
        """The results of many values, in order; for a value that failed, its error."""
        from headway.hosting.registry import PLAIN

        await self.start()
        served = await self._running().registry.wait_ready(model)
        return await served.predict_many(values, PLAIN, keep_errors=True)

    def check(self) -> None:
        """Raises NotReady if it has not started, or if nothing can complete in it any more."""
        registry = self._running().registry
        if not registry.is_live:
            raise NotReady(f"nothing can complete here: {registry.unready}")

    def grpc(self) -> "MountedGrpc":
        """The methods of v2 over gRPC, for a server of theirs. Needs `headway[grpc]`."""
        return self._running().grpc()

    def load(self) -> "LoadReading":
        """What waits and runs, and how much of what it can do it does; see `/metrics/load`."""
        return self._metrics().load.read()

    def pace(self) -> "Pace | None":
        """How long batches of the (first) model take; None: unknown."""
        return self._metrics().pace_of(self._config.models[0].name)

    def _metrics(self) -> "Metrics":
        metrics = self._running().metrics
        if metrics is None:
            raise ConfigError("is off, and needed here", field="metrics")
        return metrics

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[None]:
        """The lifespan: started with every model ready, stopped at the end. Takes the parent
        application."""
        await self.start()
        try:
            yield
        finally:
            await self.stop()

    async def start(self) -> None:
        """Returns once every model is ready. Raises why none is."""
        await self._started()

    async def stop(self) -> None:
        """Finish running requests, and release the models."""
        life, self._life = self._life, None
        if life is not None and life.loop is asyncio.get_running_loop():
            life.stopping.set()
            await asyncio.wait([life.task])

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Callable[[], Any], send: Callable[..., Any]
    ) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()  # websocket.connect
            await send({"type": "websocket.close", "code": 1000, "reason": "HTTP only"})
        else:
            try:
                started = await self._started()
            except HeadwayError as error:
                await _refuse(scope, error, send)
                return
            await started.app(scope, receive, send)

    # ---- life

    async def _live(self, receive: Callable[[], Any], send: Callable[..., Any]) -> None:
        await receive()  # lifespan.startup
        try:
            await self.start()
        except Exception as error:  # a model is user code
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise  # as Starlette does: its TestClient would wait for ever for an end without one
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _started(self) -> _Started:
        """Requests that come before the start is done wait for the same one. A start that failed
        is not tried again in this event loop: the model would fail to load again."""
        loop = asyncio.get_running_loop()
        life = self._life
        if life is None or life.loop is not loop:
            started: asyncio.Future[_Started] = loop.create_future()
            stopping = asyncio.Event()
            task = loop.create_task(self._run(started, stopping))
            life = self._life = _Life(loop, task, started, stopping)
        if life.started.done():
            return life.started.result()
        return await asyncio.shield(life.started)

    async def _run(self, started: "asyncio.Future[_Started]", stopping: asyncio.Event) -> None:
        from headway.hosting.handles import Handle
        from headway.server.embedded import embedded
        from headway.wire.asgi import AsgiApp

        try:
            async with embedded(self._config, self._given) as inside:
                app = AsgiApp(inside.app, max_body_bytes=self._config.server.max_body_bytes)
                handle = functools.partial(
                    Handle, registry=inside.registry, loop=asyncio.get_running_loop()
                )
                started.set_result(_Started(app, handle, *inside[1:]))
                await stopping.wait()
        except Exception as error:  # a model is user code
            if started.done():
                raise
            _log.error("the models cannot be served: %s", error)
            started.set_exception(error)
            started.exception()  # marks it as retrieved: perhaps no request asks
        finally:
            started.cancel()

    def _handle(self, name: str) -> ModelHandle[Any, Any]:
        return self._running().handle(name)

    def _running(self) -> _Started:
        life = self._life
        if life is None or not life.started.done() or life.started.cancelled():
            raise NotReady("the application has not started: give its lifespan to the parent")
        return life.started.result()


async def _refuse(scope: Mapping[str, Any], error: HeadwayError, send: Callable[..., Any]) -> None:
    import msgspec

    body = msgspec.json.encode({"error": f"the models cannot be served: {error}"})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# ---- what was given


def _read(
    models: Any, name: str | None, settings: Mapping[str, Any]
) -> "tuple[Config, Mapping[str, Callable[[], Any]]]":
    """A configuration, and what makes those of its models that are objects."""
    from headway.config import ModelConfig, ServerConfig, of_tables, read

    server = {key: settings[key] for key in settings if key in ServerConfig.__struct_fields__}
    shared = {key: settings[key] for key in settings if key in ModelConfig.__struct_fields__}
    known = {*ServerConfig.__struct_fields__, *ModelConfig.__struct_fields__} - {"target"}
    for key in settings:
        if key not in known:
            raise ConfigError(f"no such setting{nearest(key, known)}", field=key)
    given: dict[str, Callable[[], Any]] = {}
    if isinstance(models, str | Path) and str(models).endswith(".toml"):
        if name is not None:
            raise ConfigError("the file names its models", field="name")
        tables = read(Path(models))
        base: list[dict[str, Any]] = [{**each, **shared} for each in tables.get("models", ())]
        server = {**tables.get("server", {}), **server}
        rest = {key: tables[key] for key in tables if key not in ("server", "models")}
        return of_tables({**rest, "server": server, "models": base}, str(models)), given
    named = models if isinstance(models, Mapping) else {name or _name_of(models): models}
    if isinstance(models, Mapping) and name is not None:
        raise ConfigError("the mapping names its models", field="name")
    entries = [_entry(each, found, shared, given) for each, found in named.items()]
    return of_tables({"server": server, "models": entries}, ""), given


def _entry(
    name: str, found: Any, shared: Mapping[str, Any], given: dict[str, Callable[[], Any]]
) -> dict[str, Any]:
    """The `[[models]]` table of one model; an object that no text can name goes to `given`."""
    own: Mapping[str, Any] = {}
    if isinstance(found, Mapping):
        own = {key: value for key, value in found.items() if key != "target"}
        found = found.get("target")
        if found is None:
            raise ConfigError(f"{name}: target is missing", field="models")
    table = {**shared, **own, "name": name}
    if isinstance(found, str | Path):
        return {**table, "target": str(found)}
    where = _place_of(found)
    from headway.models import targets

    if targets.maker_of(found, where) is None:
        raise ConfigError(
            f"{name}: {found!r} is not a model: neither a class nor an instance of headway.Model "
            "or headway.TensorModel, nor a function, nor a text that `headway serve` takes"
        )
    if not _is_found_at(where, found):
        given[name] = functools.partial(_make, found, where, table.get("options", {}))
    return {**table, "target": where}


def _make(found: Any, where: str, options: Mapping[str, Any]) -> Any:
    from headway.models import targets
    from headway.models.catalogue import make

    maker = targets.maker_of(found, where)
    assert maker is not None, "it was looked at before"
    return make(maker, options, where=where)


def _name_of(found: Any) -> str:
    """A class `BigModel`, or an instance of it, is served as big-model; a function by its name."""
    if isinstance(found, str | Path):
        from headway.cli.serve import name_for

        return name_for(str(found))
    named = found if hasattr(found, "__name__") else type(found)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", str(named.__name__)).lower().strip("<>")


def _place_of(found: Any) -> str:
    named = found if hasattr(found, "__qualname__") else type(found)
    return f"{named.__module__}:{named.__qualname__}"


def _is_found_at(where: str, found: object) -> bool:
    """Does another process find this very object by its name?"""
    module, _, name = where.partition(":")
    return module != "__main__" and getattr(sys.modules.get(module), name, None) is found
