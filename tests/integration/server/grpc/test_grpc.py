"""v2 over gRPC, asked by Triton's own client and by bare grpc.aio; a real server on a free port."""

import asyncio
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
from served_models import Double, Gate, Half, Letters, Root, Upper
from small_server import count, hosted

import headway
from headway import Tensor
from headway.cli.main import main
from headway.config import ServerConfig
from headway.errors import ConfigError
from headway.hosting.registry import Registry
from headway.server.run import make_grpc
from headway.server.service.shared_memory import SharedRegions

grpc = pytest.importorskip("grpc")
health_pb2 = pytest.importorskip("grpc_health.v1.health_pb2")
reflection_pb2 = pytest.importorskip("grpc_reflection.v1alpha.reflection_pb2")
triton = pytest.importorskip("tritonclient.grpc")
from grpc_health.v1 import health_pb2_grpc  # noqa: E402 - once we know that it is there
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc  # noqa: E402
from tritonclient.utils import InferenceServerException, np_to_triton_dtype  # noqa: E402

from headway.server.grpc import inference_pb2 as ours  # noqa: E402
from headway.server.grpc.server import GrpcServer  # noqa: E402

pytestmark = pytest.mark.real_time
Code = grpc.StatusCode
WAIT_S = 5.0


class Sum(headway.TensorModel):
    inputs: ClassVar = [Tensor("a", "int8", (-1, 2)), Tensor("b", "int8", (-1, 2))]
    outputs: ClassVar = [Tensor("sum", "int8", (-1, 2)), Tensor("less", "bool", (-1, 2))]

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"sum": batch["a"] + batch["b"], "less": batch["a"] < batch["b"]}


# ---- the server


@asynccontextmanager
async def serving(
    models: dict[str, Any], **settings: Any
) -> AsyncIterator[tuple[GrpcServer, Registry]]:
    config = ServerConfig(grpc_port=0, admin_without_key=True, **{"drain_s": WAIT_S, **settings})
    async with hosted(models, count) as registry:
        with closing(SharedRegions()) as regions:
            async with GrpcServer(registry, config, version="1.2", regions=regions) as server:
                yield server, registry


