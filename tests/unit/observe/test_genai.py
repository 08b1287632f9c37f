"""What OpenTelemetry's conventions for generative AI say of requests, by the SDK's own reader."""

import time
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk.metrics")
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from headway.core.generation.sequence import Finished, FinishReason
from headway.observe.genai import GenAI, is_opted_in
from headway.observe.history import History, ModelHistory
from headway.observe.requests import RequestNote

CHAT = "/v1/chat/completions"


class Asked:
    """One server's requests, and what was counted of them."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.genai = GenAI(MeterProvider([self._reader]))
        self.history = History()
        self.llm = self.history.add("tiny", "1")

    def begin(self) -> RequestNote:
        return self.history.requests.begin("mine", "POST /")

    def answer(self, sequence: int, *, code: str = "stop", tokens: int = 5, **more: Any) -> None:
        """It has its first token at once, and ends now."""
        self.llm.queued((sequence,))
        now = time.monotonic()
        finished = Finished(sequence, FinishReason.STOP, tokens, 2, 1, 0, now)
        moments = {"arrived_at": now, "first_at": now}
        self.llm.ended(
            sequence, finished, **moments, prompt_tokens=7, tokens=tokens, code=code, **more
        )

    def counted(self) -> dict[str, list[tuple[int, dict[str, Any]]]]:
        """By the end of the name: how many, and of what."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        return {
            each.name.removeprefix("gen_ai.server."): [
                (point.count, dict(point.attributes)) for point in each.data.data_points
            ]
            for each in data.resource_metrics[0].scope_metrics[0].metrics
        }


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_an_answer_has_its_usage_and_is_in_all_three_histograms(asked: Asked) -> None:
    note = asked.begin()
    asked.answer(1)
    found = asked.genai.ended(CHAT, note, "")
    about = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headway",
        "gen_ai.request.model": "tiny",
    }
    assert found == {
        **about,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["stop"],
    }
    names = ("request.duration", "time_to_first_token", "time_per_output_token")
    assert asked.counted() == {name: [(1, about)] for name in names}


def test_a_prompt_counts_once_however_many_answers_it_has(asked: Asked) -> None:
    note = asked.begin()
    for sequence in range(4):
        asked.answer(sequence, choice=sequence % 2)
    found = asked.genai.ended("/v1/completions", note, "")
    assert found["gen_ai.operation.name"] == "text_completion"
    assert found["gen_ai.usage.input_tokens"] == 14
    assert found["gen_ai.usage.output_tokens"] == 20
    assert [count for count, _ in asked.counted()["time_per_output_token"]] == [4]


def test_an_adapter_is_the_model_that_was_asked(asked: Asked) -> None:
    note = asked.begin()
    asked.answer(1, adapter="sql")
    assert asked.genai.ended(CHAT, note, "")["gen_ai.request.model"] == "sql"


def test_a_request_that_failed_has_its_error_and_no_tokens(asked: Asked) -> None:
    note = asked.begin()
    found = asked.genai.ended(CHAT, note, "queue_full")
    assert "gen_ai.request.model" not in found
    counted = asked.counted()
    [(count, about)] = counted.pop("request.duration")
    assert (count, about["error.type"]) == (1, "queue_full")
    assert counted == {}


def test_a_usage_that_is_known_in_part_is_not_told(asked: Asked) -> None:
    note = asked.begin()
    asked.answer(1)
    asked.llm.queued((2,))  # its reader has left
    found = asked.genai.ended(CHAT, note, "cancelled")
    assert found["gen_ai.request.model"] == "tiny"
    assert not [name for name in found if "usage" in name]


def test_another_request_with_no_answers_is_none_of_it(asked: Asked) -> None:
    note = asked.begin()
    assert asked.genai.ended("/v1/predict/{model}", note, "") == {}
    assert asked.genai.ended("/v1/predict/{model}", None, "") == {}
    assert asked.counted() == {}
    asked.answer(1)
    found = asked.genai.ended("/v1/predict/{model}", note, "")
    assert found["gen_ai.operation.name"] == "text_completion"


def test_embeddings_have_a_model_and_no_tokens(asked: Asked) -> None:
    note = asked.begin()
    batches: ModelHistory = asked.history.add("vectors", "1")
    batches.queued((1, 2))
    found = asked.genai.ended("/v1/embeddings", note, "")
    assert found["gen_ai.operation.name"] == "embeddings"
    assert found["gen_ai.request.model"] == "vectors"
    assert list(asked.counted()) == ["request.duration"]


@pytest.mark.parametrize(
    ("value", "is_on"),
    [
        ("gen_ai_latest_experimental", True),
        ("http, gen_ai_latest_experimental", True),
        ("http", False),
        ("", False),
    ],
)
def test_it_is_for_who_opts_in(value: str, is_on: bool) -> None:
    assert is_opted_in({"OTEL_SEMCONV_STABILITY_OPT_IN": value}) is is_on
    assert not is_opted_in({})
