"""The servers that the serving benchmarks measure, each one process (or family) on one core.

python -m benchmarks.served NAME --port PORT    # headway-zero, mosec-sleep, bare-sleep, …
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

import headway

SERVER_CORE = 1
MAX_BATCH_SIZE = 64
MANY = 100  # models of one server
ALPHA_S, BETA_S = 0.005, 0.000_05
WINDOWS_MS = (1, 5)  # that fixed windows are tried with
TOLD_ROWS = (16, 32, 48, 64)  # … and batch sizes, where a window is told how many callers there are


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


class Heavy(Zero):
    """20 ms and 0.5 ms a row."""

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.020 + 0.0005 * len(batch["x"]))
        return {"y": batch["x"]}


class Chat(TypedDict):
    messages: list[dict[str, Any]]
    max_tokens: NotRequired[int]


class Talk(headway.Model[Chat, str]):
    """A stream of 20 words, 10 ms each."""

    def stream(self, items: list[Chat]) -> Iterator[list[Any]]:
        for _ in range(20):
            time.sleep(0.010)
            yield ["word "] * len(items)
        yield [headway.END] * len(items)


class Features(TypedDict):
    x: list[float]


class Scores(TypedDict):
    y: list[float]


class Records(headway.Model[Features, Scores]):
    """The same over JSON objects, as a function of one's own would be."""

    def predict(self, items: list[Features]) -> list[Scores]:
        return [{"y": item["x"]} for item in items]


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


DECODER = msgspec.json.Decoder(V2Request)
_ENCODER = msgspec.json.Encoder()


def answer_of(values: list[float]) -> dict[str, Any]:
    output = {"name": "y", "datatype": "FP32", "shape": [1, 16], "data": values}
    return {"model_name": "zero", "model_version": "1", "outputs": [output]}


def encode_answer(values: list[float]) -> bytes:
    return _ENCODER.encode(answer_of(values))


def serve_mosec(worker: str, port: int, *, wait_ms: int) -> None:
    import mosec

    from benchmarks.peers import mosec_workers

    sys.argv = ["mosec", "--port", str(port), "--address", "127.0.0.1", "--log-level", "error",
                "--capacity", "100000", "--timeout", "60000"]  # fmt: skip
    server = mosec.Server()
    server.append_worker(
        getattr(mosec_workers, worker), max_batch_size=MAX_BATCH_SIZE, max_wait_time=wait_ms
    )
    server.run()


def serve_litserve(port: int) -> None:
    import litserve

    from benchmarks.peers.litserve_api import Embed

    api = Embed(max_batch_size=MAX_BATCH_SIZE, batch_timeout=0.005, api_path="/inference")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=False)
    server.run(host="127.0.0.1", port=port, log_level="error", generate_client_file=False)


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


def serve_bare_grpc(port: int, *, is_sync: bool) -> None:
    """The floor of gRPC in Python: an echo of one tensor."""
    import grpc

    from headway.server.grpc import inference_pb2 as pb

    def echo(request: Any) -> Any:
        response = pb.ModelInferResponse(model_name="zero", model_version="1", id=request.id)
        response.outputs.add(name="y", datatype="FP32", shape=[1, 16])
        response.raw_output_contents.append(request.raw_input_contents[0])
        return response

    async def echo_async(request: Any, _: Any) -> Any:
        return echo(request)

    handler = grpc.unary_unary_rpc_method_handler(
        (lambda request, _: echo(request)) if is_sync else echo_async,
        request_deserializer=pb.ModelInferRequest.FromString,
        response_serializer=pb.ModelInferResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(
        "inference.GRPCInferenceService", {"ModelInfer": handler}
    )

    async def serve() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((handlers,))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()

    if is_sync:
        server = grpc.server(ThreadPoolExecutor(8))
        server.add_generic_rpc_handlers((handlers,))
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        server.wait_for_termination()
    else:
        asyncio.run(serve())


def headway_http(target: str, *options: str) -> Callable[[int], None]:
    more = ("--name", "zero", "--grpc-port", "-1", *options)
    return lambda port: serve_headway(target, port, *more)


def serve_many(port: int) -> None:
    model = '[[models]]\nname = "zero-{}"\ntarget = "benchmarks.served:Zero"\nwarm_up = false\n'
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "many.toml")
        file.write_text("".join(model.format(number) for number in range(MANY)))
        serve_headway(str(file), port, "--grpc-port", "-1")


def headway_grpc(port: int) -> None:
    serve_headway("benchmarks.served:Zero", 0, "--name", "zero", "--grpc-port", str(port))


def mosec(worker: str, wait_ms: int = 5) -> Callable[[int], None]:
    return lambda port: serve_mosec(worker, port, wait_ms=wait_ms)


def windowed(wait_ms: int, rows: int) -> Callable[[int], None]:
    more = ("--policy", "window", "--max-wait-ms", str(wait_ms), "--max-batch-size", str(rows))
    return headway_http("benchmarks.served:Sleep", *more)


SERVERS: dict[str, Callable[[int], None]] = {
    **{f"headway-sleep-window-{ms}": windowed(ms, MAX_BATCH_SIZE) for ms in WINDOWS_MS},
    **{f"headway-sleep-window-20-{rows}": windowed(20, rows) for rows in TOLD_ROWS},
    "headway-zero": headway_http("benchmarks.served:Zero"),
    "headway-records": headway_http("benchmarks.served:Records"),
    "headway-zero-no-metrics": headway_http("benchmarks.served:Zero", "--no-metrics"),
    "headway-many": serve_many,
    "headway-single": headway_http(
        "benchmarks.served:Zero", "--max-batch-size", "1", "--admin-without-key"
    ),
    "headway-sleep": headway_http("benchmarks.served:Sleep"),
    "headway-heavy": lambda port: serve_headway(
        "benchmarks.served:Heavy",
        port,
        *("--name", "zero", "--grpc-port", "-1", "--max-batch-size", "32", "--slo-ms", "200"),
    ),
    "headway-minilm": lambda port: serve_headway("minilm", port, "--grpc-port", "-1"),
    "headway-minilm-fifo": lambda port: serve_headway(
        "minilm",
        port,
        *("--grpc-port", "-1", "--policy", "window", "--max-wait-ms", "5", "--compose", "fifo"),
    ),
    "mosec-minilm": mosec("Embed"),
    "litserve-minilm": serve_litserve,
    "headway-speech": lambda port: serve_headway("moonshine", port, "--grpc-port", "-1"),
    "headway-grpc": headway_grpc,
    "mosec-zero": mosec("Zero"),
    "mosec-records": mosec("Records"),
    "mosec-zero-msgspec": mosec("FastZero", 1),
    "mosec-sleep": mosec("Sleep"),
    "mosec-sleep-msgspec": mosec("FastSleep", 1),
    "bare-sleep": serve_bare,
    "bare-grpc-aio": lambda port: serve_bare_grpc(port, is_sync=False),
    "bare-grpc-sync": lambda port: serve_bare_grpc(port, is_sync=True),
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