class Running:
    """The server in a thread of its own, for clients that block."""

    def __init__(self) -> None:
        self.gate, self.narrow = Gate(), Gate()
        self.models = {
            "double": Double(4),
            "sum": Sum(),
            "half": Half(),
            "upper": Upper(),
            "root": Root(),
            "letters": Letters(),
            "gate": (self.gate, {"max_batch_size": 1}),
            "narrow": (self.narrow, {"max_batch_size": 1, "max_queue": 1}),
        }
        self.address: queue.Queue[str] = queue.Queue()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with serving(self.models) as (server, _):
            self.address.put(server.address)
            await self._stop.wait()

    def __enter__(self) -> "Running":
        self._thread.start()
        self.url = self.address.get(timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with Running() as server:
        yield server


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[Any]:
    with triton.InferenceServerClient(running.url) as client:
        yield client


@pytest.fixture(scope="module")
def stub(running: Running) -> Iterator[Any]:
    """Triton's own stub, for requests that its client would not send."""
    with grpc.insecure_channel(running.url) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def tensor(name: str, array: Any, datatype: str = "") -> Any:
    made = triton.InferInput(name, array.shape, datatype or np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array)
    return made


def texts(*values: str) -> Any:
    return tensor("input", numpy.array([value.encode() for value in values], object))


def floats(*values: float) -> Any:
    return tensor("input", numpy.array(values, numpy.float64))


ONES = numpy.ones((1, 4), numpy.float32)


# ---- what there is


def test_health_by_the_protocols_own_calls(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("double")
    assert client.is_model_ready("double", "1")
    assert not client.is_model_ready("double", "2")
    assert not client.is_model_ready("nothing")


def test_metadata(client: Any) -> None:
    server = client.get_server_metadata()
    assert (server.name, server.version) == ("headway", "1.2")
    assert {"statistics", "system_shared_memory"} <= set(server.extensions)
    model = client.get_model_metadata("double")
    assert (model.name, list(model.versions)) == ("double", ["1"])
    [given] = model.inputs
    assert (given.name, given.datatype, list(given.shape)) == ("x", "FP32", [-1, 4])


def test_config(client: Any) -> None:
    config = client.get_model_config("upper").config
    assert (config.name, config.max_batch_size) == ("upper", 64)
    assert [(each.name, each.data_type) for each in config.input] == [
        ("input", model_config_pb2.TYPE_STRING)
    ]
    assert config.HasField("dynamic_batching")
    assert not config.model_transaction_policy.decoupled
    assert client.get_model_config("letters").config.model_transaction_policy.decoupled


def test_statistics(client: Any) -> None:
    def of(name: str) -> Any:
        [found] = client.get_inference_statistics(name).model_stats
        return found

    before = of("double")
    client.infer("double", [tensor("x", numpy.ones((3, 4), numpy.float32))])
    after = of("double")
    assert after.inference_count - before.inference_count == 3
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1
    assert [each.batch_size for each in after.batch_stats if each.batch_size == 3] == [3]
    assert len(client.get_inference_statistics().model_stats) == 8


def test_models_that_nobody_keeps_can_be_listed_not_changed(client: Any) -> None:
    index = client.get_model_repository_index().models
    assert ("double", "1", "READY") in [(each.name, each.version, each.state) for each in index]
    for change in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match="loaded at start") as caught:
            change("double")
        assert caught.value.status() == "StatusCode.PERMISSION_DENIED"


def test_settings_can_be_read_not_changed(client: Any) -> None:
    assert list(client.get_trace_settings().settings["trace_level"].value) == ["OFF"]
    assert client.get_log_settings().settings["log_info"].bool_param is True
    client.update_trace_settings(settings={"trace_level": ["OFF"]})
    client.update_log_settings({"log_info": True})
    with pytest.raises(InferenceServerException, match="cannot be changed"):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    with pytest.raises(InferenceServerException, match="cannot be changed"):
        client.update_log_settings({"log_verbose_level": 1})


def test_every_message_is_as_tritons_client_has_it() -> None:
    theirs = {}
    for file in (service_pb2.DESCRIPTOR, model_config_pb2.DESCRIPTOR):
        for message in file.message_types_by_name.values():
            theirs |= {each.full_name: each for each in nested(message)}
    newer = {"inference.InferResponseStatistics", "inference.ModelStatistics.ResponseStatsEntry"}
    for message in ours.DESCRIPTOR.message_types_by_name.values():
        for each in nested(message):
            if each.full_name not in newer:
                assert fields(each).items() <= fields(theirs[each.full_name]).items()
    [service] = service_pb2.DESCRIPTOR.services_by_name.values()
    [mine] = ours.DESCRIPTOR.services_by_name.values()
    assert set(mine.methods_by_name) == set(service.methods_by_name)


def nested(message: Any) -> Iterator[Any]:
    yield message
    for each in message.nested_types:
        yield from nested(each)


def fields(message: Any) -> dict[str, Any]:
    return {
        each.name: (each.number, each.type, each.message_type and each.message_type.full_name)
        for each in message.fields
        if each.name != "response_stats"  # newer than the client
    }


# ---- inference


def test_tensors_in_and_out(client: Any) -> None:
    result = client.infer(
        "double", [tensor("x", numpy.arange(8, dtype=numpy.float32).reshape(2, 4))], request_id="7"
    )
    assert result.as_numpy("y").tolist() == [[0, 2, 4, 6], [8, 10, 12, 14]]
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("7", "double", "1")


def test_several_inputs_and_the_outputs_that_were_asked_for(client: Any) -> None:
    inputs = [
        tensor("b", numpy.array([[1, 5]], numpy.int8)),
        tensor("a", numpy.array([[2, 3]], numpy.int8)),
    ]
    wanted = [triton.InferRequestedOutput("less"), triton.InferRequestedOutput("sum")]
    result = client.infer("sum", inputs, outputs=wanted)
    assert result.as_numpy("sum").tolist() == [[3, 8]]
    assert result.as_numpy("less").tolist() == [[False, True]]
    assert [each.name for each in result.get_response().outputs] == ["less", "sum"]
    assert client.infer("sum", inputs, outputs=wanted[1:]).as_numpy("less") is None


def test_bytes(client: Any) -> None:
    result = client.infer("upper", [texts("a", "é", "")])
    assert result.as_numpy("output").ravel().tolist() == [b"A", "É".encode(), b""]


def test_halves(client: Any) -> None:
    half = numpy.array([[1, 2, 3, 4]], numpy.float16)
    answer = client.infer("half", [tensor("x", half)]).as_numpy("y")
    assert answer.dtype == numpy.float16
    assert answer.tolist() == [[0.5, 1, 1.5, 2]]


def test_classification(client: Any) -> None:
    wanted = [triton.InferRequestedOutput("y", class_count=2)]
    given = tensor("x", numpy.array([[1, 4, 2, 3]], numpy.float32))
    answer = client.infer("double", [given], outputs=wanted).as_numpy("y")
    assert answer.tolist() == [[b"8.000000:1", b"6.000000:3"]]


def test_large_messages(client: Any) -> None:
    large = "a" * 8 * 2**20  # gRPC's own limit is 4 MiB
    [answer] = client.infer("upper", [texts(large)]).as_numpy("output")
    assert answer == large.upper().encode()


async def test_messages_over_the_limit_are_refused_with_it_and_the_stream_goes_on() -> None:
    import tritonclient.grpc.aio as aio

    small, large, vast = (
        [tensor("x", numpy.ones((rows, 4), numpy.float32))] for rows in (1, 300, 3000)
    )

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for inputs in (small, large, small):
            yield {"model_name": "double", "inputs": inputs}

    async with (
        serving({"double": Double(width=4)}, max_body_bytes=4096) as (server, _),
        aio.InferenceServerClient(server.address) as client,
    ):
        with pytest.raises(InferenceServerException, match="at most 4096 are allowed") as told:
            await client.infer("double", large)
        assert told.value.status() == "StatusCode.INVALID_ARGUMENT"
        with pytest.raises(InferenceServerException, match="larger than max"):
            await client.infer("double", vast)
        assert (await client.infer("double", small)).as_numpy("y").tolist() == [[2] * 4]
        answers = [each async for each in client.stream_infer(requests())]
    assert [error is None for _, error in answers] == [True, False, True]
    assert "at most 4096 are allowed" in str(answers[1][1])


def test_compression(client: Any) -> None:
    answer = client.infer("double", [tensor("x", ONES)], compression_algorithm="gzip")
    assert answer.as_numpy("y").tolist() == [[2, 2, 2, 2]]


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [
        ("double", [("x", "FP32", [1, 4], "fp32_contents", [1, 2, 3, 4])], [[2, 4, 6, 8]]),
        ("root", [("input", "FP64", [2], "fp64_contents", [4, 9])], [[2], [3]]),
        (
            "sum",
            [
                ("a", "INT8", [1, 2], "int_contents", [-128, 1]),
                ("b", "INT8", [1, 2], "int_contents", [0, 126]),
            ],
            [[-128, 127]],
        ),
    ],
)
def test_typed_contents(stub: Any, model: str, inputs: list[Any], expected: Any) -> None:
    response = stub.ModelInfer(request(model, *inputs))
    dtype = {"FP32": "f4", "FP64": "f8", "INT8": "i1"}[response.outputs[0].datatype]
    answer = numpy.frombuffer(response.raw_output_contents[0], dtype)
    assert answer.reshape(response.outputs[0].shape).tolist() == expected


