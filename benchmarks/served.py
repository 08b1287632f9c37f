"""The servers that the serving benchmarks measure, each one process (or family) on one core.

python -m benchmarks.served NAME --port PORT    # headway-zero, mosec-sleep, bare-sleep, …
"""

import argparse
import asyncio
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

import headway

SERVER_CORE = 1
MAX_BATCH_SIZE = 64
ALPHA_S, BETA_S = 0.005, 0.000_05


def sleep_for(rows: int) -> None:
    time.sleep(ALPHA_S + BETA_S * rows)


class Zero(headway.TensorModel):
    """16 floats in, the same 16 out."""

    inputs = (headway.Tensor("x", "float32", (-1, 16)),)
    outputs = (headway.Tensor("y", "float32", (-1, 16)),)

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": batch["x"]}


class Sleep(Zero):
    """The GPU-like profile: 5 ms and 0.05 ms a row."""

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        sleep_for(len(batch["x"]))
        return {"y": batch["x"]}


def serve_headway(target: str, port: int, *options: str) -> None:
    from headway.cli.main import main

    sys.exit(main(["serve", target, "--port", str(port), *options]))


class V2Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: list[float]


class V2Request(msgspec.Struct):
    inputs: list[V2Input]


class V2Response(msgspec.Struct):
    model_name: str
    outputs: list[V2Input]


DECODER = msgspec.json.Decoder(V2Request)
_ENCODER = msgspec.json.Encoder()


def encode_answer(values: list[float]) -> bytes:
    return _ENCODER.encode(V2Response("zero", [V2Input("y", "FP32", [1, 16], values)]))


def serve_mosec(worker: str, port: int, *, wait_ms: int) -> None:
    import mosec

    from benchmarks import mosec_workers

    sys.argv = ["mosec", "--port", str(port), "--address", "127.0.0.1", "--log-level", "error",
                "--capacity", "100000", "--timeout", "60000"]  # fmt: skip
    server = mosec.Server()
    server.append_worker(
        getattr(mosec_workers, worker), max_batch_size=MAX_BATCH_SIZE, max_wait_time=wait_ms
    )
    server.run()


class BareProtocol(asyncio.Protocol):
    """The floor for one client: httptools, and the sleep in a worker thread."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        import httptools

        self._parser = httptools.HttpRequestParser(self)
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        values = DECODER.decode(self._body).inputs[0].data
        self._body = b""
        self._loop.run_in_executor(self._pool, sleep_for, 1).add_done_callback(
            lambda _: self._answer(values)
        )

    def _answer(self, values: list[float]) -> None:
        body = encode_answer(values)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body)


def serve_bare(port: int) -> None:
    import uvloop

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            server = await loop.create_server(lambda: BareProtocol(pool), "127.0.0.1", port)
            async with server:
                await server.serve_forever()

    uvloop.run(serve())


SERVERS: dict[str, Any] = {
    "headway-zero": lambda port: serve_headway(
        "benchmarks.served:Zero", port, "--name", "zero", "--grpc-port", "-1"
    ),
    "headway-sleep": lambda port: serve_headway(
        "benchmarks.served:Sleep", port, "--name", "zero", "--grpc-port", "-1"
    ),
    "mosec-zero": lambda port: serve_mosec("Zero", port, wait_ms=5),
    "mosec-zero-1ms": lambda port: serve_mosec("Zero", port, wait_ms=1),
    "mosec-sleep": lambda port: serve_mosec("Sleep", port, wait_ms=5),
    "mosec-sleep-1ms": lambda port: serve_mosec("Sleep", port, wait_ms=1),
    "bare-sleep": serve_bare,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SERVERS)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    os.sched_setaffinity(0, {SERVER_CORE})
    SERVERS[options.name](options.port)


if __name__ == "__main__":
    main()
