"""A model's folder: its configuration and its tensors, as `transformers` saves them; or tensors of
the same shapes drawn at random, for benchmarks."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from headway.errors import ConfigError


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: is not an object")
    return config


def read_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the folder's safetensors files, one at a time."""
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder}: holds no .safetensors file")
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it is no dict)
                yield name, tensors.get_tensor(name)


def random_tensors(
    config: Mapping[str, Any], *, dtype: torch.dtype, device: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """What a folder of Llama's kind would hold, drawn at random where it is used: nothing is
    written, read or copied."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    queries, keys = heads * size, (config.get("num_key_value_heads") or heads) * size

    def matrix(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(std=0.02)

    def ones(count: int) -> torch.Tensor:
        return torch.ones(count, dtype=dtype, device=device)

    yield "model.embed_tokens.weight", matrix(config["vocab_size"], hidden)
    yield "model.norm.weight", ones(hidden)
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", matrix(config["vocab_size"], hidden)
    is_biased = config.get("model_type") == "qwen2" or config.get("attention_bias")
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}."
        yield layer + "input_layernorm.weight", ones(hidden)
        yield layer + "post_attention_layernorm.weight", ones(hidden)
        if config.get("model_type") == "qwen3":
            yield layer + "self_attn.q_norm.weight", ones(size)
            yield layer + "self_attn.k_norm.weight", ones(size)
        for name, out in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{layer}self_attn.{name}_proj.weight", matrix(out, hidden)
            if is_biased:
                yield f"{layer}self_attn.{name}_proj.bias", ones(out)
        yield layer + "self_attn.o_proj.weight", matrix(hidden, queries)
        yield layer + "mlp.gate_proj.weight", matrix(inner, hidden)
        yield layer + "mlp.up_proj.weight", matrix(inner, hidden)
        yield layer + "mlp.down_proj.weight", matrix(hidden, inner)
