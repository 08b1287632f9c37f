"""The server's life: models start, the front ends listen, everything stops in order."""

import asyncio
import importlib.metadata
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from headway.config import Config, ModelConfig, ServerConfig
from headway.errors import ConfigError
from headway.server import plain
from headway.server.app import App
from headway.server.http.server import HttpServer
from headway.server.openai import handlers as openai
from headway.server.served import Served
from headway.server.serving import Registry
from headway.server.v2 import handlers as v2
from headway.server.v2.statistics import ModelStatistics

_log = logging.getLogger(__name__)


Announce: TypeAlias = Callable[[str, Registry], None]


async def run(config: Config, announce: Announce | None = None) -> None:
    """Serve until asked to stop. `announce` learns the address, and that everything is ready."""
    async with serving(config) as registry:

        def say(url: str) -> None:
            _log.info("listening on %s", url)
            if announce is not None:
                announce(url, registry)

        await serve_http(make_app(registry, config.server), config.server, say)


def make_app(registry: Registry, config: ServerConfig) -> App:
    """All routes, for these models."""
    app = App(max_body_bytes=config.max_body_bytes, debug=config.debug)
    version = importlib.metadata.version("headway")
    for routes, handlers in (
        (v2.ROUTES, v2.V2(registry, version=version)),
        (openai.ROUTES, openai.OpenAI(registry)),
        (plain.ROUTES, plain.Plain(registry, version=version)),
    ):
        for method, template, name in routes:
            app.add(method, template, getattr(handlers, name))
    return app


async def serve_http(app: App, config: ServerConfig, say: Callable[[str], None]) -> None:
    """Listen until the process is asked to stop; then finish what has begun."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    try:
        server = await _listening(app, config)
        try:
            say(server.url)
            await stop.wait()
        finally:
            await server.stop()
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)


async def _listening(app: App, config: ServerConfig) -> HttpServer:
    server = HttpServer(app, config)
    try:
        await server.start()
    except OSError as error:  # taken, not ours, no such address
        reason = os.strerror(error.errno) if error.errno else error
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {reason}") from error
    return server


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[Registry]:
    """All models loaded and warm; drained and closed afterwards, also when one of them fails."""
    models = [_made(each) for each in config.models]
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


def _made(config: ModelConfig) -> Served:
    try:
        model = Served(config)
    except ConfigError as error:
        raise ConfigError(f"model {config.name!r}: {error}") from error
    model.statistics = statistics = ModelStatistics()
    model.batcher.observe(statistics.observe)
    return model
