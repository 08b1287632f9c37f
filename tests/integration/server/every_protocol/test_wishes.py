"""What callers may ask for beside their answer, on every front end: parameters for the model, a
tenant, and an explanation. Real servers on free ports, real clients."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple

import numpy
import pytest
from http_client import Client, Reply
from small_server import count, hosted

import headway
from headway import Tensor
from headway.config import ServerConfig
from headway.hosting.registry import Ask, Registry
from headway.server.grpc.server import GrpcServer
from headway.server.run import make_app, make_grpc
from headway.wire.http1.server import HttpServer

grpc = pytest.importorskip("grpc")
triton = pytest.importorskip("tritonclient.grpc.aio")
from tritonclient.grpc import service_pb2, service_pb2_grpc  # noqa: E402 - once we know it is there
from tritonclient.utils import InferenceServerException  # noqa: E402

pytestmark = pytest.mark.real_time
WAIT_S = 5.0
STORY = re.compile(
    r"size=(\d+), reason=([a-z]+), queued=\d+\.\d{3}, lingered=\d+\.\d{3}, ran=\d+\.\d{3}, "
    r"padding=\d\.\d{3}(?:, batches=(\d+))?"
)


class Repeat(headway.Model[str, str]):
    """Says it `times` times, as loud as its whole batch is."""

    batch_parameters: ClassVar = ["loud"]

    def prepare(self, raw: str, *, times: int = 1) -> str:
        return raw * times

    def predict(self, items: list[str], *, loud: bool = False) -> list[str]:
        return [item.upper() if loud else item for item in items]


class Scale(headway.TensorModel):
    inputs: ClassVar = [Tensor("x", "float32", (-1, 2))]
    outputs: ClassVar = [Tensor("y", "float32", (-1, 2))]
    batch_parameters: ClassVar = ["factor"]

    def predict(self, batch: dict[str, Any], *, factor: float = 2.0) -> dict[str, Any]:
        return {"y": batch["x"] * factor}


class Letters(headway.Model[str, str]):
    batch_parameters: ClassVar = ["loud"]

    def stream(self, items: list[str], *, loud: bool = False) -> Iterator[list[Any]]:
        for step in range(max(map(len, items)) + 1):
            yield [
                (item[step].upper() if loud else item[step]) if step < len(item) else headway.END
                for item in items
            ]


class Lengths(headway.Model[str, Any]):
    """Embeds, after a fashion."""

    outputs: ClassVar = [Tensor("vector", "float32", (-1, 2))]

    def predict(self, items: list[str]) -> list[Any]:
        return [numpy.array([len(item), 1.0], numpy.float32) for item in items]


class Gate(headway.Model[float, float]):
    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.seen: list[float] = []

    def predict(self, items: list[float]) -> list[float]:
        self.seen += items
        self.entered.set()
        assert self.opened.wait(WAIT_S), "nobody opened the gate"
        return items


class Servers(NamedTuple):
    http: HttpServer
    grpc: GrpcServer
    registry: Registry

    async def post(self, path: str, body: Any, headers: str = "") -> Reply:
        async with Client.to(self.http) as client:
            return await client.post(path, json.dumps(body).encode(), headers)


@asynccontextmanager
async def serving(models: dict[str, Any], **settings: Any) -> AsyncIterator[Servers]:
    server = ServerConfig(port=0, grpc_port=0, drain_s=1.0)
    given = {name: (model, settings) for name, model in models.items()}
    async with hosted(given, count) as registry:
        over_grpc = make_grpc(registry, server)
        assert over_grpc is not None
        async with HttpServer(make_app(registry, server), server) as http, over_grpc:
            yield Servers(http, over_grpc, registry)


def texts(*rows: str, **parameters: Any) -> dict[str, Any]:
    tensor = {"name": "input", "datatype": "BYTES", "shape": [len(rows)], "data": list(rows)}
    return {"inputs": [tensor], "parameters": parameters}


def numbers(rows: int, **parameters: Any) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 2], "data": [1.0] * (2 * rows)}
    return {"inputs": [tensor], "parameters": parameters}


def data_of(reply: Reply) -> Any:
    assert reply.status == 200, reply.body
    return json.loads(reply.body)["outputs"][0]["data"]


def grpc_texts(*rows: str) -> Any:
    tensor = triton.InferInput("input", [len(rows)], "BYTES")
    tensor.set_data_from_numpy(numpy.array([row.encode() for row in rows], object))
    return [tensor]


# ---- parameters


async def test_parameters_reach_the_model_over_v2() -> None:
    async with serving({"m": Repeat(), "scale": Scale()}) as servers:
        answers = await asyncio.gather(
            servers.post("/v2/models/m/infer", texts("ab", times=2)),
            servers.post("/v2/models/m/infer", texts("ab", loud=True)),
            servers.post("/v2/models/m/infer", texts("ab", "c", loud=True, times="3")),
            servers.post("/v2/models/m/infer", texts("ab", colour=None, times=None)),
        )
        assert [data_of(each) for each in answers] == [
            ["abab"],
            ["AB"],
            ["ABABAB", "CCC"],
            ["ab"],
        ]
        scaled = await servers.post("/v2/models/scale/infer", numbers(1, factor=3))
        assert data_of(scaled) == [3.0, 3.0]


async def test_parameters_of_the_wrong_kind_are_refused_by_name() -> None:
    async with serving({"m": Repeat(), "scale": Scale()}) as servers:
        reply = await servers.post("/v2/models/m/infer", texts("ab", times="many"))
        assert (reply.status, b"parameter 'times'" in reply.body) == (400, True)
        reply = await servers.post("/v2/models/scale/infer", numbers(1, factor="large"))
        assert (reply.status, b"parameter 'factor'" in reply.body) == (400, True)
        reply = await servers.post("/v2/models/m/infer", texts("ab", tenant=3))
        assert (reply.status, b"parameter 'tenant'" in reply.body) == (400, True)


async def test_parameters_stand_in_the_query_of_the_plain_route() -> None:
    async with serving({"m": Repeat(), "scale": Scale()}) as servers:
        reply = await servers.post("/v1/predict/m?times=2&loud=true", "ab")
        assert json.loads(reply.body) == "ABAB"
        reply = await servers.post("/v1/predict/m?loud=1", {"items": ["ab", "cd"]})
        assert json.loads(reply.body) == {"results": ["AB", "CD"]}
        reply = await servers.post("/v1/predict/scale?factor=0.5", [1.0, 2.0])
        assert json.loads(reply.body) == [0.5, 1.0]
        reply = await servers.post("/v1/predict/m?times=x", "ab")
        assert reply.status == 400


async def test_parameters_reach_the_model_over_grpc_and_generate() -> None:
    async with serving({"m": Repeat(), "letters": Letters()}) as servers:
        async with triton.InferenceServerClient(servers.grpc.address) as client:
            answer = await client.infer(
                "m", grpc_texts("ab"), parameters={"times": 2, "loud": True}
            )
            assert answer.as_numpy("output").ravel().tolist() == [b"ABAB"]
            with pytest.raises(InferenceServerException, match="parameter 'times'"):
                await client.infer("m", grpc_texts("ab"), parameters={"times": "x"})
        body = {"text_input": "ab", "parameters": {"times": 2}}
        reply = await servers.post("/v2/models/m/generate", body)
        assert json.loads(reply.body)["text_output"] == "abab"
        body = {"text_input": "ab", "parameters": {"loud": True}}
        reply = await servers.post("/v2/models/letters/generate", body)
        assert json.loads(reply.body)["text_output"] == "AB"


# ---- tenants


async def test_a_tenant_may_be_a_parameter_and_goes_before_the_header() -> None:
    """A worker is busy and one tenant has queued a lot: the other's item does not wait for all."""
    gate = Gate()
    async with serving({"gate": gate}, max_batch_size=1) as servers:
        tensor = {"name": "input", "datatype": "FP64", "shape": [1]}

        def ask(value: float, **parameters: Any) -> asyncio.Task[Reply]:
            body = {"inputs": [{**tensor, "data": [value]}], "parameters": parameters}
            header = "Headway-Tenant: busy\r\n"
            return asyncio.create_task(servers.post("/v2/models/gate/infer", body, header))

        statistics = servers.registry.get("gate").batcher.statistics  # type: ignore[attr-defined]

        async def wait_queued(count: int) -> None:
            async with asyncio.timeout(WAIT_S):
                while statistics().queued_items < count:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0)

        asked = [ask(0.0)]
        assert await asyncio.to_thread(gate.entered.wait, WAIT_S)
        for value in (1, 2, 3):
            asked.append(ask(value))
            await wait_queued(value)
        asked.append(ask(9.0, tenant="quiet"))
        await wait_queued(4)
        gate.opened.set()
        assert [reply.status for reply in await asyncio.gather(*asked)] == [200] * 5
    assert gate.seen.index(9.0) < gate.seen.index(3.0)


