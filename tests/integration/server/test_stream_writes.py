"""What a connection leaves with those that write together."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from headway.config import ModelConfig, ServerConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.model import Model
from headway.server.net.http1.server import HttpServer
from headway.server.run import make_app

pytestmark = pytest.mark.real_time
CHUNKS = 50


class Pages(Model[str, str]):
    """Chunks that are too large to be held, and too small for parts of their own."""

    def stream(self, items: list[str]) -> Iterator[list[str]]:
        for _ in range(CHUNKS):
            time.sleep(0.002)  # so that each comes in a turn of its own
            yield [item * 5000 for item in items]


async def test_a_part_that_is_written_at_once_waits_nowhere() -> None:
    served = Served(ModelConfig(name="pages", target="t:t", warm_up=False), model=Pages())
    await served.start()
    registry = Registry()
    registry.add(served)
    config = ServerConfig(port=0, grpc_port=-1)
    async with HttpServer(make_app(registry, config), config) as http:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(
            b"POST /v2/models/pages/generate_stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b'Content-Length: 18\r\n\r\n{"text_input":"x"}'
        )
        answer = await reader.read()
        writer.close()
        assert answer.count(b"data: ") == CHUNKS
        assert http.writes._waiting == []
    await served.close()
