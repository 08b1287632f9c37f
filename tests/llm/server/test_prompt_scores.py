"""`echo` with `logprobs`: how likely a prompt is, as lm-eval asks for it, against transformers."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from models import build, reference
from serving import MOST_S, Serving, serving

pytestmark = pytest.mark.real_time
PROMPTS = [
    [(7 * start + 3 * index * index) % 250 + 5 for index in range(length)]
    for start, length in enumerate((1, 2, 15, 16, 17, 40, 100, 100))
]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def scored(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Serving, Path]]:
    """Prompts are computed in chunks of 24 tokens and fewer."""
    folder = build(request.param, tmp_path_factory.mktemp(request.param))
    with serving(folder, step_tokens=24, max_sequences=4, warm_up=False) as found:
        yield found, folder


def complete(served: Serving, prompt: Any, **more: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "echo": True, "logprobs": 2, "temperature": 0}
    answer = httpx.post(
        f"{served.url}/v1/completions", json={**body, "max_tokens": 1, **more}, timeout=MOST_S
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def expected(folder: Path, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits = reference(folder)(torch.tensor([ids])).logits[0].float()
    lines = logits.log_softmax(-1)
    return lines[torch.arange(len(ids) - 1), torch.tensor(ids[1:]).long()]


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_a_prompt_is_as_likely_as_transformers_says(
    scored: tuple[Serving, Path], prompt: list[int]
) -> None:
    served, folder = scored
    for _ in range(2):  # the second finds nothing in the prefix cache: all is computed
        (choice,) = complete(served, prompt)["choices"]
        found = choice["logprobs"]
        assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
        assert len(found["tokens"]) == len(found["text_offset"]) == len(prompt) + 1
        own = torch.tensor([float(each) for each in found["token_logprobs"][1:-1]])
        assert torch.allclose(own, expected(folder, prompt), atol=1e-4)


def test_prompts_of_many_callers_do_not_mix(scored: tuple[Serving, Path]) -> None:
    served, folder = scored
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda prompt: complete(served, prompt), PROMPTS * 3))
    for prompt, answer in zip(PROMPTS * 3, answers, strict=True):
        found = answer["choices"][0]["logprobs"]["token_logprobs"]
        own = torch.tensor([float(each) for each in found[1:-1]])
        assert torch.allclose(own, expected(folder, prompt), atol=1e-4)


def test_lm_evals_sum_of_a_continuation(scored: tuple[Serving, Path]) -> None:
    """As its `local-completions` reads the answer: many prompts at once, the last token dropped."""
    served, folder = scored
    contexts = [5, 10, 20]
    prompts = [PROMPTS[2], PROMPTS[4], PROMPTS[5]]
    answer = complete(served, prompts, logprobs=1, seed=1234)
    for choice, prompt, context in zip(answer["choices"], prompts, contexts, strict=True):
        likely = float(expected(folder, prompt)[context - 1 :].sum())
        total = sum(choice["logprobs"]["token_logprobs"][context:-1])
        assert total == pytest.approx(likely, abs=1e-3)
        tops = choice["logprobs"]["top_logprobs"][context:-1]
        own = choice["logprobs"]["token_logprobs"][context:-1]
        assert all(value <= max(top.values()) for value, top in zip(own, tops, strict=True))


def test_a_text_is_echoed_with_where_its_tokens_begin(scored: tuple[Serving, Path]) -> None:
    served, _ = scored
    (choice,) = complete(served, "Hé llo", max_tokens=3, ignore_eos=True)["choices"]
    assert choice["text"].startswith("Hé llo")
    found = choice["logprobs"]
    assert found["text_offset"][:7] == [0, 1, 1, 2, 3, 4, 5]
    begun = [choice["text"][where:] for where in found["text_offset"][:7]]
    assert begun[0].startswith("Hé llo")
    assert begun[-1].startswith("o")


def test_a_prompt_is_scored_without_an_answer(scored: tuple[Serving, Path]) -> None:
    served, folder = scored
    answer = complete(served, PROMPTS[2], max_tokens=0)
    (choice,) = answer["choices"]
    assert len(choice["logprobs"]["tokens"]) == len(PROMPTS[2])
    assert answer["usage"]["completion_tokens"] == 0
    own = torch.tensor([float(each) for each in choice["logprobs"]["token_logprobs"][1:]])
    assert torch.allclose(own, expected(folder, PROMPTS[2]), atol=1e-4)
    body = {"model": "tiny", "prompt": "a", "max_tokens": 0}
    assert httpx.post(f"{served.url}/v1/completions", json=body).status_code == 400


def test_a_stream_says_the_same(scored: tuple[Serving, Path]) -> None:
    served, _ = scored
    whole = complete(served, PROMPTS[5], max_tokens=3, ignore_eos=True)["choices"][0]
    body = {"model": "tiny", "prompt": PROMPTS[5], "echo": True, "logprobs": 2, "temperature": 0}
    body |= {"max_tokens": 3, "ignore_eos": True, "stream": True}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=MOST_S)
    said = [each.removeprefix("data: ") for each in answer.text.split("\n\n") if each]
    choices = [json.loads(each)["choices"][0] for each in said if each != "[DONE]"]
    assert "".join(each["text"] for each in choices) == whole["text"]
    for name, values in whole["logprobs"].items():
        parts = [each["logprobs"][name] for each in choices if each["logprobs"] is not None]
        assert [value for part in parts for value in part] == values