# ---- explanations


async def test_an_explanation_comes_only_where_it_is_asked_for() -> None:
    models = {"m": Repeat(), "scale": Scale(), "vectors": Lengths()}
    async with serving(models) as servers:
        asked = [
            ("/v2/models/m/infer", texts("ab")),
            ("/v2/models/scale/infer", numbers(3)),
            ("/v2/models/m/generate", {"text_input": "ab"}),
            ("/v1/predict/m", "ab"),
            ("/v1/predict/scale", [1.0, 2.0]),
            ("/v1/embeddings", {"model": "vectors", "input": ["a", "b"]}),
        ]
        for path, body in asked:
            for header in ("", "Headway-Explain: 0\r\n"):
                reply = await servers.post(path, body, header)
                assert (reply.status, "headway-batch" in reply.headers) == (200, False)
            reply = await servers.post(path, body, "Headway-Explain: 1\r\n")
            assert reply.status == 200
            found = STORY.fullmatch(reply.headers["headway-batch"])
            assert found, (path, reply.headers)


async def test_an_explanation_says_how_many_were_there_and_in_how_many_batches() -> None:
    async with serving({"m": Repeat(), "scale": Scale()}, max_batch_size=4) as servers:
        explain = "Headway-Explain: 1\r\n"
        reply = await servers.post("/v2/models/scale/infer", numbers(3), explain)
        found = STORY.fullmatch(reply.headers["headway-batch"])
        assert found is not None
        assert (found[1], found[3]) == ("3", None)
        reply = await servers.post("/v2/models/scale/infer", numbers(10), explain)
        found = STORY.fullmatch(reply.headers["headway-batch"])
        assert found is not None
        assert found[3] == "3"
        rows = texts(*"abcdefghij")
        reply = await servers.post("/v2/models/m/infer", rows, explain)
        found = STORY.fullmatch(reply.headers["headway-batch"])
        assert found is not None
        assert int(found[3]) >= 3


