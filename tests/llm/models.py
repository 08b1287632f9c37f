"""Two-layer models with random weights, in the forms that people publish; and how to run them."""

import functools
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Logprobs, Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Finished, Sequence
from headway.core.generation.step import Step
from headway.engine.cpu.building import Instructions, built, compiled, instruction_sets
from headway.engine.cpu.kernels import Kernels
from headway.engine.cpu.runner import CpuRunner
from headway.engine.decoders.loading import load

VOCABULARY = 272  # every byte, and some special tokens
SPECIALS = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>"]
TEMPLATE = """{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**_SIZES, head_dim=16),
    "llama-narrow": lambda: LlamaConfig(**{**_SIZES, "vocab_size": VOCABULARY + 5}, head_dim=8),
    "llama-tied-rope3": lambda: LlamaConfig(
        **_SIZES,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2": lambda: Qwen2Config(**_SIZES),
    "qwen3": lambda: Qwen3Config(**_SIZES, head_dim=16),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=256
    ),
}
# The narrow one's heads are too narrow for AVX-512, and its vocabulary fills no panel.
# Their weights are numbers of 16 bits, as most published ones are: the kernels compute them.
IN_16_BITS = ("llama-narrow", "llama-tied-rope3", "qwen2", "qwen3")


# Every kind of kernels that this machine can run: of which instructions, with what in the cache.
KERNEL_KINDS = [
    pytest.param((instructions, dtype), id=f"{instructions.name}-{name}")
    for instructions in instruction_sets()
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
]


def kernels_of(kind: tuple[Instructions, torch.dtype]) -> Kernels:
    found = built(*kind)
    if found is None:
        pytest.skip("no C compiler")
    return found


def build(kind: str, folder: Path) -> Path:
    """Save a model of the kind; its weights are large enough that every token matters."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind]())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.25)
            elif "norm" in name or "ln_" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, 0.2)
            if kind in IN_16_BITS:
                parameter.copy_(parameter.bfloat16())
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """Special tokens, then one token for every byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {each: index for index, each in enumerate([*SPECIALS, *letters])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, normalized=False) for each in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


@functools.cache
def reference(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs | None] = field(default_factory=list)
    finished: Finished | None = None


class Engine:
    """Scheduler and runner, driven by hand."""

    def __init__(
        self,
        folder: Path,
        *,
        use_transformers: bool = False,
        dtype: torch.dtype = torch.float32,
        kernels: Kernels | Literal["auto"] | None = "auto",
        is_rounded: bool = False,
        **limits: Any,
    ) -> None:
        self.limits = EngineLimits(
            **{"blocks": 256, "block_size": 4, "max_context": 256, "max_sequences": 16, **limits}
        )
        decoder = load(
            folder,
            dtype=dtype,
            max_context=256,
            use_transformers=use_transformers,
            kernels=compiled(dtype) if kernels == "auto" else kernels,
            is_rounded=is_rounded,
        )
        self.runner = CpuRunner(decoder, self.limits)
        self.scheduler = GenerationScheduler(self.limits)
        self.answers: dict[int, Answer] = {}
        self.ids = itertools.count()
        self.computed = 0

    def submit(
        self,
        prompt: tuple[int, ...],
        sampling: Sampling | None = None,
        *,
        resumed: tuple[int, ...] | None = None,
        **fields: Any,
    ) -> int:
        """`resumed`: what an engine that was lost gave it."""
        number = next(self.ids)
        sequence = Sequence(number, float(number), prompt, **{"max_tokens": 12, **fields})
        self.scheduler.submit(sequence, resumed)
        told = resumed or ()
        self.runner.add(number, prompt, sampling or Sampling(temperature=0.0), generated=told)
        self.answers[number] = Answer(list(told))
        return number

    def step(self) -> Step:
        step = self.scheduler.next_step(0.0)
        assert isinstance(step, Step)
        self.computed += step.tokens
        sampled = self.runner.run(step)
        for number, token, logprobs in zip(
            step.sampled, sampled.tokens, sampled.logprobs, strict=True
        ):
            self.answers[number].tokens.append(token)
            self.answers[number].logprobs.append(logprobs)
        for finished in (*step.finished, *self.scheduler.complete(step, sampled.tokens)):
            self.answers[finished.sequence].finished = finished
            self.runner.drop(finished.sequence)
        return step

    def run(self) -> None:
        while self.scheduler.running or self.scheduler.waiting:
            self.step()
