"""A server without keys, and what browsers send it on behalf of pages."""

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx
import pytest
from served_models import Upper
from small_server import hosted

from headway.config import KeyConfig, ServerConfig
from headway.server.auth.guard import Guard
from headway.server.auth.keys import new_key
from headway.server.run import make_app
from headway.wire.asgi import AsgiApp
from headway.wire.http1.server import HttpServer

pytestmark = pytest.mark.real_time
BODY, PREDICT = '"a"', "/v1/predict/upper"
REBOUND = {"host": "rebound.example.com:8000"}
PAGES: list[dict[str, str]] = [
    {"origin": "https://evil.example.com"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},  # a form
    REBOUND,
    {"host": "127.0.0.1.example.com"},
    {"host": "localhost.example.com"},
]
TAKEN: list[dict[str, str]] = [
    {},
    {"host": "localhost:8000"},
    {"host": "127.0.0.1"},
    {"host": "10.1.2.3:8000"},
    {"host": "[::1]:8000"},
    {"host": "headway:8000"},
    {"host": "LOCALHOST."},
    {"host": "headway.models.svc.cluster.local"},
    {"host": socket.gethostname()},
    {"sec-fetch-site": "same-origin", "origin": "http://localhost:8000", "host": "localhost:8000"},
    {"sec-fetch-site": "none"},
]


@asynccontextmanager
async def served(
    *, has_keys: bool = False, is_mounted: bool = False, **settings: object
) -> AsyncIterator[httpx.AsyncClient]:
    config = ServerConfig(port=0, grpc_port=-1, drain_s=1, **settings)  # type: ignore[arg-type]
    key = new_key()
    keys = [KeyConfig(id="a", hash=key.hash, tenant="a")] if has_keys else []
    guard = Guard(config, keys, is_mounted=is_mounted)
    async with hosted({"upper": Upper()}) as registry:
        app = make_app(registry, config, guard=guard)
        headers = {"authorization": f"Bearer {key.key}"} if has_keys else {}
        if is_mounted:
            transport = httpx.ASGITransport(app=AsgiApp(app, max_body_bytes=2**20))  # type: ignore[arg-type]
            client = httpx.AsyncClient(
                transport=transport, base_url="http://asgi", headers=headers, timeout=20
            )
            async with client:
                yield client
            return
        async with (
            HttpServer(app, config) as server,
            httpx.AsyncClient(base_url=server.url, headers=headers, timeout=20) as client,
        ):
            yield client


async def asked(client: httpx.AsyncClient, headers: Mapping[str, str]) -> set[int]:
    text = {"content-type": "text/plain", **headers}
    found = {(await client.post(PREDICT, content=BODY, headers=text)).status_code}
    for _ in range(2):  # the second time its head is known
        found.add((await client.post(PREDICT, content=BODY, headers=headers)).status_code)
    found.add((await client.post("/v2/models/upper/load", headers=headers)).status_code)
    return found


@pytest.mark.parametrize("headers", PAGES)
async def test_a_page_of_another_site_can_neither_run_a_model_nor_read(
    headers: dict[str, str],
) -> None:
    async with served() as client:
        assert (await client.post(PREDICT, content=BODY)).status_code == 200
        answer = await client.post(PREDICT, content=BODY, headers=headers)
        assert answer.status_code == 403
        assert any(each in answer.text for each in ("--cors-origins", "--allowed-hosts"))
        assert await asked(client, headers) == {403}
        if "navigate" not in headers.values():
            for path in ("/v1/models", "/metrics", "/v2/health/ready", "/openapi.json"):
                assert (await client.get(path, headers=headers)).status_code == 403


@pytest.mark.parametrize("headers", TAKEN)
async def test_clients_and_our_own_pages_are_served(headers: dict[str, str]) -> None:
    async with served() as client:
        answer = await client.post(PREDICT, content=BODY, headers=headers)
        assert (answer.status_code, answer.json()) == (200, "A")
        assert (await client.get("/v2/health/ready", headers=headers)).status_code == 200


async def test_a_link_to_a_page_of_ours_may_be_followed() -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    async with served() as client:
        assert (await client.get("/docs", headers=headers)).status_code == 200


async def test_what_the_operator_names_is_taken() -> None:
    async with served(allowed_hosts=("rebound.example.com",)) as client:
        assert (await client.get("/v1/models", headers=REBOUND)).status_code == 200
    async with served(cors_origins=("https://app.example.org",)) as client:
        page = {"origin": "https://app.example.org", "sec-fetch-site": "cross-site"}
        assert (await client.post(PREDICT, content=BODY, headers=page)).status_code == 200
        other = await client.get("/v1/models", headers={"origin": "https://b.example.org"})
        assert other.status_code == 403
        assert (await client.get("/v1/models", headers=REBOUND)).status_code == 403
    for settings in ({"cors_origins": ("*",)}, {"allowed_hosts": ("*",)}):
        async with served(**settings) as client:
            assert (await client.get("/v1/models", headers=REBOUND)).status_code == 200


async def test_with_keys_or_within_another_application_the_host_is_not_ours_to_judge() -> None:
    async with served(has_keys=True) as client:
        assert (await client.get("/v1/models", headers=REBOUND)).status_code == 200
    async with served(is_mounted=True) as client:
        assert (await client.get("/v1/models", headers=REBOUND)).status_code == 200


HEADS = [
    b"GET /v2 HTTP/1.1\r\nHost: x y, z\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\nHost: a b\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\nHost: a:b\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\nHost: http://a\r\n\r\n",
    b"POST /v1/predict HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("head", HEADS)
async def test_a_head_that_cannot_be_is_refused(head: bytes) -> None:
    async with served() as client:
        answer = await exchange(client.base_url.port or 0, head)
        assert answer.startswith(b"HTTP/1.1 400 ")


async def exchange(port: int, sent: bytes) -> bytes:
    import asyncio

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer
