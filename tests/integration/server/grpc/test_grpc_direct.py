"""gRPC on our own stack: calls without a task are answered, failed, refused and abandoned like all
others; many threads, many connections."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple

import numpy
import pytest
from http_client import on_both_loops

import headway
from headway.config import KeyConfig, ModelConfig, ServerConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Ask, Registry
from headway.hosting.statistics import ModelStatistics
from headway.server.auth.guard import Guard
from headway.server.auth.keys import new_key

grpc = pytest.importorskip("grpc")
from headway.server.grpc import inference_pb2 as pb  # noqa: E402 - once we know that it is there
from headway.server.grpc.server import GrpcServer  # noqa: E402
from headway.wire.http2 import frames  # noqa: E402

PATH = "/inference.GRPCInferenceService/ModelInfer"
WAIT_S = 20.0


class Gate(headway.TensorModel):
    """Echoes when it may; fails on a negative number; cannot answer a 7."""

    inputs: ClassVar = [
        headway.Tensor("x", "float32", (-1, 40)),
        headway.Tensor("n", "int64", (-1,)),
    ]
    outputs: ClassVar = [
        headway.Tensor("y", "float32", (-1, 40)),
        headway.Tensor("m", "int64", (-1,)),
        headway.Tensor("words", "object", (-1, 2)),
    ]

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.open.set()
        self.seen: list[float] = []

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.entered.set()
        assert self.open.wait(WAIT_S)
        self.seen += batch["x"][:, 0].tolist()
        if (batch["x"] < 0).any():
            raise ValueError("negative")
        if (batch["x"] == 7).any():
            return {"y": batch["x"].astype("complex64"), "m": batch["n"]}
        words = numpy.array([[b"", "é".encode()]] * len(batch["n"]), object)
        return {"y": batch["x"], "m": batch["n"], "words": words}


class Counted(Served):
    """Counts those that go the general way."""

    general = 0

    async def infer(self, inputs: Any, ask: Ask) -> Any:
        self.general += 1
        return await super().infer(inputs, ask)


class Running(NamedTuple):
    server: GrpcServer
    channel: Any
    model: Gate
    served: Counted
    statistics: ModelStatistics

    @property
    def infer(self) -> Any:
        """Bytes to bytes."""
        return self.channel.unary_unary(PATH)

    def counts(self) -> tuple[int, int]:
        stats = self.statistics.as_triton("gate", "1")["inference_stats"]
        return stats["success"]["count"], stats["fail"]["count"]

    async def wait_queued(self, rows: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.served.batcher.statistics().queued_rows != rows:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.001)

    async def occupied(self) -> Any:
        """A call that stands at the closed gate, with a 1."""
        self.model.open.clear()
        call = asyncio.ensure_future(self.infer(asked(1)))
        assert await asyncio.to_thread(self.model.entered.wait, WAIT_S)
        return call

    async def queued(self, *numbers: float) -> list[Any]:
        """Calls that wait behind it, in this order."""
        calls = []
        for rows, number in enumerate(numbers, 1):
            calls.append(asyncio.ensure_future(self.infer(asked(number))))
            await self.wait_queued(rows)
        return calls


@asynccontextmanager
async def running(max_queue: int = 4096, keys: Sequence[KeyConfig] = ()) -> AsyncIterator[Running]:
    model = Gate()
    config = ModelConfig(
        name="gate", target="gate", warm_up=False, max_batch_size=1, max_queue=max_queue
    )
    served = Counted(config, model=model)
    served.statistics = statistics = ModelStatistics()
    registry = Registry()
    registry.add(served)
    await served.start()
    front = ServerConfig(grpc_port=0, drain_s=WAIT_S)
    server = GrpcServer(registry, front, guard=Guard(front, keys))
    try:
        async with server, grpc.aio.insecure_channel(server.address) as channel:
            yield Running(server, channel, model, served, statistics)
    finally:
        model.open.set()
        await served.close()


def request(first: float = 1.0, **more: Any) -> Any:
    made = pb.ModelInferRequest(model_name="gate", **more)
    row = numpy.full((1, 40), first, numpy.float32)
    made.inputs.add(name="x", datatype="FP32", shape=[1, 40])
    made.inputs.add(name="n", datatype="INT64", shape=[1])
    made.raw_input_contents.extend([row.tobytes(), b"\x05" + bytes(7)])
    return made


def asked(first: float = 1.0, **more: Any) -> bytes:
    data: bytes = request(first, **more).SerializeToString()
    return data


@pytest.mark.parametrize("more", [{}, {"id": "mine"}, {"id": "é" * 200}, {"model_version": "1"}])
@pytest.mark.real_time
async def test_both_ways_answer_with_the_same_bytes(more: dict[str, str]) -> None:
    async with running() as it:
        direct = await it.infer(asked(3.5, **more))
        assert it.served.general == 0
        general = await it.infer(asked(3.5, **more), metadata=[("headway-priority", "normal")])
        assert it.served.general == 1
        assert direct == general
        assert it.counts() == (2, 0)


def changed() -> list[Any]:
    """Requests that are a little different."""
    found = []
    for change in (
        lambda it: it.outputs.add(name="y"),
        lambda it: it.parameters["priority"].MergeFrom(pb.InferParameter(int64_param=1)),
        lambda it: it.inputs.reverse() or it.raw_input_contents.reverse(),
        lambda it: it.inputs[1].shape.append(1),
        lambda it: (
            it.inputs[0]
            .parameters["binary_data_size"]
            .MergeFrom(pb.InferParameter(int64_param=160))
        ),
    ):
        made = request(2.0)
        change(made)  # type: ignore[no-untyped-call]
        found.append(made)
    return found


@pytest.mark.real_time
async def test_whatever_is_not_exactly_that_goes_the_general_way() -> None:
    async with running() as it:
        for number, made in enumerate(changed(), 1):
            answer = pb.ModelInferResponse.FromString(await it.infer(made.SerializeToString()))
            assert answer.raw_output_contents[0][:4] == numpy.float32(2).tobytes()
            assert it.served.general == number
        await it.infer(asked(), timeout=WAIT_S)
        assert it.served.general == number + 1


@pytest.mark.real_time
async def test_an_inputs_parameter_that_is_unknown_is_not_dropped_on_the_direct_way() -> None:
    made = request()
    made.inputs[0].parameters["any"].bool_param = True
    async with running() as it:
        with pytest.raises(grpc.aio.AioRpcError, match="parameter 'any' is unknown"):
            await it.infer(made.SerializeToString())


@pytest.mark.real_time
@pytest.mark.parametrize("break_it", [lambda it: it.raw_input_contents.pop(), lambda it: it.inputs])
async def test_a_mistake_is_told_as_ever(break_it: Any) -> None:
    made = request()
    break_it(made)
    made.inputs[0].name = "z"
    async with running() as it:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await it.infer(made.SerializeToString())
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert it.counts() == (0, 0)


@pytest.mark.real_time
@pytest.mark.parametrize("first", [-1.0, 7.0])
async def test_a_failing_model_is_its_callers_error(first: float) -> None:
    async with running() as it:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await it.infer(asked(first))
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert it.counts() == (0, 1)
        await it.infer(asked())
        assert it.served.general == 0


@pytest.mark.real_time
async def test_a_full_queue_says_when_to_come_back() -> None:
    async with running(max_queue=1) as it:
        calls = [await it.occupied(), *await it.queued(2)]
        with pytest.raises(grpc.aio.AioRpcError, match="the queue is full") as caught:
            await it.infer(asked(3))
        assert dict(caught.value.trailing_metadata())["retry-after"] == "1"
        it.model.open.set()
        for call in calls:
            await call
        assert it.model.seen == [1, 2]


@pytest.mark.real_time
async def test_a_caller_that_leaves_takes_its_row_along() -> None:
    async with running() as it:
        first, [second] = await it.occupied(), await it.queued(2)
        second.cancel()
        await it.wait_queued(0)
        first.cancel()
        [third] = await it.queued(3)
        it.model.open.set()
        await third
        assert it.model.seen == [1, 3]
        assert it.counts()[0] == 1
        assert it.served.general == 0


@pytest.mark.real_time
async def test_a_connection_that_is_lost_takes_its_rows_along() -> None:
    async with running() as it:
        calls = [await it.occupied(), *await it.queued(2, 3)]
        await it.channel.close()
        await it.wait_queued(0)
        it.model.open.set()
        for call in calls:
            with pytest.raises(asyncio.CancelledError):
                await call
    assert it.model.seen == [1]


@pytest.mark.real_time
async def test_stopping_answers_what_has_begun() -> None:
    async with running() as it:
        calls = [await it.occupied(), *await it.queued(2)]
        stopping = asyncio.create_task(it.server.stop())
        await asyncio.sleep(0)
        it.model.open.set()
        for call in calls:
            assert await call
        await stopping
    assert it.model.seen == [1, 2]


@pytest.mark.real_time
async def test_stopping_gives_up_at_its_deadline_and_says_so() -> None:
    async with running() as it:
        calls = [await it.occupied(), *await it.queued(2)]
        await it.server.stop(0.05)
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError, match="the server is stopping") as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await it.wait_queued(0)


@pytest.mark.real_time
async def test_there_is_room_for_so_many_connections_of_one_address() -> None:
    config = ServerConfig(grpc_port=0, max_connections_per_address=2)
    async with GrpcServer(Registry(), config) as server:
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        reader, _ = opened[2]
        found = list(frames.FrameReader().feed(await reader.read()))  # until it hangs up
        kind, _, _, payload = found[-1]
        assert kind == frames.GOAWAY
        assert payload[4:] == b"\0\0\0\x0btoo many connections"
        for _, writer in opened:
            writer.close()
            await writer.wait_closed()
        _, another = await asyncio.open_connection("127.0.0.1", server.port)
        another.close()


@on_both_loops
async def test_many_threads_and_many_connections() -> None:
    def ask(address: str, worker: int) -> list[float]:
        """A thread of its own, on a connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(address, options) as channel:
            infer = channel.unary_unary(PATH)
            answers = (infer(asked(100 * worker + n)) for n in range(50))
            found = [pb.ModelInferResponse.FromString(each) for each in answers]
        return [
            float(numpy.frombuffer(each.raw_output_contents[0], "f4")[0]) - 100 * worker
            for each in found
        ]

    async with running() as it:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(16) as threads:
            found = await asyncio.gather(
                *(loop.run_in_executor(threads, ask, it.server.address, n) for n in range(1, 17))
            )
        assert found == [[float(n) for n in range(50)]] * 16
        assert it.counts() == (800, 0)
        assert it.served.general == 0


