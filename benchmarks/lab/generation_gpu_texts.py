"""Texts of a GPU's engine, step by step; and how far they are from a model's own choice."""

from collections.abc import Sequence as Listed
from typing import Any

import torch

from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.engine.gpu.steps.runner import GpuRunner


def texts_of(
    runner: GpuRunner, limits: EngineLimits, sequences: Listed[Sequence]
) -> list[list[int]]:
    """The likeliest tokens of each; their ids count from 0."""
    scheduler = GenerationScheduler(limits)
    texts: list[list[int]] = [[] for _ in sequences]
    for each in sequences:
        scheduler.submit(each)
        runner.add(each.id, each.prompt, Sampling(temperature=0.0))
    while isinstance(step := scheduler.next_step(0.0), Step):
        sampled = runner.start(step).result().tokens if step.has_work else []
        for sequence, token in zip(step.sampled, sampled, strict=True):
            texts[sequence].append(token)
        scheduler.complete(step, sampled)
    return texts


def gap_of(model: Any, prompt: list[int], text: list[int]) -> float:
    """The most by which another token's logit was above a chosen one's."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + text], device="cuda")).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(text, device="cuda")[:, None])[:, 0]
    return float((logits.max(-1).values - chosen).max())