def test_typed_bytes(stub: Any) -> None:
    asked = request("upper", ("input", "BYTES", [1], "bytes_contents", [b"abc"]))
    assert stub.ModelInfer(asked).raw_output_contents[0] == b"\x03\x00\x00\x00ABC"


def request(model: str, *inputs: Any, raw: tuple[bytes, ...] = (), **more: Any) -> Any:
    made = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=raw, **more)
    for name, datatype, shape, field, values in inputs:
        each = made.inputs.add(name=name, datatype=datatype, shape=shape)
        if field:
            getattr(each.contents, field).extend(values)
    return made


X = ("x", "FP32", [1, 4], "", [])


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        (request("nothing"), Code.NOT_FOUND, "no model 'nothing'"),
        (request("double", model_version="9"), Code.NOT_FOUND, "version 9"),
        (
            request("double", model_version="new"),
            Code.NOT_FOUND,
            "failed to get model version from specified version string 'new'",
        ),
        (request("double"), Code.INVALID_ARGUMENT, "'x' is missing"),
        (request("double", X), Code.INVALID_ARGUMENT, "takes 4 elements, 0 came"),
        (request("double", X, raw=(b"123",)), Code.INVALID_ARGUMENT, "takes 16 bytes, 3 came"),
        (request("double", X, raw=(b"", b"")), Code.INVALID_ARGUMENT, "takes 16 bytes, 0 came"),
        (
            request("double", X, raw=(bytes(16), b"")),
            Code.INVALID_ARGUMENT,
            "raw_input_contents has 2 entries; the inputs take 1",
        ),
        (
            request("double", X, ("z", "FP32", [1], "", []), raw=(bytes(16),)),
            Code.INVALID_ARGUMENT,
            "input 'z' is unknown",
        ),
        (request("double", X, X, raw=(bytes(16),) * 2), Code.INVALID_ARGUMENT, "given twice"),
        (
            request("double", ("x", "FP32", [1, 4], "fp32_contents", [1] * 4), raw=(bytes(16),)),
            Code.INVALID_ARGUMENT,
            "contents field must not be specified when using raw_input_contents for 'x' for model "
            "'double': send all raw or none",
        ),
        (
            request("double", ("x", "FP32", [1, 4], "fp64_contents", [1] * 4)),
            Code.INVALID_ARGUMENT,
            "sent as fp32_contents, not fp64_contents",
        ),
        (
            request("double", ("x", "FP32", [1, 3], "fp32_contents", [1] * 3)),
            Code.INVALID_ARGUMENT,
            "shape [1, 3], the model takes [rows, 4]",
        ),
        (
            request("double", ("x", "INT32", [1, 4], "int_contents", [1] * 4)),
            Code.INVALID_ARGUMENT,
            "takes FP32, not INT32",
        ),
        (
            request("double", ("x", "FP99", [1, 4], "", [])),
            Code.INVALID_ARGUMENT,
            "datatype 'FP99' is unknown",
        ),
        (
            request("double", ("x", "FP32", [-1, 4], "", []), raw=(b"",)),
            Code.INVALID_ARGUMENT,
            "negative dimension",
        ),
        (
            request("half", ("x", "FP16", [1, 4], "fp32_contents", [1] * 4)),
            Code.INVALID_ARGUMENT,
            "raw_input_contents only",
        ),
        (
            request("sum", ("a", "INT8", [1, 2], "int_contents", [128, 0])),
            Code.INVALID_ARGUMENT,
            "INT8 goes from -128 to 127",
        ),
        (
            request("upper", ("input", "BYTES", [1], "bytes_contents", [b"\xff"])),
            Code.INVALID_ARGUMENT,
            "not UTF-8",
        ),
        (
            request("double", X, raw=(bytes(16),), outputs=[{"name": "z"}]),
            Code.INVALID_ARGUMENT,
            "output 'z' is unknown",
        ),
        (
            request(
                "double", X, raw=(bytes(16),), parameters={"timeout": {"string_param": "soon"}}
            ),
            Code.INVALID_ARGUMENT,
            "'timeout' must be a whole number",
        ),
        (
            request("letters", ("input", "BYTES", [1], "bytes_contents", [b"a"])),
            Code.INVALID_ARGUMENT,
            "only streams",
        ),
        (
            request("root", ("input", "FP64", [1], "fp64_contents", [-1])),
            Code.INTERNAL,
            "a number without a root",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_mistake_is_told_with_its_code(stub: Any, asked: Any, code: Any, message: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(asked)
    assert caught.value.code() is code
    assert message in caught.value.details()


def test_unknown_models_everywhere(client: Any) -> None:
    for ask in (
        client.get_model_metadata,
        client.get_model_config,
        client.get_inference_statistics,
        lambda name: client.infer(name, []),
    ):
        with pytest.raises(InferenceServerException, match="no model 'nothing'") as caught:
            ask("nothing")
        assert caught.value.status() == "StatusCode.NOT_FOUND"


# ---- time


@contextmanager
def occupied(gate: Gate, client: Any, name: str = "gate") -> Iterator[None]:
    """Its worker is busy until the block ends."""
    told: queue.Queue[Any] = queue.Queue()
    with gate.closed():
        client.async_infer(name, [floats(1)], callback=lambda result, error: told.put(error))
        assert gate.entered.wait(WAIT_S)
        yield
    assert told.get(timeout=WAIT_S) is None


def test_a_full_queue_is_refused_with_a_time_to_come_back(
    running: Running, client: Any, stub: Any
) -> None:
    asked = request("narrow", ("input", "FP64", [1], "fp64_contents", [2]))
    with occupied(running.narrow, client, "narrow"):
        calls = [stub.ModelInfer.future(asked) for _ in range(3)]  # one has room
        told: queue.Queue[Any] = queue.Queue()
        for call in calls:
            call.add_done_callback(told.put)
        refused = [told.get(timeout=WAIT_S) for _ in range(2)]
    for call in refused:
        assert call.code() is Code.UNAVAILABLE
        assert dict(call.trailing_metadata())["retry-after"].isdigit()
    assert told.get(timeout=WAIT_S).code() is Code.OK


def test_the_calls_deadline_is_the_items(running: Running, client: Any) -> None:
    with occupied(running.gate, client):
        with pytest.raises(InferenceServerException) as caught:
            client.infer("gate", [floats(11)], client_timeout=0.1)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        client.get_server_metadata()  # that the call is over went before on the same connection
    client.infer("gate", [floats(2)])
    assert 11 not in running.gate.seen


def test_the_timeout_parameter_is_the_items_deadline(running: Running, client: Any) -> None:
    with occupied(running.gate, client):
        with pytest.raises(InferenceServerException) as caught:
            client.infer("gate", [floats(12)], timeout=50_000, priority=1)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    assert 12 not in running.gate.seen


def test_a_cancelled_call_leaves_the_queue(running: Running, client: Any) -> None:
    with occupied(running.gate, client):
        told: queue.Queue[Any] = queue.Queue()
        call = client.async_infer(
            "gate", [floats(13)], callback=lambda result, error: told.put(error)
        )
        call.cancel()
        assert told.get(timeout=WAIT_S).status() == "StatusCode.CANCELLED"
        client.get_server_metadata()  # the cancellation went before on the same connection
    client.infer("gate", [floats(2)])
    assert 13 not in running.gate.seen


# ---- streams


@contextmanager
def stream(client: Any) -> Iterator["queue.Queue[Any]"]:
    told: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: told.put(error or result.get_response()))
    try:
        yield told
    finally:
        client.stop_stream()


def test_a_stream_answers_in_order_and_survives_errors(running: Running) -> None:
    with triton.InferenceServerClient(running.url) as client, stream(client) as told:
        for n in range(20):
            value = -1 if n == 5 else n  # which fails, and nobody else
            client.async_stream_infer("root", [floats(value)], request_id=str(n))
        client.async_stream_infer("nothing", [floats(1)])
        client.async_stream_infer("double", [tensor("x", ONES)], request_id="last")
        answers = [told.get(timeout=WAIT_S) for _ in range(22)]
    for n, answer in enumerate(answers[:20]):
        assert "without a root" in str(answer) if n == 5 else answer.id == str(n)
    assert "no model 'nothing'" in str(answers[20])
    assert answers[21].id == "last"


def test_a_model_that_streams_answers_often(running: Running) -> None:
    with triton.InferenceServerClient(running.url) as client, stream(client) as told:
        client.async_stream_infer(
            "letters", [texts("abc")], request_id="1", enable_empty_final_response=True
        )
        answers = [told.get(timeout=WAIT_S) for _ in range(4)]
        client.async_stream_infer("letters", [texts("a!")], request_id="2")
        first, error = told.get(timeout=WAIT_S), told.get(timeout=WAIT_S)
        client.async_stream_infer("letters", [texts("a", "b")])
        assert "one row, not 2" in str(told.get(timeout=WAIT_S))
    assert [each.raw_output_contents[0][4:] for each in answers[:3]] == [b"a", b"b", b"c"]
    is_end = [each.parameters["triton_final_response"].bool_param for each in answers]
    assert is_end == [False, False, False, True]
    assert not answers[3].outputs
    assert first.raw_output_contents[0][4:] == b"a"
    assert "no shouting" in str(error)


def test_a_text_that_is_none_is_its_requests_error_and_the_stream_goes_on(running: Running) -> None:
    """First or later: the two are spelled in different ways."""
    with triton.InferenceServerClient(running.url) as client, stream(client) as told:
        for word in ("?", "a?", "ab?"):
            client.async_stream_infer("letters", [texts(word)])
            for letter in word[:-1]:
                answer = told.get(timeout=WAIT_S)
                assert answer.raw_output_contents[0][4:] == letter.encode()
            assert "surrogates not allowed" in str(told.get(timeout=WAIT_S))
        client.async_stream_infer("letters", [texts("b")])
        assert told.get(timeout=WAIT_S).raw_output_contents[0][4:] == b"b"


async def test_a_stream_that_is_faster_than_its_client_loses_nothing() -> None:
    """More than a window of texts, as fast as the model makes them."""
    letters = [chr(0x4E00 + n) for n in range(3_000)]

    async with (
        serving({"letters": Letters()}) as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()
        await call.write(
            request(
                "letters", ("input", "BYTES", [1], "bytes_contents", ["".join(letters).encode()])
            )
        )
        await call.done_writing()
        answers = [each async for each in call]
    told = [each.infer_response.raw_output_contents[0][4:].decode() for each in answers]
    assert told == letters


@pytest.mark.parametrize("data", [b"\xff\xff", request("root").SerializeToString()[:-1]])
def test_what_is_no_message_is_refused_and_not_logged(
    running: Running, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    service = "/inference.GRPCInferenceService"
    with grpc.insecure_channel(running.url) as channel:
        one = channel.unary_unary(f"{service}/ModelInfer")
        many = channel.stream_stream(f"{service}/ModelStreamInfer")
        for ask in (lambda: one(data), lambda: list(many(iter([data])))):
            with pytest.raises(grpc.RpcError) as caught:
                ask()
            assert caught.value.code() in (Code.INTERNAL, Code.UNKNOWN)
    assert not caplog.records


# ---- shared memory


def test_tensors_in_shared_memory(client: Any) -> None:
    from multiprocessing import shared_memory

    block = shared_memory.SharedMemory(create=True, size=64)
    try:
        block.buf[:16] = ONES.tobytes()
        client.register_system_shared_memory("r", block.name, 64)
        assert client.get_system_shared_memory_status().regions["r"].byte_size == 64
        given = triton.InferInput("x", [1, 4], "FP32")
        given.set_shared_memory("r", 16)
        wanted = triton.InferRequestedOutput("y")
        wanted.set_shared_memory("r", 16, offset=32)
        response = client.infer("double", [given], outputs=[wanted]).get_response()
        assert list(response.raw_output_contents) == [b""]
        assert numpy.frombuffer(block.buf[32:48], "f4").tolist() == [2, 2, 2, 2]
        client.unregister_system_shared_memory()
        assert not client.get_system_shared_memory_status().regions
        with pytest.raises(InferenceServerException, match="not registered"):
            client.infer("double", [given])
    finally:
        block.close()
        block.unlink()


def test_cuda_memory_is_not_there(stub: Any) -> None:
    assert not stub.CudaSharedMemoryStatus(service_pb2.CudaSharedMemoryStatusRequest()).regions
    stub.CudaSharedMemoryUnregister(service_pb2.CudaSharedMemoryUnregisterRequest())
    with pytest.raises(grpc.RpcError) as caught:
        stub.CudaSharedMemoryRegister(service_pb2.CudaSharedMemoryRegisterRequest(name="c"))
    assert caught.value.code() is Code.UNIMPLEMENTED


# ---- as Triton's image clients read it


def test_the_configuration_names_the_axes_of_images_and_the_workers(running: Running) -> None:
    with triton.InferenceServerClient(running.url) as client:
        config = client.get_model_config("double").config
    assert [each.format for each in config.input] == [model_config_pb2.ModelInput.FORMAT_NONE]
    [group] = config.instance_group
    assert (group.kind, group.count) == (model_config_pb2.ModelInstanceGroup.KIND_CPU, 1)


# ---- health and reflection


def test_health_and_reflection(running: Running) -> None:
    with grpc.insecure_channel(running.url) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        for service in ("", "inference.GRPCInferenceService", "double"):
            found = check(health_pb2.HealthCheckRequest(service=service))
            assert found.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            check(health_pb2.HealthCheckRequest(service="nothing"))
        assert caught.value.code() is Code.NOT_FOUND
        names = reflected(channel, "v1", list_services="").list_services_response.service
        assert {each.name for each in names} == {
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
            "inference.GRPCInferenceService",
        }
        for each in names:
            for version in ("v1", "v1alpha"):
                found = reflected(channel, version, file_containing_symbol=each.name)
                [file] = found.file_descriptor_response.file_descriptor_proto
                assert each.name.rpartition(".")[0].encode() in file


def reflected(channel: Any, version: str, **asked: str) -> Any:
    """Both versions have the same messages."""
    ask = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    [answer] = ask(iter([reflection_pb2.ServerReflectionRequest(**asked)]))
    return answer


# ---- beside HTTP


def test_serve_listens_for_both_and_stops_both(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import headway\n"
        "class Upper(headway.Model[str, str]):\n"
        "    def predict(self, items: list[str]) -> list[str]:\n"
        "        return [item.upper() for item in items]\n"
    )
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "headway", "serve", "app:Upper"),
            *("--port=0", "--grpc-port=0"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            said = (re.search(r"gRPC +(\S+)", line) for line in process.stdout)
            address = next(each[1] for each in said if each)
            with triton.InferenceServerClient(address) as client:
                answer = client.infer("upper", [texts("abc")]).as_numpy("output")
            assert answer.tolist() == [[b"ABC"]]
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
            assert process.wait(10) == 0


def _uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hpack", None)
    ours = ("headway.server.grpc.", "headway.wire.http2.")
    for name in [each for each in sys.modules if each.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)


def test_without_the_extra_there_is_http_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _uninstall(monkeypatch)
    assert make_grpc(Registry(), ServerConfig()) is None
    assert "pip install 'headway[grpc]'" in caplog.text


@pytest.mark.parametrize("port", [0, 24602])
def test_a_port_that_was_asked_for_needs_the_extra(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    _uninstall(monkeypatch)
    with pytest.raises(ConfigError, match=r"^grpc_port: .* pip install 'headway\[grpc\]'$"):
        make_grpc(Registry(), ServerConfig(grpc_port=port))


def test_a_port_that_was_typed_needs_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it is the default."""
    _uninstall(monkeypatch)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["serve", "nobody:Nothing", "--port", "0", "--grpc-port", "8001"]) != 0
    said = capsys.readouterr().err.strip()
    assert "pip install 'headway[grpc]'" in said
    assert len(said.splitlines()) == 1


def test_no_port_no_grpc() -> None:
    assert make_grpc(Registry(), ServerConfig(grpc_port=-1)) is None


# ---- the other client, and stopping


async def test_the_async_client() -> None:
    import tritonclient.grpc.aio as aio

    async with (
        serving({"double": Double(4), "letters": Letters()}) as (server, _),
        aio.InferenceServerClient(server.address) as client,
    ):
        answers = await asyncio.gather(
            *(client.infer("double", [tensor("x", ONES * n)]) for n in range(50))
        )
        assert [each.as_numpy("y")[0, 0] for each in answers] == [2 * n for n in range(50)]

        async def asked() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": "letters", "inputs": [texts("ab")]}

        found = [each async for each in client.stream_infer(asked())]
        assert [each.as_numpy("output")[0] for each, _ in found] == [b"a", b"b"]


@asynccontextmanager
async def connected(gate: Gate, **settings: Any) -> AsyncIterator[tuple[GrpcServer, Any]]:
    async with (
        serving({"gate": (gate, {"max_batch_size": 1})}, **settings) as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        yield server, channel


async def test_stopping_answers_what_has_begun_and_no_idle_stream_delays_it() -> None:
    gate = Gate()
    async with connected(gate, drain_s=3600.0) as (server, channel):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        idle = stub.ModelStreamInfer()
        await idle.write(request("nothing"))
        assert "no model" in (await idle.read()).error_message
        one = request("gate", ("input", "FP64", [1], "fp64_contents", [5]))
        with gate.closed():
            begun = asyncio.ensure_future(stub.ModelInfer(one))
            await asyncio.to_thread(gate.entered.wait, WAIT_S)
            stopping = asyncio.create_task(server.stop())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError, match="the server stops") as caught:
                await idle.read()
            assert caught.value.code() is Code.UNAVAILABLE
        assert (await begun).raw_output_contents
        await asyncio.wait_for(stopping, WAIT_S)  # and not an hour
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(one, timeout=1.0)
        assert caught.value.code() is Code.UNAVAILABLE


async def test_a_stream_that_is_cancelled_withdraws_what_it_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate()
    async with connected(gate) as (_, channel):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stream = stub.ModelStreamInfer()
        with gate.closed():
            for n in range(5):
                await stream.write(request("gate", ("input", "FP64", [1], "fp64_contents", [n])))
            await asyncio.to_thread(gate.entered.wait, WAIT_S)
            stream.cancel()
            await stub.ServerLive(service_pb2.ServerLiveRequest())  # seen by now
        last = request("gate", ("input", "FP64", [1], "fp64_contents", [9]))
        assert (await stub.ModelInfer(last)).raw_output_contents
    assert gate.seen == [0, 9]
    assert not caplog.records


async def test_stopping_gives_up_at_its_deadline() -> None:
    gate = Gate()
    async with connected(gate, drain_s=0.1) as (server, channel):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with gate.closed():
            begun = asyncio.ensure_future(
                stub.ModelInfer(request("gate", ("input", "FP64", [1], "fp64_contents", [5])))
            )
            await asyncio.to_thread(gate.entered.wait, WAIT_S)
            await server.stop()
            with pytest.raises(grpc.aio.AioRpcError):
                await begun


async def test_a_port_that_is_taken_fails_the_start() -> None:
    async with serving({"double": Double(4)}) as (server, registry):
        other = GrpcServer(registry, ServerConfig(grpc_port=server.port))
        with pytest.raises(
            ConfigError, match=r"cannot listen on .* (in use; --grpc-port chooses|Failed to bind)"
        ):
            await other.start()


async def test_a_closed_model_is_unavailable_and_health_says_so() -> None:
    async with serving({"double": Double(4)}) as (server, registry):
        await registry.get("double").close()  # type: ignore[attr-defined]
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match="not ready") as caught:
                await stub.ModelInfer(request("double", X, raw=(bytes(16),)))
            assert caught.value.code() is Code.UNAVAILABLE
            check = health_pb2_grpc.HealthStub(channel).Check
            found = await check(health_pb2.HealthCheckRequest())
            assert found.status == health_pb2.HealthCheckResponse.NOT_SERVING
