"""What fewer bits do to a trained model: `python -m benchmarks.lab.perplexity`, on the CPU.

The perplexity of a fixed text under SmolLM2-135M-Instruct (`headway models get chat`) in float32,
and with the layers' products rounded as the GPU's fp8 rounds them: weights to e4m3 by row,
activations to e4m3 by token, sums in float32; and with all products' weights, the head's too, as
the CPU's int8 rounds them, by row. And as Headway's engine computes it on this CPU in bf16.
"""

import math
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Report
from headway.core.generation.sampling import Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.core.items import Wait
from headway.engine.cpu.linear import rounded as rounded_to_int8
from headway.engine.starting import EngineOptions, start
from headway.models.chat.finding import find_language_model
from headway.models.chat.text import ChatText

LARGEST = 448.0
TEXT = """\
Call me Ishmael. Some years ago - never mind how long precisely - having little or no money in
my purse, and nothing particular to interest me on shore, I thought I would sail about a little
and see the watery part of the world. It is a way I have of driving off the spleen and
regulating the circulation. Whenever I find myself growing grim about the mouth; whenever it is
a damp, drizzly November in my soul; whenever I find myself involuntarily pausing before coffin
warehouses, and bringing up the rear of every funeral I meet; and especially whenever my hypos
get such an upper hand of me, that it requires a strong moral principle to prevent me from
deliberately stepping into the street, and methodically knocking people's hats off - then, I
account it high time to get to sea as soon as I can. This is my substitute for pistol and ball.
With a philosophical flourish Cato throws himself upon his sword; I quietly take to the ship.
There is nothing surprising in this. If they but knew it, almost all men in their degree, some
time or other, cherish very nearly the same feelings towards the ocean with me."""


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Each row as 8-bit floats have it."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def perplexity(model: Any, ids: torch.Tensor) -> float:
    with torch.inference_mode():
        logits = model(ids[None]).logits[0, :-1].float()
    return math.exp(float(torch.nn.functional.cross_entropy(logits, ids[1:])))


def perplexity_of_engine(folder: Path, ids: torch.Tensor, **options: Any) -> float:
    """Headway's own, each token forced by a bias: logprobs are those before it."""
    runner = start(folder, EngineOptions(device="cpu", kv_cache_gib=0.1, **options))
    scheduler = GenerationScheduler(runner.limits)
    found = []
    for number in range(1, len(ids)):
        prompt, token = tuple(ids[:number].tolist()), int(ids[number])
        scheduler.submit(Sequence(number, 0.0, prompt, 1))
        forced = Sampling(temperature=0.0, logit_bias={token: 100.0}, logprobs=0)
        runner.add(number, prompt, forced)
        while scheduler.running or scheduler.waiting:
            step = scheduler.next_step(float(number))
            if isinstance(step, Wait):
                step = scheduler.next_step(step.until)
            assert isinstance(step, Step)
            sampled = runner.run(step)
            found += [each.chosen for each in sampled.logprobs if each is not None]
            scheduler.complete(step, sampled.tokens)
        runner.drop(number)
    return math.exp(-sum(found) / len(found))


def perplexity_in_int8(model: Any, layers: list[torch.nn.Linear], ids: torch.Tensor) -> float:
    """With these layers' weights rounded, and then as they were."""
    originals = [layer.weight for layer in layers]
    for layer in layers:
        weight, scales = rounded_to_int8(layer.weight.data)
        layer.weight = torch.nn.Parameter(weight * scales[:, None])
    found = perplexity(model, ids)
    for layer, original in zip(layers, originals, strict=True):
        layer.weight = original
    return found


def main() -> None:
    from transformers import AutoModelForCausalLM

    folder = find_language_model("chat")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor(ChatText(folder).encode(TEXT))
    before = perplexity(model, ids)
    engine = [perplexity_of_engine(folder, ids, dtype=each) for each in ("float32", "bfloat16")]
    layers = [each for each in model.model.modules() if isinstance(each, torch.nn.Linear)]
    int8 = perplexity_in_int8(model, [*layers, model.lm_head], ids)
    for layer in layers:
        layer.weight.data = rounded(layer.weight.data)
    weights = perplexity(model, ids)
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, given: (rounded(given[0]), *given[1:]))
    both = perplexity(model, ids)
    rows = [
        [name, f"{value:.3f}", f"{value / before - 1:+.2%}"]
        for name, value in (
            ("nothing: float32", before),
            ("Headway's engine, float32", engine[0]),
            ("Headway's engine, bfloat16", engine[1]),
            ("weights, int8", int8),
            ("weights, fp8", weights),
            ("weights and activations, fp8", both),
        )
    ]
    title = f"Fewer bits: perplexity of SmolLM2-135M-Instruct on a fixed text of {len(ids)} tokens"
    print(Report(title, ["rounded", "perplexity", "change"], rows, []).to_markdown())


if __name__ == "__main__":
    main()
