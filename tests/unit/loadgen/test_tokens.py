"""Streamed tokens: counted, timed, and made into figures."""

import json
import math

import numpy as np
import pytest

from headway.loadgen.exchange import RESPONSE_TOKEN, TOKEN
from headway.loadgen.openai_bodies import is_stream, openai_body
from headway.loadgen.tokens import TokenLimits, TokenLog, token_summary


@pytest.mark.parametrize(
    ("event", "pieces"),
    [
        (b'{"choices":[{"delta":{"content":"a"}}]}', 1),
        (b'{"choices": [{"delta": {"content": "a"}}]}', 1),
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', 0),
        (b'{"choices":[{"index":0,"text":" b"}]}', 1),
        (b'{"choices":[{"delta":{"reasoning_content":"c"}}]}', 1),
        (b'{"choices":[{"delta":{"content":"\\"content\\":\\"x"}}]}', 1),
        (b'{"choices":[],"usage":{"completion_tokens":3}}', 0),
    ],
)
def test_a_piece_of_text_is_a_token_and_nothing_else_is(event: bytes, pieces: int) -> None:
    assert len(TOKEN.findall(event)) == pieces


def test_first_tokens_gaps_and_good_answers_are_told() -> None:
    log = TokenLog()
    log.add([(1.0, 1), (1.1, 1), (1.3, 2)], b"")
    log.add([(2.5, 1), (2.6, 1)], b'{"usage":{"completion_tokens":11}}')
    log.add_none()
    tokens = log.samples(0.0, np.array([0, 1, 2]))
    assert tokens.count.tolist() == [4.0, 11.0, 0.0]
    limits = TokenLimits(first_s=0.3, between_s=0.2)
    summary = token_summary(tokens, np.array([0.9, 2.0, 3.0]), 0.0, 10.0, limits)
    assert summary.per_s == pytest.approx(1.5)
    assert summary.first_p50_s == pytest.approx(0.3)
    assert sorted(tokens.gaps_s.tolist()) == pytest.approx([0.0, 0.1, 0.1, 0.2])
    assert summary.good_rps == pytest.approx(0.1)  # the second came too late


def test_where_nothing_was_streamed_there_is_no_time_to_tell() -> None:
    log = TokenLog()
    log.add([], b"")
    summary = token_summary(log.samples(0.0, np.array([0])), np.zeros(1), 0.0, 1.0, TokenLimits())
    assert math.isnan(summary.first_p99_s)
    assert summary.per_s == 0.0


@pytest.mark.parametrize("api", ["chat", "completions", "embeddings", "rerank"])
def test_bodies_are_as_openai_has_them(api: str) -> None:
    rng = np.random.default_rng(0)
    body = openai_body(api, "m", rng, length=5, max_tokens=7, ignore_eos=True)
    told = json.loads(body)
    assert told["model"] == "m"
    assert is_stream(body) == (api in ("chat", "completions"))
    texts = {
        "chat": lambda: told["messages"][0]["content"],
        "completions": lambda: told["prompt"],
        "embeddings": lambda: told["input"],
        "rerank": lambda: told["documents"][0],
    }
    assert len(texts[api]().split()) == 5
    assert told.get("max_tokens") == (7 if is_stream(body) else None)


def test_a_responses_tokens_are_its_deltas_and_not_its_whole_text() -> None:
    delta = b'data: {"type":"response.output_text.delta","delta":"a"}\n\n'
    done = b'data: {"type":"response.output_text.done","text":"a"}\n\n'
    assert len(RESPONSE_TOKEN.findall(delta + delta + done)) == 2