async def test_binary_answers_keep_their_header_beside_the_explanation() -> None:
    async with serving({"scale": Scale()}) as servers:
        body = numbers(1, binary_data_output=True)
        reply = await servers.post("/v2/models/scale/infer", body, "Headway-Explain: 1\r\n")
        assert "headway-batch" in reply.headers
        assert int(reply.headers["inference-header-content-length"]) == len(reply.body) - 8


async def test_an_error_has_no_explanation() -> None:
    async with serving({"m": Repeat()}) as servers:
        explain = "Headway-Explain: 1\r\n"
        reply = await servers.post("/v2/models/m/infer", texts("a", times="x"), explain)
        assert (reply.status, "headway-batch" in reply.headers) == (400, False)


async def test_an_explanation_is_metadata_on_grpc_and_a_parameter_in_a_stream() -> None:
    async with (
        serving({"m": Repeat()}) as servers,
        grpc.aio.insecure_channel(servers.grpc.address) as channel,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="m")
        request.inputs.add(name="input", datatype="BYTES", shape=[1])
        request.inputs[0].contents.bytes_contents.append(b"ab")
        call = stub.ModelInfer(request)
        await call
        assert "headway-batch" not in dict(await call.trailing_metadata())
        metadata = (("headway-explain", "1"),)
        call = stub.ModelInfer(request, metadata=metadata)
        await call
        assert STORY.fullmatch(dict(await call.trailing_metadata())["headway-batch"])

        stream = stub.ModelStreamInfer(iter([request, request]), metadata=metadata)
        answers = [answer async for answer in stream]
        assert len(answers) == 2
        for answer in answers:
            story = answer.infer_response.parameters["headway_batch"].string_param
            assert STORY.fullmatch(story)


# ---- figures


async def test_streams_are_counted_and_so_are_those_that_break_off() -> None:
    async with serving({"letters": Letters()}) as servers:
        await servers.post("/v2/models/letters/generate", {"text_input": "abc"})
        await servers.post("/v2/models/letters/generate_stream", {"text_input": "abc"})
        served = servers.registry.get("letters")
        chunks = served.stream("abc", Ask())
        assert await anext(chunks) == "a"
        await chunks.aclose()  # type: ignore[attr-defined]
        async with Client.to(servers.http) as client:
            figures = json.loads((await client.get("/v2/models/letters/stats")).body)
        stats = figures["model_stats"][0]["inference_stats"]
        assert (stats["success"]["count"], stats["fail"]["count"]) == (2, 1)