@on_both_loops
async def test_a_key_takes_the_direct_way_with_its_tenant_and_its_quota() -> None:
    key = new_key()
    config = KeyConfig(id="k", hash=key.hash, tenant="acme", concurrent=1)
    mine = (("x-api-key", key.key),)
    async with running(keys=[config]) as it:
        tenants: list[str] = []
        submit = it.served.submit_direct

        def submit_direct(call: Any) -> bool:
            tenants.append(call.tenant)
            return submit(call)

        it.served.submit_direct = submit_direct  # type: ignore[method-assign]
        answer = pb.ModelInferResponse.FromString(await it.infer(asked(2), metadata=mine))
        assert numpy.frombuffer(answer.raw_output_contents[0], numpy.float32)[0] == 2
        assert (it.served.general, tenants) == (0, ["acme"])
        it.model.entered.clear()
        it.model.open.clear()
        first = asyncio.ensure_future(it.infer(asked(1), metadata=mine))
        assert await asyncio.to_thread(it.model.entered.wait, WAIT_S)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await it.infer(asked(3), metadata=mine)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        it.model.open.set()
        await first
        await it.infer(asked(4), metadata=mine)
        assert (it.served.general, tenants) == (0, ["acme"] * 3)
        for metadata in ((), (("x-api-key", "wrong"),)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await it.infer(asked(5), metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@on_both_loops
async def test_a_keyed_caller_that_leaves_gives_its_place_back() -> None:
    key = new_key()
    config = KeyConfig(id="k", hash=key.hash, tenant="acme", concurrent=2)
    mine = (("authorization", f"Bearer {key.key}"),)
    async with running(keys=[config]) as it:
        it.model.open.clear()
        first = asyncio.ensure_future(it.infer(asked(1), metadata=mine))
        assert await asyncio.to_thread(it.model.entered.wait, WAIT_S)
        leaver = asyncio.ensure_future(it.infer(asked(2), metadata=mine))
        await it.wait_queued(1)
        leaver.cancel()
        await it.wait_queued(0)
        it.model.open.set()
        await first
        await it.infer(asked(3), metadata=mine)
        assert it.served.general == 0
