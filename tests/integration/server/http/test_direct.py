"""Requests without a task: answered, failed, refused and abandoned like all others."""

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

import msgspec
from http_client import Client, on_both_loops, serving

import headway
from headway.config import KeyConfig, ModelConfig, ServerConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.hosting.statistics import ModelStatistics
from headway.runtime.events import BatchStarted, Event
from headway.server.app import App
from headway.server.auth.guard import Guard
from headway.server.auth.keys import new_key
from headway.server.run import make_app

PATH = "/v2/models/gate/infer"


class Gate(headway.TensorModel):
    """Echoes 40 numbers when it may; fails on a negative one; cannot answer a 7."""

    inputs: ClassVar = [headway.Tensor("x", "float64", (-1, 40))]
    outputs: ClassVar = [headway.Tensor("y", "float64", (-1, 40))]

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.open.set()
        self.batches: list[list[float]] = []

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.entered.set()
        assert self.open.wait(20)
        self.batches.append(batch["x"][:, 0].tolist())
        if (batch["x"] < 0).any():
            raise ValueError("negative")
        if (batch["x"] == 8).any():
            raise ValueError("half a pair: \udcff")
        if (batch["x"] == 7).any():
            return {"y": batch["x"].astype("complex64")}
        return {"y": batch["x"]}


class Running:
    def __init__(self, client: Client, model: Gate, served: Served, server: Any) -> None:
        self.client, self.model, self.served, self.server = client, model, served, server
        self.statistics = ModelStatistics()
        served.statistics = self.statistics

    async def wait_queued(self, rows: int) -> None:
        async with asyncio.timeout(20):
            while self.served.batcher.statistics().queued_rows != rows:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0)

    async def wait_until_it_runs(self) -> None:
        assert await asyncio.to_thread(self.model.entered.wait, 20)


@asynccontextmanager
async def running(*, keys: Sequence[KeyConfig] = (), **settings: Any) -> AsyncIterator[Running]:
    model = Gate()
    config = ModelConfig(name="gate", target="gate", warm_up=False, max_batch_size=1, **settings)
    served = Served(config, model=model)
    registry = Registry()
    registry.add(served)
    await served.start()
    try:
        async with (
            serving(app_with(keys, registry)) as server,
            Client.to(server) as client,
        ):
            yield Running(client, model, served, server)
    finally:
        model.open.set()
        await served.close()


def app_with(keys: Sequence[KeyConfig], registry: Registry) -> App:
    config = ServerConfig()
    return make_app(registry, config, guard=Guard(config, keys))


def body_of(first: float, **more: Any) -> bytes:
    data = [first] + [0.1234567890123] * 39
    each = {"name": "x", "datatype": "FP64", "shape": [1, 40], "data": data}
    return msgspec.json.encode({"inputs": [each], **more})


def request_of(body: bytes, headers: str = "") -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def first_of(body: bytes) -> float:
    answer: float = msgspec.json.decode(body)["outputs"][0]["data"][0]
    return answer


@on_both_loops
async def test_an_answer_has_its_id_and_is_counted() -> None:
    async with running() as it:
        reply = await it.client.post(PATH, body_of(1, id="mine"), "X-Request-Id: abc\r\n")
        assert (reply.status, reply.headers["x-request-id"]) == (200, "abc")
        assert msgspec.json.decode(reply.body)["id"] == "mine"
        assert reply.headers["content-type"] == "application/json"
        stats = it.statistics.as_triton("gate", "1")["inference_stats"]
        assert (stats["success"]["count"], stats["fail"]["count"]) == (1, 0)


@on_both_loops
async def test_a_failing_model_is_a_500_and_the_connection_goes_on() -> None:
    async with running() as it:
        reply = await it.client.post(PATH, body_of(-1))
        assert reply.status == 500
        assert "negative" in msgspec.json.decode(reply.body)["error"]
        assert first_of((await it.client.post(PATH, body_of(2))).body) == 2
        assert it.statistics.as_triton("gate", "1")["inference_stats"]["fail"]["count"] == 1


