"""`headway.Client` over several real servers: one slow, one lost, one that refuses."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import headway
from headway import testing

pytestmark = pytest.mark.real_time


class Where(headway.Model[int, int]):
    """Answers with the number of its server."""

    number = 0
    seconds = 0.001

    def predict(self, items: list[int]) -> list[int]:
        time.sleep(self.seconds)
        return [self.number for _ in items]

    def stream(self, items: list[int]) -> Iterator[list[Any]]:
        yield [self.number for _ in items]
        yield [headway.END for _ in items]


class Fleet:
    """Servers that can be lost one by one."""

    def __init__(self, *seconds: float, **settings: Any) -> None:
        self._stacks = [ExitStack() for _ in seconds]
        self.urls = []
        for number, (stack, each) in enumerate(zip(self._stacks, seconds, strict=True)):
            kind = type(f"Where{number}", (Where,), {"number": number, "seconds": each})
            client = stack.enter_context(testing.client({"where": kind}, **settings))
            self.urls.append(str(client.http.base_url))

    def lose(self, number: int) -> None:
        self._stacks[number].close()

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        for stack in self._stacks:
            stack.close()


def test_a_slow_server_gets_a_small_share() -> None:
    with (
        Fleet(0.002, 0.040) as fleet,
        headway.Client(fleet.urls) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        found = list(pool.map(lambda n: client.predict("where", n), range(200)))
    assert found.count(1) < 60


def test_calls_meet_a_lost_server_and_none_of_them_fails() -> None:
    with Fleet(0.002, 0.002) as fleet, headway.Client(fleet.urls) as client:
        assert {client.predict("where", n) for n in range(40)} == {0, 1}
        lost = threading.Timer(0.1, fleet.lose, [0])
        lost.start()
        found = [client.predict("where", n) for n in range(200)]
        lost.join()
        assert client.is_ready() is True
        assert {client.predict("where", n) for n in range(20)} == {1}
        fleet.lose(1)
        assert client.is_ready() is False
        with pytest.raises(headway.HeadwayError, match="no server answers"):
            client.predict("where", 1)
    assert len(found) == 200


def test_the_same_with_an_event_loop_and_a_caller_that_leaves() -> None:
    async def run(urls: list[str], lose: Any) -> list[int]:
        async with headway.AsyncClient(urls) as client:
            assert set(await asyncio.gather(*(client.predict("where", n) for n in range(40)))) == {
                0,
                1,
            }
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.predict("where", 1), 0.0005)
            chunks = [each async for each in client.stream("where", 1)]
            assert chunks in ([0], [1])
            await asyncio.to_thread(lose, 0)
            found = await asyncio.gather(*(client.predict("where", n) for n in range(20)))
            assert await client.is_ready()
            return found

    with Fleet(0.002, 0.002) as fleet:
        assert asyncio.run(run(fleet.urls, fleet.lose)) == [1] * 20


def test_no_address_is_refused() -> None:
    with pytest.raises(headway.ConfigError, match="address"):
        headway.Client([])
