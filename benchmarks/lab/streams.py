"""What one token of a stream costs the front: in process, over SSE, over gRPC.

CPU time of this process, which is front and model; the model only sleeps and yields. The clients
of SSE and gRPC are a process of their own.
"""

import asyncio
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

from benchmarks.report import Bar, Benchmark, Report
from headway.config import ModelConfig, ServerConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Registry
from headway.model import Model
from headway.server.event_loop import run
from headway.server.grpc.server import GrpcServer
from headway.server.run import make_app
from headway.wire.http1.server import HttpServer

STREAMS = 64
STEP_S = 0.004
RUNS = 5
_GOAL_US = 10.0
_REQUEST = (
    b"POST /v2/models/tokens/generate_stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    b'Content-Length: 18\r\n\r\n{"text_input":"x"}'
)


class Tokens(Model[str, str]):
    """One token for each item and step."""

    steps = 0

    def stream(self, items: list[str]) -> Iterator[list[str]]:
        for _ in range(self.steps):
            time.sleep(STEP_S)
            yield [" token"] * len(items)


def streams(quick: bool) -> Report:
    Tokens.steps = 200 if quick else 400
    rows: list[list[object]] = []
    bars = []
    for name, read in (("in process", _in_process), ("SSE, own HTTP", _sse), ("gRPC", _grpc)):
        costs = [run(_cost_us(read)) for _ in range(1 if quick else RUNS)]
        cost = statistics.median(costs)
        rows.append([name, f"{cost:.1f}", f"{min(costs):.1f} to {max(costs):.1f}"])
        if name.startswith("SSE"):
            asked = f"≤ {_GOAL_US:g} µs of CPU a token over SSE, {STREAMS} streams"
            bars.append(Bar(asked, f"{cost:.1f} µs", cost <= _GOAL_US))
    return Report(
        "Streams: CPU of the front a token",
        [f"{STREAMS} streams", "µs, median", "single runs"],
        rows,
        bars,
        [f"one token for each stream every {STEP_S * 1e3:g} ms, {Tokens.steps} of them"],
    )


async def _cost_us(read: Callable[[Served], Awaitable[None]]) -> float:
    config = ModelConfig(
        name="tokens", target="b:b", warm_up=False, max_batch_size=STREAMS, policy="static"
    )
    served = Served(config, model=Tokens())
    await served.start()
    gc.collect()
    started = time.process_time()
    await read(served)
    cost = time.process_time() - started
    await served.close()
    return cost / (STREAMS * Tokens.steps) * 1e6


async def _in_process(served: Served) -> None:
    async def read() -> None:
        count = 0
        async for _ in served.batcher.stream("x"):
            count += 1
        assert count == Tokens.steps

    await asyncio.gather(*(read() for _ in range(STREAMS)))


async def _sse(served: Served) -> None:
    registry, config = Registry(), ServerConfig(port=0)
    registry.add(served)
    async with HttpServer(make_app(registry, config), config) as server:
        await _client("sse", server.url.removeprefix("http://"))


async def _grpc(served: Served) -> None:
    registry = Registry()
    registry.add(served)
    async with GrpcServer(registry, ServerConfig(grpc_port=0)) as server:
        await _client("grpc", server.address)


async def _client(kind: str, address: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.lab.streams", kind, address), stdout=subprocess.PIPE
    )
    text, _ = await process.communicate()
    assert int(text) > 0, "no tokens came"


async def _read_sse(address: str) -> int:
    async def read() -> int:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(_REQUEST)
        data = await reader.read(-1)
        writer.close()
        return data.count(b"data: ")

    return sum(await asyncio.gather(*(read() for _ in range(STREAMS))))


async def _read_grpc(address: str) -> int:
    import grpc

    from headway.server.grpc import inference_pb2 as pb

    async def read(method: object) -> int:
        tensor = pb.ModelInferRequest.InferInputTensor(name="input", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(b"x")
        request = pb.ModelInferRequest(model_name="tokens", inputs=[tensor])

        async def requests() -> object:
            yield request

        return len([answer async for answer in method(requests())])  # type: ignore[operator]

    async with grpc.aio.insecure_channel(address) as channel:
        method = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        return sum(await asyncio.gather(*(read(method) for _ in range(STREAMS))))


BENCHMARKS: dict[str, Benchmark] = {"streams": streams}

if __name__ == "__main__":
    count = asyncio.run((_read_sse if sys.argv[1] == "sse" else _read_grpc)(sys.argv[2]))
    sys.stdout.write(str(count))