@on_both_loops
async def test_outputs_that_cannot_be_encoded_are_their_callers_error() -> None:
    async with running() as it:
        assert (await it.client.post(PATH, body_of(7))).status == 500
        assert first_of((await it.client.post(PATH, body_of(2))).body) == 2


@on_both_loops
async def test_an_error_that_no_encoding_can_carry_is_told_all_the_same() -> None:
    async with running() as it:
        for headers in ("", "Headway-Priority: high\r\n"):  # directly, and the general way
            reply = await it.client.post(PATH, body_of(8), headers)
            assert reply.status == 500
            assert "half a pair: ?" in msgspec.json.decode(reply.body)["error"]


@on_both_loops
async def test_an_input_without_a_name_is_refused() -> None:
    async with running() as it:
        body = body_of(1).replace(b'"name":"x",', b"")
        assert (await it.client.post(PATH, body)).status == 400


@on_both_loops
async def test_a_full_queue_is_a_503_with_retry_after() -> None:
    async with running(max_queue=1) as it, Client.to(it.server) as second:
        it.model.open.clear()
        await it.client.send(request_of(body_of(1)))
        await it.wait_until_it_runs()
        await second.send(request_of(body_of(2)))
        async with Client.to(it.server) as third:
            await it.wait_queued(1)
            reply = await third.post(PATH, body_of(3))
            assert (reply.status, "retry-after" in reply.headers) == (503, True)
        it.model.open.set()
        assert first_of((await it.client.reply()).body) == 1
        assert first_of((await second.reply()).body) == 2


@on_both_loops
async def test_who_leaves_the_queue_never_runs() -> None:
    async with running() as it:
        it.model.open.clear()
        await it.client.send(request_of(body_of(1)))
        await it.wait_until_it_runs()
        async with Client.to(it.server) as second:
            await second.send(request_of(body_of(2)))
            await it.wait_queued(1)
        await it.wait_queued(0)
        it.model.open.set()
        assert first_of((await it.client.reply()).body) == 1
        assert it.model.batches == [[1.0]]


@on_both_loops
async def test_who_leaves_while_his_batch_runs_hurts_nobody() -> None:
    async with running() as it:
        it.model.open.clear()
        async with Client.to(it.server) as leaver:
            await leaver.send(request_of(body_of(1)))
            await it.wait_until_it_runs()
        it.model.open.set()
        assert first_of((await it.client.post(PATH, body_of(2))).body) == 2


@on_both_loops
async def test_pipelined_requests_are_answered_in_order_with_their_own_ids() -> None:
    async with running() as it:
        it.model.open.clear()
        requests = [request_of(body_of(n), f"X-Request-Id: r{n}\r\n") for n in range(3)]
        await it.client.send(b"".join(requests))
        await it.wait_until_it_runs()
        it.model.open.set()
        for n in range(3):
            reply = await it.client.reply()
            assert (first_of(reply.body), reply.headers["x-request-id"]) == (n, f"r{n}")


@on_both_loops
async def test_a_large_answer_is_compressed_where_asked() -> None:
    async with running() as it:
        packed = await it.client.post(PATH, body_of(0.1), "Accept-Encoding: gzip\r\n")
        plain = await it.client.post(PATH, body_of(0.1))
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body


