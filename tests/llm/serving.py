"""A language model behind HTTP and gRPC, in one event loop in a thread of this process."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from headway.config import ModelConfig, ServerConfig
from headway.hosting.generation.served import ServedGenerator
from headway.hosting.registry import Registry
from headway.models.chat.model import LanguageModel
from headway.server.grpc.server import GrpcServer
from headway.server.observing import Observing
from headway.server.run import make_app
from headway.version import VERSION
from headway.wire.http1.server import HttpServer

MOST_S = 120.0
T = TypeVar("T")


class Serving(NamedTuple):
    url: str
    grpc: str
    model: ServedGenerator
    run: Callable[[Callable[[], Awaitable[Any]]], Any]  # in the server's own event loop

    def wait_idle(self) -> None:
        """No answer, and no block of one: the engine says so after its next step."""
        end = time.monotonic() + MOST_S
        while (now := self.model.now()) is None or now.cache_usage + now.running + now.waiting:
            assert time.monotonic() < end, now
            time.sleep(0.002)


@contextmanager
def serving(
    folder: Path, kind: type[LanguageModel] = LanguageModel, **settings: Any
) -> Iterator[Serving]:
    """The model is called `tiny`."""
    ready: Future[tuple[Serving, asyncio.Event]] = Future()

    async def main() -> None:
        try:
            async with _served(folder, kind, settings) as served:
                stop = asyncio.Event()
                ready.set_result((served, stop))
                await stop.wait()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)  # the test that waits for the server raises it

    loop = asyncio.new_event_loop()
    # A daemon: where a start takes too long, pytest must still end.
    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    try:
        served, stop = ready.result(MOST_S)
    except BaseException:
        thread.join(MOST_S)
        loop.close()
        raise

    def run(call: Callable[[], Awaitable[T]]) -> T:
        async def calling() -> T:
            return await call()

        return asyncio.run_coroutine_threadsafe(calling(), loop).result(MOST_S)

    try:
        yield served._replace(run=run)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(MOST_S)
        assert not thread.is_alive()
        loop.close()


@asynccontextmanager
async def _served(
    folder: Path, kind: type[LanguageModel], settings: dict[str, Any]
) -> AsyncIterator[Serving]:
    tracing = settings.pop("tracing", None)
    server = ServerConfig(port=0, grpc_port=0, drain_s=1, **settings.pop("server", {}))
    options = {"max_sequences": 8, "kv_cache_gib": 0.01, "dtype": "float32", **settings}
    config = ModelConfig(name="tiny", target=str(folder), **options)
    model = ServedGenerator(config, kind(str(folder), threads=1))
    observing = Observing(server, tracing=tracing)
    observing.watch_generator(model)
    registry = Registry()
    registry.add(model)
    await model.start()
    try:
        app = observing.around(make_app(registry, server, observing=observing))
        async with (
            HttpServer(app, server) as http,
            GrpcServer(registry, server, version=VERSION) as grpc,
        ):
            yield Serving(http.url, grpc.address, model, lambda call: None)
    finally:
        await model.close(drain_s=1)
