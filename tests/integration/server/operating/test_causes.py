"""Each cause that `headway explain` names, brought about for real, over HTTP."""

import asyncio
import gc
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from small_server import hosted

import headway
from headway.config import Config, KeyConfig, ModelConfig, ServerConfig
from headway.hosting.registry import Registry
from headway.hosting.repository.keeper import Keeper
from headway.server.auth.guard import Guard
from headway.server.auth.keys import new_key
from headway.server.garbage import GarbagePauses
from headway.server.observing import Observing
from headway.server.run import make_app, make_served
from headway.wire.http1.server import HttpServer

pytestmark = pytest.mark.real_time
KEY = new_key()


class Sleeper(headway.Model[float, float]):
    """Each batch takes as long as the longest of its items says."""

    def predict(self, items: list[float]) -> list[float]:
        time.sleep(max(items))
        return items


class Padded(headway.Model[str, int]):
    """As slow as its rows and its longest text."""

    def size(self, item: str) -> int:
        return len(item)

    def predict(self, items: list[str]) -> list[int]:
        time.sleep(1e-4 * len(items) * max(map(len, items)))
        return [len(item) for item in items]


class LazyStart(headway.Model[int, int]):
    """Its first call does what a warm-up would have done."""

    def load(self) -> None:
        self.is_warm = False

    def predict(self, items: list[int]) -> list[int]:
        time.sleep(0.002 if self.is_warm else 0.3)
        self.is_warm = True
        return items


class DiesOnce(headway.Model[str, str]):
    """Takes its process down, the first time."""

    def predict(self, items: list[str]) -> list[str]:
        mark = Path(items[0])
        if not mark.exists():
            mark.touch()
            time.sleep(0.05)
            os._exit(3)
        return items


class Talker(headway.Model[int, str]):
    """Streams many large parts at once."""

    def stream(self, items: list[int]) -> Iterator[list[Any]]:
        for _ in range(max(items)):
            yield ["x" * 100_000 for _ in items]
        yield [headway.END for _ in items]


class Asking:
    """A client, and what the server says of its requests."""

    def __init__(self, http: httpx.AsyncClient, registry: Registry) -> None:
        self.http = http
        self._registry = registry

    async def wait_running(self) -> None:
        [served] = self._registry.models("m")
        while not served.batcher.statistics().running_batches:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def ask(self, name: str, value: Any, model: str = "m") -> httpx.Response:
        headers = {"X-Request-Id": name}
        return await self.http.post(f"/v1/predict/{model}", json=value, headers=headers)

    async def story(self, name: str) -> Any:
        for _ in range(200):  # the end of a request follows its last byte
            answer = await self.http.get("/admin/explain/requests", params={"id": name})
            if answer.status_code == 200:
                [found] = answer.json()["requests"]
                return found
            await asyncio.sleep(0.01)
        raise AssertionError(answer.text)


@asynccontextmanager
async def serving(
    model: Any, key: KeyConfig | None = None, **settings: Any
) -> AsyncIterator[Asking]:
    config = ServerConfig(port=0, grpc_port=-1, drain_s=1, admin_without_key=key is None)
    observing = Observing(config)
    guard = Guard(config, () if key is None else (key,))
    async with AsyncExitStack() as opened:
        registry = await opened.enter_async_context(
            hosted({"m": (model, settings)}, observing.watch)
        )
        app = observing.around(make_app(registry, config, guard=guard, observing=observing))
        server = await opened.enter_async_context(HttpServer(app, config))
        pauses = GarbagePauses(registry, observing.history)
        pauses.start()
        opened.callback(pauses.stop)
        headers = {} if key is None else {"Authorization": f"Bearer {KEY.key}"}
        # So small a buffer that the kernel does not hold what a slow reader has not read.
        small = httpx.AsyncHTTPTransport(
            socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**14)]
        )
        client = httpx.AsyncClient(
            base_url=server.url, headers=headers, timeout=20, transport=small
        )
        yield Asking(await opened.enter_async_context(client), registry)


async def test_it_lingered() -> None:
    async with serving(Sleeper(), policy="window", max_wait_ms=150) as it:
        await it.ask("mine", 0.001)
        story = await it.story("mine")
    assert story["cause"] == "lingered"
    assert "(at most 150.0 ms); 1 left together" in story["why"]
    assert "max_wait_ms" in story["advice"]


async def test_it_waited_behind_a_long_batch() -> None:
    async with serving(Sleeper(), max_batch_size=1) as it:
        before = asyncio.create_task(it.ask("long", 0.3))
        await it.wait_running()
        await it.ask("mine", 0.001)
        await before
        story, other = await it.story("mine"), await it.story("long")
    assert story["cause"] == "long_batch"
    assert f"batch {other['batch']} (1 rows) took " in story["why"]


async def test_it_waited_behind_many() -> None:
    async with serving(Sleeper(), max_batch_size=1) as it:
        before = [asyncio.create_task(it.ask(f"other-{n}", 0.03)) for n in range(8)]
        await it.wait_running()
        await it.ask("mine", 0.001)
        await asyncio.gather(*before)
        story = await it.story("mine")
    assert story["cause"] == "behind_others"
    assert "workers" in story["advice"]