@on_both_loops
async def test_old_and_closing_clients_are_served_too() -> None:
    async with running() as it, Client.to(it.server) as old:
        body = body_of(1)
        await old.send(
            f"POST {PATH} HTTP/1.0\r\nConnection: keep-alive\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        reply = await old.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "keep-alive")
        closing = await it.client.post(PATH, body_of(1), "Connection: close\r\n")
        assert (closing.status, closing.headers["connection"]) == (200, "close")


@on_both_loops
async def test_a_server_that_stops_answers_what_has_begun() -> None:
    async with running() as it:
        it.model.open.clear()
        await it.client.send(request_of(body_of(1)))
        await it.wait_until_it_runs()
        stopping = asyncio.create_task(it.server.stop())
        await asyncio.sleep(0)
        it.model.open.set()
        reply = await it.client.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        await stopping


@on_both_loops
async def test_a_server_that_may_not_wait_refuses_what_still_runs() -> None:
    async with running() as it:
        it.model.open.clear()
        await it.client.send(request_of(body_of(1)))
        await it.wait_until_it_runs()
        await it.server.stop()
        assert (await it.client.reply()).status == 503
        it.model.open.set()
        assert it.statistics.as_triton("gate", "1")["inference_stats"]["fail"]["count"] == 1


def tenants_seen(served: Served) -> list[str]:
    seen: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, BatchStarted):
            seen.extend(item.tenant for item in event.batch.items)

    served.batcher.observe(note)
    return seen


@on_both_loops
async def test_each_request_is_its_tenants() -> None:
    async with running() as it:
        seen = tenants_seen(it.served)
        it.model.open.clear()
        named = [(1, ""), (2, "a"), (3, "a"), (4, "b"), (5, "")]
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client.to(it.server)) for _ in named]
            for client, (number, tenant) in zip(clients, named, strict=True):
                header = f"Headway-Tenant: {tenant}\r\n" if tenant else ""
                await client.send(request_of(body_of(number), header))
                if number == 1:
                    await it.wait_until_it_runs()
            await it.wait_queued(4)
            it.model.open.set()
            for client, (number, _) in zip(clients, named, strict=True):
                assert first_of((await client.reply()).body) == number
        assert sorted(seen) == ["", "", "a", "a", "b"]


@on_both_loops
async def test_a_key_says_who_asks_and_how_much_it_may() -> None:
    key = new_key()
    config = KeyConfig(id="k", hash=key.hash, tenant="acme", concurrent=1)
    mine = f"Authorization: Bearer {key.key}\r\nHeadway-Tenant: somebody-else\r\n"
    async with running(keys=[config]) as it, Client.to(it.server) as second:
        seen = tenants_seen(it.served)
        assert (await it.client.post(PATH, body_of(1))).status == 401
        assert (await it.client.post(PATH, body_of(1), "X-Api-Key: wrong\r\n")).status == 401
        assert first_of((await it.client.post(PATH, body_of(2), mine)).body) == 2
        it.model.entered.clear()
        it.model.open.clear()
        await it.client.send(request_of(body_of(3), mine))
        await it.wait_until_it_runs()
        assert (await second.post(PATH, body_of(4), mine)).status == 429
        it.model.open.set()
        assert first_of((await it.client.reply()).body) == 3
        assert first_of((await second.post(PATH, body_of(5), mine)).body) == 5
        assert seen == ["acme", "acme", "acme"]


@on_both_loops
async def test_who_leaves_gives_its_place_in_the_quota_back() -> None:
    key = new_key()
    config = KeyConfig(id="k", hash=key.hash, tenant="acme", concurrent=2)
    mine = f"X-Api-Key: {key.key}\r\n"
    async with running(keys=[config]) as it:
        it.model.open.clear()
        await it.client.send(request_of(body_of(1), mine))
        await it.wait_until_it_runs()
        async with Client.to(it.server) as leaver:
            await leaver.send(request_of(body_of(2), mine))
            await it.wait_queued(1)
        await it.wait_queued(0)
        it.model.open.set()
        assert first_of((await it.client.reply()).body) == 1
        async with Client.to(it.server) as second:
            assert first_of((await second.post(PATH, body_of(3), mine)).body) == 3


@on_both_loops
async def test_a_key_without_the_right_is_refused() -> None:
    key = new_key()
    config = KeyConfig(id="k", hash=key.hash, tenant="acme", rights=("metrics",))
    async with running(keys=[config]) as it:
        reply = await it.client.post(PATH, body_of(1), f"X-Api-Key: {key.key}\r\n")
        assert reply.status == 403
        assert it.model.batches == []
