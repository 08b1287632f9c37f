"""The real model to talk to, as `headway models get chat` has put it into the cache."""

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import headway

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif("TEST_CHAT" not in os.environ, reason="`make test-llm` says where it is"),
]
QUESTIONS = [
    "What is the capital of France?",
    "Write one short sentence about the ocean.",
    "Name three colours.",
    "What is 2 + 2?",
]


async def test_it_answers_questions_and_each_token_is_transformers_own() -> None:
    folder = Path(os.environ["TEST_CHAT"])
    chats = [[{"role": "user", "content": each}] for each in QUESTIONS]
    async with headway.Generator(str(folder), dtype="float32", max_context=512) as model:
        first = await model.generate(chats[0], temperature=0, max_tokens=16)
        answers = await model.many(chats, temperature=0, max_tokens=16)
        prompts = [model.tokens_of(each) for each in chats]
    assert "Paris" in first.text
    assert first.finish_reason == "stop"
    assert answers[0].text == first.text
    assert answers[0].cached_tokens >= 16  # they all begin with the same instructions
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([[*prompt, *answer.tokens]])).logits[0]
        logits = logits[len(prompt) - 1 : -1]
        chosen = logits[torch.arange(len(answer.tokens)), torch.tensor(answer.tokens)]
        assert float((logits.max(-1).values - chosen).max()) <= 1e-4
