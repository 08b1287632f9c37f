"""The server's life: models start, the front ends listen, everything stops in order."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headway.config import Config, ModelConfig, ServerConfig
from headway.errors import ConfigError
from headway.server.app import App
from headway.server.served import Served
from headway.server.serving import Registry

_log = logging.getLogger(__name__)


async def run(config: Config) -> None:
    """Serve until asked to stop."""
    async with serving(config) as registry:
        await serve_http(make_app(registry, config.server), config.server)


def make_app(registry: Registry, config: ServerConfig) -> App:
    """All routes, for these models."""
    return App(max_body_bytes=config.max_body_bytes, debug=config.debug)


async def serve_http(app: App, config: ServerConfig) -> None:
    """Listen until the process is asked to stop; then finish what has begun."""
    from headway.server.http.server import HttpServer

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stop.set)
    try:
        async with HttpServer(app, config) as server:
            _log.info("listening on %s", server.url)
            await stop.wait()
    finally:
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[Registry]:
    """All models loaded and warm; drained and closed afterwards, also when one of them fails."""
    models = [_made(each) for each in config.models]
    registry = Registry()
    for model in models:
        registry.add(model)
    try:
        for model in models:  # one after the other: probes must not disturb each other
            await model.start()
            _log.info("%s is ready", model.name, extra={"model": model.name})
        yield registry
    finally:
        drain_s = config.server.drain_s
        await asyncio.gather(*(model.close(drain_s=drain_s) for model in models))


def _made(config: ModelConfig) -> Served:
    try:
        return Served(config)
    except ConfigError as error:
        raise ConfigError(f"model {config.name!r}: {error}") from error
