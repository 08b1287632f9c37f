"""OpenTelemetry's conventions for generative AI: attributes of a request's span, and a server's
three histograms. They are still being developed: only for who opts in, as they ask.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headway.errors import ConfigError
from headway.observe.history import AnswerRecord, ModelHistory
from headway.observe.requests import RequestNote

try:
    from opentelemetry import metrics
except ImportError as error:
    raise ConfigError(
        f"{error}; to have traces: pip install 'headway[otel]'", field="tracing"
    ) from error

OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
_LATEST = "gen_ai_latest_experimental"
_OPERATIONS = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"), "chat"),
    **dict.fromkeys(("/v1/completions", "/api/generate"), "text_completion"),
    **dict.fromkeys(
        ("/v1/embeddings", "/api/embed", "/embed", "/models/{model}/embed"), "embeddings"
    ),
}
# The conventions' own.
_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)


def is_opted_in(variables: Mapping[str, str]) -> bool:
    return _LATEST in (each.strip() for each in variables.get(OPT_IN, "").split(","))


class GenAI:
    """The histograms, and the attributes of one request. `provider`: by default the one that
    OpenTelemetry is set up with."""

    def __init__(self, provider: Any = None) -> None:
        meter = metrics.get_meter("headway", meter_provider=provider)

        def histogram(name: str, edges: tuple[float, ...], what: str) -> Any:
            try:
                return meter.create_histogram(
                    f"gen_ai.server.{name}", "s", what, explicit_bucket_boundaries_advisory=edges
                )
            except TypeError:
                raise ConfigError("needs opentelemetry-sdk from 1.30 on", field=OPT_IN) from None

        self._duration = histogram(
            "request.duration", _DURATION, "From a request to the last byte of its answer"
        )
        self._first = histogram(
            "time_to_first_token", _FIRST, "From a request to the first token of its answer"
        )
        self._between = histogram(
            "time_per_output_token", _BETWEEN, "For each token of an answer after the first"
        )

    def ended(self, route: str, note: RequestNote | None, error: str) -> dict[str, Any]:
        """Count a request that is over. Returns the attributes of its span: none if it had nothing
        to do with generating or embedding. `error`: its code."""
        answers = [] if note is None else _answers_of(note)
        operation = _OPERATIONS.get(route, "text_completion" if answers else "")
        if note is None or not operation:
            return {}
        about = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "headway"}
        if model := _model_of(note, answers):
            about["gen_ai.request.model"] = model
        failed = {"error.type": error} if error else {}
        self._duration.record(time.monotonic() - note.started_at, {**about, **failed})
        if not error:
            self._count(note, answers, about)
        streamed = {"gen_ai.request.stream": True} if note.is_stream else {}
        return {**about, **streamed, **_usage_of(note, answers)}

    def _count(
        self, note: RequestNote, answers: list[AnswerRecord], about: Mapping[str, str]
    ) -> None:
        begun = [each.first_at for each in answers if each.first_at is not None]
        if begun:
            self._first.record(min(begun) - note.started_at, about)
        for each in answers:
            if each.first_at is not None and each.tokens > 1:
                took_s = each.ended_at - each.first_at
                self._between.record(took_s / (each.tokens - 1), about)


def _answers_of(note: RequestNote) -> list[AnswerRecord]:
    """Those of language models that have ended and are still kept, in the order of their sequences;
    not of a reader who has left."""
    wanted: dict[int, tuple[ModelHistory, set[int]]] = {}
    for owner, number in note.items:
        if isinstance(owner, ModelHistory) and owner.answers:
            wanted.setdefault(id(owner), (owner, set()))[1].add(number)
    found = []
    for owner, numbers in wanted.values():
        for record in reversed(owner.answers):
            if not numbers or record.ended_at < note.started_at:
                break
            if record.sequence in numbers:
                numbers.discard(record.sequence)
                found.append(record)
    return sorted(found, key=lambda each: each.sequence)


def _model_of(note: RequestNote, answers: list[AnswerRecord]) -> str:
    """Only of a model that there is: a caller's word would make a series of each name."""
    if answers and answers[0].adapter:
        return answers[0].adapter
    for owner, _ in note.items:
        if isinstance(owner, ModelHistory):
            return owner.model
    return ""


def _usage_of(note: RequestNote, answers: list[AnswerRecord]) -> dict[str, Any]:
    """Nothing unless every answer is known: part of the tokens would be a wrong number."""
    if not answers or len(answers) < note.count:
        return {}
    prompts = [each for each in answers if each.choice == 0]
    return {
        "gen_ai.usage.input_tokens": sum(each.prompt_tokens for each in prompts),
        "gen_ai.usage.cache_read.input_tokens": sum(each.cached_tokens for each in prompts),
        "gen_ai.usage.output_tokens": sum(each.tokens for each in answers),
        "gen_ai.response.finish_reasons": [each.code for each in answers],
    }


@contextmanager
def meters() -> Iterator[Any]:
    """The program's own provider, if it has set one up; else one that exports over OTLP/HTTP, to
    where the `OTEL_EXPORTER_OTLP_…` variables say, and is emptied at the end."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource

    if isinstance(metrics.get_meter_provider(), MeterProvider):
        yield metrics.get_meter_provider()
        return
    named = Resource({SERVICE_NAME: "headway"}).merge(OTELResourceDetector().detect())
    made = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource=named)
    try:
        yield made
    finally:
        made.shutdown()
