"""A tiny decoder through the engine, in company, and through transformers, each sequence alone."""

from pathlib import Path
from typing import Any

import torch

from benchmarks.exactness.cases import EXACT, Verdict
from headway.core.generation.sampling import Logprobs, Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.engine.starting import EngineOptions, start
from headway.errors import InputTooLarge

_LENGTHS = (1, 6, 17, 40, 70, 33)
_GENERATED = 7
_MOST = 2e-3  # between two logprobs
_ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "threads": 1,
    "step_tokens": 32,
    "max_sequences": 8,
    "kv_cache_gib": 0.02,
    "adapter_slots": 0,
}


def save(model: Any, folder: Path) -> None:
    """With weights so large that every token matters."""
    chance = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                width = parameter.shape[-1]
                parameter.normal_(0.0, 1.2 * width**-0.5, generator=chance)
            elif "norm" in name or "ln_" in name:
                parameter.uniform_(0.6, 1.4, generator=chance)
            else:
                parameter.normal_(0.0, 0.2, generator=chance)
    model.save_pretrained(folder)


def compare(folder: Path, reference: Any = None, **options: Any) -> Verdict:
    """`reference`: the library's model, where it is not read from the folder."""
    runner: Any = start(folder, EngineOptions(**{**_ENGINE, **options}))
    answers = _answers(runner)
    model = reference if reference is not None else _reference(folder)
    for prompt, tokens, logprobs in answers:
        difference = _difference(model, prompt, tokens, logprobs)
        if difference:
            return Verdict("wrong", f"after {len(prompt)} tokens: {difference}")
    return EXACT if len(answers) > 1 else Verdict("wrong", "no sequence fits")


def _reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()


def _answers(runner: Any) -> list[tuple[list[int], list[int], list[Logprobs]]]:
    """Of every prompt that fits into the context."""
    chance = torch.Generator().manual_seed(11)
    scheduler = GenerationScheduler(runner.limits)
    found: dict[int, tuple[list[int], list[int], list[Any]]] = {}
    for number, length in enumerate(_LENGTHS):
        prompt = torch.randint(3, runner.vocabulary, (length,), generator=chance).tolist()
        asked = Sequence(number, float(number), tuple(prompt), max_tokens=_GENERATED)
        try:
            scheduler.submit(asked)
        except InputTooLarge:
            continue
        runner.add(number, asked.prompt, Sampling(temperature=0.0, logprobs=5))
        found[number] = prompt, [], []
    while scheduler.running or scheduler.waiting:
        step = scheduler.next_step(0.0)
        assert isinstance(step, Step)
        sampled = runner.run(step)
        for number, token, logprobs in zip(
            step.sampled, sampled.tokens, sampled.logprobs, strict=True
        ):
            found[number][1].append(token)
            found[number][2].append(logprobs)
        scheduler.complete(step, sampled.tokens)
    return list(found.values())


def _difference(
    model: Any, prompt: list[int], tokens: list[int], logprobs: list[Logprobs]
) -> str | None:
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *tokens[:-1]]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :]
    expected = logits.float().log_softmax(-1)
    for number, (line, token, ours) in enumerate(zip(expected, tokens, logprobs, strict=True)):
        if not float(line.max() - line[token]) <= _MOST:
            return f"token {number} is {token}, expected {int(line.argmax())}"
        for each, value in ours.top:
            if not abs(float(line[each]) - value) <= _MOST:
                return f"token {number}: logprob {value:.4f}, expected {float(line[each]):.4f}"
    return None
