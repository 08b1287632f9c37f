"""TLS handshakes that are begun and not finished: they have a limit, in number and in time."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from http_client import Client, Reply, run

from headway.config import ServerConfig
from headway.server.app import App
from headway.server.auth.guard import certificates_of
from headway.server.service.routes import Route
from headway.wire.http1.server import HttpServer
from headway.wire.http2.server import H2Server
from headway.wire.messages import Request, Response

AUTHORITY = trustme.CA()


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> Any:
    return asyncio.run if request.param == "asyncio" else run


async def answer(request: Request) -> Response:
    return Response(b"1")


def secure(folder: Path, **settings: Any) -> ServerConfig:
    made = AUTHORITY.issue_cert("localhost", "127.0.0.1")
    key, chain = folder / "key.pem", folder / "cert.pem"
    made.private_key_pem.write_to_path(str(key))
    chain.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
    options = {"port": 0, "drain_s": 0.2, "header_timeout_s": 30.0, **settings}
    return ServerConfig(tls_cert=str(chain), tls_key=str(key), **options)


@asynccontextmanager
async def serving(config: ServerConfig) -> AsyncIterator[HttpServer]:
    app = App()
    app.add(Route("GET", "/x", answer))
    async with HttpServer(app, config, tls=certificates_of(config).context) as server:
        yield server


async def silent(port: int) -> Client:
    """Connects, and never says a word of TLS."""
    return Client(*await asyncio.open_connection("127.0.0.1", port))


async def is_hung_up(client: Client) -> bool:
    with suppress(ConnectionError):
        assert await client.rest() == b""
    await client.leave()
    return True


async def get(port: int) -> Reply:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    opened = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    client = Client(*opened)
    reply = await client.get("/x")
    await client.leave()
    return reply


def test_of_too_many_the_oldest_is_cut_and_others_are_served(on_loop: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(secure(tmp_path, max_handshakes=2)) as server:
            idlers = [await silent(server.port) for _ in range(8)]
            assert (await get(server.port)).status == 200
            for each in idlers[:-1]:  # one place is left, since the last handshake is done
                assert await is_hung_up(each)
            assert (await get(server.port)).body == b"1"
            await idlers[-1].leave()

    on_loop(scenario())


def test_a_handshake_has_the_time_of_a_head(on_loop: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(secure(tmp_path, header_timeout_s=0.1)) as server:
            assert await is_hung_up(await silent(server.port))
            assert (await get(server.port)).status == 200

    on_loop(scenario())


def test_what_is_no_tls_is_hung_up_on_and_not_logged(
    on_loop: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(secure(tmp_path)) as server:
            client = await silent(server.port)
            await client.send(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
            with suppress(ConnectionError):
                assert not (await client.rest()).startswith(b"HTTP")
            await client.leave()
            assert (await get(server.port)).status == 200

    on_loop(scenario())
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []


def test_stopping_does_not_wait_for_handshakes(on_loop: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(secure(tmp_path)) as server:
            idler = await silent(server.port)
            assert (await get(server.port)).status == 200
        assert await is_hung_up(idler)

    on_loop(scenario())


def test_a_taken_port_is_an_error(on_loop: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(secure(tmp_path)) as server:
            config = secure(tmp_path, port=server.port)
            with pytest.raises(OSError, match="in use"):
                async with serving(config):
                    pass

    on_loop(scenario())


def test_grpc_has_the_same_limit(on_loop: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        config = secure(tmp_path, max_handshakes=2)
        certificates = certificates_of(config)
        server = H2Server({}, config, limit_bytes=1000, tls=lambda: certificates.context("h2"))
        port = await server.start("127.0.0.1", 0)
        try:
            idlers = [await silent(port) for _ in range(4)]
            for each in idlers[:2]:
                assert await is_hung_up(each)
            for each in idlers[2:]:
                await each.leave()
        finally:
            await server.stop(0.0)

    on_loop(scenario())
