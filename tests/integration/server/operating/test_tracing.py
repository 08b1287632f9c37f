"""Spans of a real server over HTTP and gRPC, and of batchers in one's own process, as the SDK's
in-memory exporter sees them."""

import asyncio
import http.server
import itertools
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy
import pytest
from real_server import served
from served_models import Double, Gate, Gatekeeper, Letters, Root
from small_server import hosted

import headway
from handler_server import handled_by
from headway.cli.main import main
from headway.config import ServerConfig
from headway.server.observing import Observing
from headway.server.run import make_app, make_grpc
from headway.wire.http1.server import HttpServer

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
    InMemorySpanExporter,
)
from opentelemetry.trace import StatusCode

from headway.observe.tracing import Tracing

pytestmark = pytest.mark.real_time
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"
ROW = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16}


class Exported(SpanProcessor):
    """Spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._ended = asyncio.Event()
        self.provider = TracerProvider(sampler=sampling.DEFAULT_ON)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.provider.add_span_processor(self)

    def on_end(self, span: ReadableSpan) -> None:
        self._ended.set()

    def named(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.all() if each.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    async def wait(self, name: str, count: int) -> list[ReadableSpan]:
        """Of a call that is refused, the span ends just after its caller is told."""
        async with asyncio.timeout(5):
            while len(self.named(name)) < count:
                self._ended.clear()
                await self._ended.wait()
        return self.named(name)


class Running(NamedTuple):
    http: httpx.AsyncClient
    grpc: str
    spans: Exported


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Running]:
    spans = Exported()
    config = ServerConfig(port=0, grpc_port=0, **settings)
    observing = Observing(config, tracing=Tracing(spans.provider))
    models = {
        "double": Double(),
        "root": Root(),
        "letters": Letters(),
        "gate": Gate(),
        "gatekeeper": Gatekeeper(),
    }
    async with hosted(models, observing.watch) as registry:
        app = make_app(registry, config, observing=observing)
        app = observing.around(app)
        grpc = make_grpc(registry, config, observing=observing)
        assert grpc is not None
        async with (
            HttpServer(app, config) as server,
            grpc,
            httpx.AsyncClient(base_url=server.url, timeout=10) as client,
        ):
            yield Running(client, grpc.address, spans)


def context_of(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links_of(span: ReadableSpan) -> set[tuple[int, int]]:
    return {(each.context.trace_id, each.context.span_id) for each in span.links}


async def test_a_request_over_http_is_a_trace_from_its_caller_to_the_model() -> None:
    async with serving() as running:
        answer = await running.http.post(
            "/v2/models/double/infer",
            json={"inputs": [ROW]},
            headers={"traceparent": PARENT, "X-Request-Id": "mine"},
        )
        assert answer.status_code == 200
        request = running.spans.one("POST /v2/models/{model}/infer")
        queue, batch, execute = (running.spans.one(n) for n in ("queue", "batch", "execute"))
    assert parent_of(request) == (int(TRACE, 16), int("b7ad6b7169203331", 16))
    assert parent_of(queue) == parent_of(batch) == context_of(request)
    assert parent_of(execute) == context_of(batch)
    assert links_of(queue) == links_of(request) == {context_of(batch)}
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["headway.request_id"] == "mine"
    assert request.attributes["headway.model"] == "double"
    assert batch.attributes is not None
    assert batch.attributes["headway.batch.rows"] == 1
    assert request.attributes["headway.batch.id"] == batch.attributes["headway.batch.id"]
    _, trace_id, span_id, flags = answer.headers["traceparent"].split("-")
    assert (int(trace_id, 16), int(span_id, 16)) == context_of(request)
    assert flags == "01"


async def test_the_parts_of_a_trace_follow_each_other_in_time() -> None:
    async with serving() as running:
        await running.http.post("/v1/predict/root", json=4.0)
        request = running.spans.one("POST /v1/predict/{model}")
        queue, batch, execute = (running.spans.one(n) for n in ("queue", "batch", "execute"))
    slack_ns = 1_000_000  # two clocks were read
    moments: list[Any] = [
        request.start_time,
        queue.start_time,
        queue.end_time,
        execute.start_time,
        execute.end_time,
        request.end_time,
    ]
    for earlier, later in itertools.pairwise(moments):
        assert earlier <= later + slack_ns
    assert batch.start_time == queue.end_time
    assert batch.end_time == execute.end_time


async def test_a_call_over_grpc_is_a_trace_too() -> None:
    triton = pytest.importorskip("tritonclient.grpc.aio")
    async with serving() as running:
        async with triton.InferenceServerClient(running.grpc) as client:
            tensor = triton.InferInput("x", [1, 16], "FP32")
            tensor.set_data_from_numpy(numpy.ones((1, 16), numpy.float32))
            await client.infer("double", [tensor], headers={"traceparent": PARENT})
            with pytest.raises(Exception, match="no model"):
                await client.infer("absent", [tensor])
        name = "inference.GRPCInferenceService/ModelInfer"
        good, bad = await running.spans.wait(name, 2)
        batch = running.spans.one("batch")
    assert parent_of(good) == (int(TRACE, 16), int("b7ad6b7169203331", 16))
    assert links_of(good) == {context_of(batch)}
    assert good.attributes is not None
    assert bad.attributes is not None
    assert good.attributes["rpc.grpc.status_code"] == 0
    assert bad.attributes["rpc.grpc.status_code"] == 5
    assert bad.status.status_code is StatusCode.UNSET  # the caller's mistake, not ours


async def test_grpc_tells_its_caller_where_the_span_is() -> None:
    grpc = pytest.importorskip("grpc")
    async with serving() as running:
        async with grpc.aio.insecure_channel(running.grpc) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(
                b"", metadata=(("traceparent", PARENT),)
            )
            told = dict(await call.initial_metadata())
            await call
        span = running.spans.one("inference.GRPCInferenceService/ServerLive")
    assert told["traceparent"] == f"00-{TRACE}-{context_of(span)[1]:016x}-01"


async def test_requests_of_one_batch_link_to_the_one_span_it_has() -> None:
    async with serving() as running:
        items = {"items": [1.0, 4.0, 9.0]}
        await running.http.post("/v1/predict/gatekeeper", json="close")
        first = asyncio.create_task(running.http.post("/v1/predict/gate", json=0.0))
        await running.http.post("/v1/predict/gatekeeper", json="wait")
        others = [
            asyncio.create_task(running.http.post("/v1/predict/gate", json=items)) for _ in range(2)
        ]
        async with asyncio.timeout(5):
            while (
                'headway_queue_rows{model="gate",version="1"} 6'
                not in (await running.http.get("/metrics")).text
            ):
                pass
        await running.http.post("/v1/predict/gatekeeper", json="open")
        for answer in await asyncio.gather(first, *others):
            assert answer.status_code == 200
        _, shared = _of_gate(running.spans, "batch")
        requests = [
            span
            for span in _of_gate(running.spans, "POST /v1/predict/{model}")
            if context_of(shared) in links_of(span)
        ]
    assert len(requests) == 2
    assert shared.attributes is not None
    assert shared.attributes["headway.batch.items"] == 6
    assert parent_of(shared) in {context_of(span) for span in requests}
    assert links_of(shared) <= {context_of(span) for span in requests}


def _of_gate(spans: Exported, name: str) -> list[ReadableSpan]:
    return [
        span for span in spans.named(name) if (span.attributes or {}).get("headway.model") == "gate"
    ]


async def test_what_the_caller_does_not_record_is_not_recorded_here() -> None:
    async with serving() as running:
        answer = await running.http.post(
            "/v1/predict/root", json=4.0, headers={"traceparent": UNSAMPLED}
        )
        assert answer.headers["traceparent"].endswith("-00")
        await running.http.get("/v2/health/live")
        assert [span.name for span in running.spans.all()] == ["GET /v2/health/live"]


async def test_a_models_failure_marks_the_span() -> None:
    async with serving() as running:
        await running.http.post("/v1/predict/root", json=-4.0)
        span = running.spans.one("POST /v1/predict/{model}")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "model_failed"


async def test_a_stream_is_one_span_until_its_end() -> None:
    async with serving() as running:
        path = "/v2/models/letters/generate_stream"
        await running.http.post(path, json={"text_input": "abc"})
        # The last chunk may be read before its batch is over.
        [span] = await running.spans.wait("POST /v2/models/{model}/generate_stream", 1)
        [batch] = await running.spans.wait("batch", 1)
        assert links_of(span) == {context_of(batch)}


async def test_an_unknown_path_makes_no_name_of_a_span() -> None:
    async with serving() as running:
        await running.http.get("/nowhere/at/all")
        span = running.spans.one("GET")
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 404


async def test_batchers_in_ones_own_process_join_the_current_span() -> None:
    spans = Exported()

    @headway.batched
    async def double(values: list[int]) -> list[int]:
        return [2 * value for value in values]

    Tracing(spans.provider).follow(double.batcher)
    with spans.provider.get_tracer("app").start_as_current_span("mine") as mine:
        assert await double.many([1, 2]) == [2, 4]
    assert await double(3) == 6  # outside: no span
    await double.close()
    assert len(spans.named("queue")) == 2
    assert {parent_of(span) for span in (*spans.named("queue"), spans.one("batch"))} == {
        (mine.get_span_context().trace_id, mine.get_span_context().span_id)
    }


# ---- `headway serve --tracing`


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "headway.observe.tracing", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["serve", "served_models:Root", "--port", "0", "--tracing"]) == 2
    assert "pip install 'headway[otel]'" in capsys.readouterr().err


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes], threading.Event]]:
    """Takes what is exported over OTLP/HTTP."""
    bodies: list[bytes] = []
    came = threading.Event()

    class Take(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            came.set()

    with handled_by(Take) as url:
        yield url, bodies, came


def test_spans_are_exported_to_where_the_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with collector() as (url, bodies, came):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        with served(
            tmp_path, "served_models:Root", "--port", "0", "--grpc-port", "-1", "--tracing"
        ) as server:
            assert server.http.post("/v1/predict/root", json=4.0).status_code == 200
        assert came.wait(5)  # at the latest when it stops
    sent = b"".join(bodies)
    for part in (b"headway", b"POST /v1/predict/{model}", b"queue", b"batch", b"execute"):
        assert part in sent


def test_who_opts_in_gets_histograms_by_the_conventions_for_generative_ai(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with collector() as (url, bodies, came):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
        with served(
            tmp_path, "served_models:Root", "--port", "0", "--grpc-port", "-1", "--tracing"
        ) as server:
            asked = {"model": "absent", "input": "hello"}
            assert server.http.post("/v1/embeddings", json=asked).status_code == 404
        assert came.wait(5)
    sent = b"".join(bodies)
    for part in (b"gen_ai.server.request.duration", b"gen_ai.operation.name", b"embeddings"):
        assert part in sent
    assert b"gen_ai.request.model" not in sent  # a caller's word makes no series
