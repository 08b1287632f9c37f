"""OpenTelemetry's conventions for generative AI, of a language model behind its server. They need
`opentelemetry-sdk`, which `headway[otel]` brings."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from serving import MOST_S, serving

pytest.importorskip("opentelemetry.sdk.metrics")
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headway.observe.genai import GenAI
from headway.observe.tracing import Tracing

pytestmark = pytest.mark.real_time
ASKED = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 6,
    "ignore_eos": True,
}


class Traced(NamedTuple):
    http: httpx.Client
    spans: InMemorySpanExporter
    reader: InMemoryMetricReader

    def ask(self, **more: Any) -> tuple[httpx.Response, dict[str, Any]]:
        """An answer and what its span says, which may end a moment after it."""
        self.spans.clear()
        answer = self.http.post("/v1/chat/completions", json={**ASKED, **more})
        until = time.monotonic() + MOST_S
        while not (ended := self.spans.get_finished_spans()) and time.monotonic() < until:
            time.sleep(0.01)
        return answer, dict(ended[0].attributes or {})


@pytest.fixture(scope="module")
def traced(folder: Path) -> Iterator[Traced]:
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    tracing = Tracing(provider, genai=GenAI(MeterProvider([reader])))
    with (
        serving(folder, tracing=tracing) as served,
        httpx.Client(base_url=served.url, timeout=MOST_S) as client,
    ):
        yield Traced(client, spans, reader)


@pytest.mark.parametrize("stream", [False, True])
def test_a_span_has_the_usage_that_its_answer_has(traced: Traced, stream: bool) -> None:
    answer, told = traced.ask(n=2)
    usage = answer.json()["usage"]
    if stream:
        answer, told = traced.ask(n=2, stream=True)
        assert answer.text.rstrip().endswith("[DONE]")
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == "tiny"
    assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 12
    assert told["gen_ai.response.finish_reasons"] == ("length", "length")
    assert told.get("gen_ai.request.stream", False) is stream


def test_the_three_histograms_count_requests_and_answers(traced: Traced) -> None:
    traced.http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 0.5})
    traced.http.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": ["a", "b"], "max_tokens": 4, "ignore_eos": True},
    )
    until = time.monotonic() + MOST_S
    while "gen_ai.server.time_per_output_token" not in counted(traced) and time.monotonic() < until:
        time.sleep(0.01)  # an answer is counted a moment after its caller has it
    assert counted(traced) == {
        "gen_ai.server.request.duration": 1,
        "gen_ai.server.request.duration failed": 1,
        "gen_ai.server.time_to_first_token": 1,
        "gen_ai.server.time_per_output_token": 2,
    }


def counted(traced: Traced) -> dict[str, int]:
    """Of completions: how often each histogram was written."""
    data = traced.reader.get_metrics_data()
    assert data is not None
    counts: dict[str, int] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            about = dict(point.attributes or {})
            if about["gen_ai.operation.name"] == "text_completion":
                name = f"{metric.name}{' failed' if 'error.type' in about else ''}"
                counts[name] = point.count
    return counts
