"""Every stack that serves, over one registry: our HTTP server, the app as ASGI on uvicorn,
our gRPC server, grpc.aio's.

They run in one event loop in a thread of this process, so that a test can hold a model at its gate
and see what arrives and who leaves.
"""

import asyncio
import queue
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeVar

import uvicorn
from served_models import MOST_S, FewWords, Flip, Gate, Pairs, Words

from headway.config import ModelConfig, ServerConfig
from headway.core.costs import CostTable
from headway.hosting.hosted import Served
from headway.hosting.registry import Ask, Registry
from headway.server.grpc.server import GrpcServer
from headway.server.run import make_app
from headway.wire.asgi import AsgiApp
from headway.wire.http1.server import HttpServer

MAX_BODY_BYTES = 100_000
MAX_ROWS = 40_000
_T = TypeVar("_T")


class Watched(Served):
    """Tells what arrives and how it ends. A gate's model runs one item at a time."""

    def __init__(self, name: str, model: Any, **settings: Any) -> None:
        self.gate: Gate | None = getattr(model, "gate", None)
        self.arrived: queue.Queue[None] = queue.Queue()
        self.ended: queue.Queue[BaseException | None] = queue.Queue()
        if self.gate is not None:
            settings["max_batch_size"] = 1
        config = ModelConfig(name=name, target="tests:None", warm_up=False, **settings)
        super().__init__(config, model=model)
        self.statistics = self

    async def infer(self, inputs: Any, ask: Ask) -> Any:
        self._soon_arrived()
        return await super().infer(inputs, ask)

    async def predict(self, value: Any, ask: Ask) -> Any:
        self._soon_arrived()
        return await super().predict(value, ask)

    async def predict_many(self, values: Any, asks: Any, *, keep_errors: bool = False) -> Any:
        self._soon_arrived()
        return await super().predict_many(values, asks, keep_errors=keep_errors)

    def record_request(self, *, rows: int, seconds: float, error: BaseException | None) -> None:
        self.ended.put(error)

    def forget(self) -> None:
        """What was seen before does not count."""
        self.arrived, self.ended = queue.Queue(), queue.Queue()

    def wait_arrived(self) -> None:
        """Until a request is in the queue, or at the gate."""
        self.arrived.get(timeout=MOST_S)

    def wait_left(self) -> None:
        """Until a caller's leaving has taken its request back."""
        assert isinstance(self.ended.get(timeout=MOST_S), asyncio.CancelledError)

    def _soon_arrived(self) -> None:
        # A model without `prepare` is queued in this very turn of the loop; then this runs.
        asyncio.get_running_loop().call_soon(self.arrived.put, None)


class Addresses(NamedTuple):
    http: str
    asgi: str
    grpc: str

    def of(self, stack: str) -> str:
        address: str = getattr(self, stack)
        return address


class Stacks:
    """`with Stacks() as stacks:` serves on all of them."""

    def __init__(self) -> None:
        self.registry = Registry()
        self._ready: Future[Addresses] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._names = iter(range(10**6))

    def __enter__(self) -> "Stacks":
        self._thread.start()
        self.addresses = self._ready.result(MOST_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(MOST_S)
        assert not self._thread.is_alive()

    def model(self, name: str) -> Watched:
        found = self.registry.get(name)
        assert isinstance(found, Watched)
        return found

    def run(self, call: Callable[[], Awaitable[_T]]) -> "Future[_T]":
        """In the servers' own event loop."""

        async def calling() -> _T:
            return await call()

        return asyncio.run_coroutine_threadsafe(calling(), self._loop)

    @contextmanager
    def occupied(self, name: str) -> Iterator[Watched]:
        """Its only worker stands at the closed gate until the block ends, with somebody's text."""
        model = self.model(name)
        assert model.gate is not None
        with model.gate.closed():
            first = self.run(lambda: model.predict("first", Ask()))
            assert model.gate.entered.wait(MOST_S)
            model.wait_arrived()
            model.forget()
            yield model
        first.result(MOST_S)

    @contextmanager
    def queued(self, model: Watched) -> Iterator[None]:
        """Somebody waits already."""
        second = self.run(lambda: model.predict("second", Ask()))
        model.wait_arrived()
        yield
        assert model.gate is not None
        model.gate.is_open.set()
        second.result(MOST_S)

    @contextmanager
    def closing(self) -> Iterator[tuple[Watched, Callable[[], None]]]:
        """A model of its own, at a closed gate, and how to close it without mercy."""
        model = Watched(f"closing{next(self._names)}", Words(Gate()))
        self.run(model.start).result(MOST_S)
        self.registry.add(model)
        assert model.gate is not None
        closed: list[Future[None]] = []
        with model.gate.closed():
            yield model, lambda: closed.append(self.run(lambda: model.close(drain_s=0)))
        for each in closed:
            each.result(MOST_S)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._models(), self._served() as addresses:
                self._ready.set_result(addresses)
                await self._stop.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise

    @asynccontextmanager
    async def _models(self) -> AsyncIterator[None]:
        models = [
            Watched("words", Words()),
            Watched("few", FewWords(), max_queue=1),
            Watched("little", Words(), max_queue=8, max_batch_size=4),
            Watched("pairs", Pairs(), max_queue=8, max_batch_size=4),
            Watched("flip", Flip()),
            Watched("gate", Words(Gate())),
            Watched("narrow", Words(Gate()), max_queue=1),
            Watched("strict", Words(Gate()), slo_ms=100),
        ]
        cold = Watched("cold", Words())  # never started
        for model in (*models, cold):
            self.registry.add(model)
        try:
            for model in models:
                await model.start()
            # A batch of it takes ten seconds: a request that finds one running cannot meet its SLO.
            self.model("strict").batcher.learn(CostTable((1,), None, ((10.0,),)))
            yield
        finally:
            await asyncio.gather(*(model.close(drain_s=1) for model in models))

    @asynccontextmanager
    async def _served(self) -> AsyncIterator[Addresses]:
        config = ServerConfig(
            port=0,
            grpc_port=0,
            drain_s=1,
            max_body_bytes=MAX_BODY_BYTES,
            max_request_rows=MAX_ROWS,
            admin_without_key=True,
        )
        app = make_app(self.registry, config)
        async with (
            HttpServer(app, config) as http,
            GrpcServer(self.registry, config) as grpc,
            on_uvicorn(AsgiApp(app, max_body_bytes=MAX_BODY_BYTES)) as asgi,
        ):
            yield Addresses(http.url.removeprefix("http://"), asgi, grpc.address)


@asynccontextmanager
async def on_uvicorn(app: AsgiApp) -> AsyncIterator[str]:
    """host:port of a real ASGI server around the app."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # who comes before uvicorn does waits
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
        )
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        await serving