async def test_it_was_padded_by_a_neighbour() -> None:
    settings = {"policy": "window", "max_wait_ms": 40, "compose": "fifo"}
    async with serving(Padded(), **settings) as it:
        for number in range(4):
            await it.ask(f"alone-{number}", "short")
        neighbour = asyncio.create_task(it.ask("neighbour", "long" * 500))
        await it.ask("mine", "short")
        await neighbour
        story = await it.story("mine")
        [batch] = (await it.http.get("/admin/explain", params={"batch": story["batch"]})).json()[
            "batches"
        ]
    assert story["cause"] == "padded"
    [longest] = [item for item in batch["items"] if item["request"] == "neighbour"]
    assert f"from 5 to 2000 for item {longest['id']} in its batch" in story["why"]
    assert batch["padding"] > 0.4


async def test_its_key_was_throttled() -> None:
    key = KeyConfig(id="k", hash=KEY.hash, tenant="t", rights=("infer", "admin"), rows_per_s=1.0)
    async with serving(Sleeper(), key) as it:
        assert (await it.ask("first", 0.001)).status_code == 200
        assert (await it.ask("mine", 0.001)).status_code == 429
        story = await it.story("mine")
    assert (story["cause"], story["code"]) == ("throttled", "quota_exceeded")
    assert "quota" in story["advice"]


async def test_its_worker_was_cold() -> None:
    async with serving(LazyStart()) as it:
        await it.ask("mine", 1)
        for number in range(5):
            await it.ask(f"later-{number}", 1)
        story, later = await it.story("mine"), await it.story("later-4")
    assert story["cause"] == "cold_start"
    assert "warm_up" in story["advice"]
    assert later["cause"] != "cold_start"


async def test_its_model_was_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import headway, time\n"
        "class Slow(headway.Model[int, int]):\n"
        "    def load(self) -> None:\n"
        "        time.sleep(0.3)\n"
        "    def predict(self, items: list[int]) -> list[int]:\n"
        "        return items\n"
    )
    server = ServerConfig(port=0, grpc_port=-1, drain_s=1, admin_without_key=True)
    target = f"{tmp_path / 'slow.py'}:Slow"
    model = ModelConfig(name="m", target=target, load="on-request", warm_up=False)
    observing = Observing(server)

    def make(*given: Any) -> Any:
        return make_served(*given, observing=observing)

    async with Keeper(Config(server=server, models=(model,)), make) as keeper:
        await keeper.wait_started()
        app = observing.around(make_app(keeper.registry, server, observing=observing))
        async with (
            HttpServer(app, server) as http,
            httpx.AsyncClient(base_url=http.url, timeout=20) as client,
        ):
            it = Asking(client, keeper.registry)
            assert (await it.ask("mine", 1)).json() == 1
            story = await it.story("mine")
    assert story["cause"] == "cold_start"
    assert "was not loaded" in story["why"]


async def test_its_worker_was_lost(tmp_path: Path) -> None:
    async with serving(DiesOnce(), worker="process") as it:
        mark = str(tmp_path / "died")
        assert (await it.ask("mine", mark)).json() == mark
        story = await it.story("mine")
        found = (await it.http.get("/admin/explain")).json()
    assert story["cause"] == "rerun"
    assert "was lost once" in story["why"]
    assert [batch["lost"] is None for batch in found["batches"]] == [False, True]
    kinds = [incident["kind"] for incident in found["incidents"]]
    assert "worker_waiting" in kinds


async def test_it_was_shed() -> None:
    async with serving(Sleeper(), slo_ms=120, max_batch_size=1) as it:
        for number in range(5):  # from which it knows how long a batch takes
            await it.ask(f"before-{number}", 0.05)
        asked = [asyncio.create_task(it.ask(f"r-{number}", 0.05)) for number in range(12)]
        answers = await asyncio.gather(*asked)
        shed = [number for number, each in enumerate(answers) if each.status_code == 503]
        assert 0 < len(shed) < 12
        story = await it.story(f"r-{shed[0]}")
        incidents = (await it.http.get("/admin/explain")).json()["incidents"]
    assert (story["cause"], story["code"]) == ("shed", "shed")
    assert "slo_ms" in story["advice"]
    assert len(incidents) == len(shed)


async def test_the_event_loop_was_held_up() -> None:
    async with serving(Sleeper()) as it:
        await it.ask("before", 0.001)
        asking = asyncio.create_task(it.ask("mine", 0.05))
        await it.wait_running()
        time.sleep(0.3)  # noqa: ASYNC251  what no code in an event loop should do
        await asking
        story = await it.story("mine")
    assert story["cause"] == "stall"
    assert "def" in story["advice"]


async def test_garbage_was_collected() -> None:
    async with serving(Sleeper()) as it:
        many = [[number] for number in range(1_500_000)]
        await it.ask("before", 0.001)
        asking = asyncio.create_task(it.ask("mine", 0.05))
        await it.wait_running()
        gc.collect()
        await asking
        story = await it.story("mine")
    assert len(many) > 0
    assert story["cause"] == "stall"
    assert story["why"].startswith("a garbage collection held everything up")


async def test_its_client_was_slow_to_read() -> None:
    async with serving(Talker(), max_batch_size=1) as it:
        headers = {"X-Request-Id": "mine", "Accept": "text/event-stream"}
        body = {"json": 100, "headers": headers}
        async with it.http.stream("POST", "/v1/predict/m", **body) as answer:
            parts = answer.aiter_raw()
            await anext(parts)
            await asyncio.sleep(0.4)
            async for _ in parts:
                pass
        story = await it.story("mine")
    assert story["cause"] == "slow_reader"
