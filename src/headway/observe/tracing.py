"""OpenTelemetry spans: request → queue, and the batch → execute that several requests share.

A batch belongs to several traces and can only be in one: it is a child of its oldest traced
request, and every other one's span links to it. Only what a sampler records is followed. Off, no
line of this runs.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headway.core.items import Item
from headway.errors import ConfigError
from headway.observe.following import Following
from headway.runtime.events import BatchFinished, BatchStarted, ObservedBatcher

try:
    from opentelemetry import context, propagate, trace
except ImportError as error:
    raise ConfigError(
        f"{error}; to have traces: pip install 'headway[otel]'", field="tracing"
    ) from error

if TYPE_CHECKING:
    from headway.observe.genai import GenAI

SERVER = trace.SpanKind.SERVER


class Tracing:
    """Makes the spans. `provider`: OpenTelemetry's own, unless one is given. `genai`: also keeps to
    the conventions for generative AI."""

    def __init__(self, provider: Any = None, *, genai: "GenAI | None" = None) -> None:
        self.genai = genai
        self._tracer = trace.get_tracer("headway", tracer_provider=provider)

    def follow(self, batcher: ObservedBatcher) -> None:
        """Make every call of this batcher from within a span a part of its trace."""
        Following(_current_span, self._finished, self._started).follow(batcher)

    # ---- requests

    def start_request(
        self, name: str, carrier: Mapping[str, str], attributes: Mapping[str, Any]
    ) -> Any:
        """A span for a request that came over the wire, in the trace that its headers name. It is
        the current one from here on in this task; `end_request` ends it."""
        parent = propagate.extract(carrier, context=context.Context())
        span = self._tracer.start_span(
            name, context=parent, kind=SERVER, attributes=dict(attributes)
        )
        context.attach(trace.set_span_in_context(span, parent))
        return span

    def end_request(self, span: Any, *, error: str = "", **attributes: Any) -> None:
        """`error`: the code of an error on our side."""
        for name, value in attributes.items():
            span.set_attribute(name.replace("__", "."), value)
        if error:
            span.set_status(trace.Status(trace.StatusCode.ERROR, error))
        span.end()

    # ---- batches

    def _started(self, event: BatchStarted, requests: list[tuple[Item, Any]]) -> Any:
        """The span of the batch. Made before any request's span can end: an ended span takes no
        link."""
        batch = event.batch
        at = _wall_clock()
        oldest = trace.set_span_in_context(requests[0][1], context.Context())
        span = self._tracer.start_span(
            "batch",
            context=oldest,
            start_time=at(batch.fired_at),
            links=[trace.Link(each.get_span_context()) for _, each in requests[1:]],
        )
        link = trace.Link(span.get_span_context())
        for item, request in requests:
            waited = self._tracer.start_span(
                "queue",
                context=trace.set_span_in_context(request, context.Context()),
                start_time=at(item.arrived_at),
                links=[link],
                attributes={
                    "headway.queued_ms": batch.queued_s(item) * 1e3,
                    "headway.lingered_ms": batch.lingered_s(item) * 1e3,
                },
            )
            waited.end(at(batch.fired_at))
            request.set_attribute("headway.model", event.model)
            request.set_attribute("headway.batch.id", batch.id)
            request.add_link(link.context)
        return span

    def _finished(self, event: BatchFinished, requests: list[tuple[Item, Any]], span: Any) -> None:
        batch = event.batch
        at = _wall_clock()
        span.set_attributes(
            {
                "headway.model": event.model,
                "headway.batch.id": batch.id,
                "headway.batch.items": len(batch.items),
                "headway.batch.rows": batch.rows,
                "headway.batch.reason": batch.reason.value,
                "headway.batch.padding": batch.padding,
                "headway.batch.failed": event.failed,
                "headway.batch.reruns": event.reruns,
            }
        )
        executed = self._tracer.start_span(
            "execute",
            context=trace.set_span_in_context(span, context.Context()),
            start_time=at(event.finished_at - event.ran_s),
        )
        executed.end(at(event.finished_at))
        span.end(at(event.finished_at))


def traceparent(span: Any) -> dict[str, str]:
    """The headers that pass this span on to the other side."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span, context.Context()))
    return carrier


@contextmanager
def provider() -> Iterator[Any]:
    """The program's own, if it has set one up; else one that exports over OTLP/HTTP, to where the
    `OTEL_EXPORTER_OTLP_…` variables say, and is emptied at the end."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield trace.get_tracer_provider()
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = Resource({SERVICE_NAME: "headway"}).merge(OTELResourceDetector().detect())
    made = TracerProvider(resource=named)
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield made
    finally:
        made.shutdown()


def _current_span() -> Any:
    span = trace.get_current_span()
    return span if span.is_recording() else None


def _wall_clock() -> Any:
    """Converts the batchers' clock to nanoseconds of Unix time."""
    offset = time.time_ns() - time.monotonic_ns()
    return lambda moment: offset + round(moment * 1e9)
