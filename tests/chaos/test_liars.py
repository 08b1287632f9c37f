"""The whole load generator against servers that lie: each lie is found out, on real sockets."""

import asyncio
import json
import time
from collections.abc import Callable

import pytest
from benchmarks.chaos.accounting import Ledger
from benchmarks.chaos.load import run_load
from benchmarks.chaos.models import digest_of
from benchmarks.chaos.scenario import Request

COUNT = 6
LIAR = 3  # the request that is not answered as it should be


def requests() -> list[Request]:
    return [
        Request(
            id=number,
            due_at=0.0,
            model="texts",
            transport="http",
            behaviour="fine",
            content=f"fine:{number}".encode(),
            digests=(digest_of(f"fine:{number}".encode()),),
        )
        for number in range(COUNT)
    ]


def http_answer(text: str) -> bytes:
    body = json.dumps(digest_of(text.encode())).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def honest(text: str) -> bytes:
    return http_answer(text)


def loses(text: str) -> bytes:
    return b"" if text == f"fine:{LIAR}" else http_answer(text)


def doubles(text: str) -> bytes:
    return http_answer(text) * (2 if text == f"fine:{LIAR}" else 1)


def crosses(text: str) -> bytes:
    return http_answer("fine:0" if text == f"fine:{LIAR}" else text)


def cuts_off(text: str) -> bytes:
    return http_answer(text)[:-3] if text == f"fine:{LIAR}" else http_answer(text)


async def account_of(lie: Callable[[str], bytes]) -> Ledger:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length:")[1].split()[0])
                writer.write(lie(json.loads(await reader.readexactly(length))))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    ledger, started = Ledger(), time.perf_counter()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        await run_load(
            requests(),
            ledger,
            http_port=server.sockets[0].getsockname()[1],
            grpc_address="127.0.0.1:1",
            clock=lambda: time.perf_counter() - started,
            patience_s=1.0,
        )
    return ledger


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        (honest, []),
        (loses, ["requests without an outcome"]),
        (doubles, ["answers that nobody waited for"]),
        (crosses, ["answers to the wrong caller", "healthy requests that failed"]),
        (cuts_off, ["requests without an outcome"]),
    ],
)
def test_a_lie_is_found_out(lie: Callable[[str], bytes], found: list[str]) -> None:
    ledger = asyncio.run(account_of(lie))
    assert [each.what for each in ledger.broken()] == found
    assert ledger.sent_count == COUNT
