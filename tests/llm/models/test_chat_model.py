"""The real model to talk to, as `headway models get chat` has put it into the cache."""

import os
from pathlib import Path

import pytest
from benchmarks.chat_right import MOST_GAP, MOST_LOGPROB_GAP, QUESTIONS, Setting, measure

import headway

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif("TEST_CHAT" not in os.environ, reason="`make test-llm` says where it is"),
]


async def test_it_answers_questions_and_remembers_how_they_begin() -> None:
    chats = [[{"role": "user", "content": each}] for each in QUESTIONS[:4]]
    folder = Path(os.environ["TEST_CHAT"])
    async with headway.Generator(str(folder), dtype="float32", max_context=512) as model:
        first = await model.generate(chats[0], temperature=0, max_tokens=16)
        answers = await model.many(chats, temperature=0, max_tokens=16)
    assert "Paris" in first.text
    assert first.finish_reason == "stop"
    assert answers[0].text == first.text
    assert answers[0].cached_tokens >= 16  # they all begin with the same instructions


def test_each_token_is_transformers_own_with_each_mechanism_on_and_off() -> None:
    """Along the engine's own text; `python -m benchmarks chat-right` has every combination."""
    settings = [Setting(*[is_on] * 3) for is_on in (True, False)]
    _, gap, logprob_gap = measure(settings, QUESTIONS[:6], os.environ["TEST_CHAT"])
    assert gap <= MOST_GAP
    assert logprob_gap <= MOST_LOGPROB_GAP
