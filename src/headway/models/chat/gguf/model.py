"""The configuration in a GGUF file, in transformers' format."""

import math
from typing import Any

import numpy as np

from headway.models.chat.gguf.metadata import Metadata

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Settings that change nothing here: to read them is to accept them.
_WITHOUT_EFFECT = ("tensor_data_layout", "rope.scaling.finetuned")
_ORIGINAL_CONTEXTS = [2**power for power in range(4, 24)]
_LOW, _HIGH = 1.0, 4.0  # Llama 3's, in every model published with its scaling
_NEAR = 1e-4


def configuration(
    metadata: Metadata, *, vocabulary: int, rope_factors: np.ndarray | None
) -> dict[str, Any]:
    """What transformers' `config.json` would hold. Checks the settings: raises ConfigError for what
    is not computed here."""
    kind = metadata.architecture
    _check(metadata, kind)
    heads, hidden = metadata.number("attention.head_count"), metadata.number("embedding_length")
    if heads < 1 or hidden < 1:
        raise metadata.refusal(f"{kind}.attention.head_count = {heads} of {hidden} is not possible")
    size = metadata.number("attention.key_length", hidden // heads)
    metadata.only(f"{kind}.attention.value_length", size)
    metadata.only(f"{kind}.rope.dimension_count", size)
    metadata.only(f"{kind}.vocab_size", vocabulary)
    context = metadata.number("context_length")
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": metadata.number("feed_forward_length"),
        "num_hidden_layers": metadata.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.number("attention.head_count_kv", heads),
        "head_dim": size,
        "max_position_embeddings": context,
        "rms_norm_eps": round(metadata.number("attention.layer_norm_rms_epsilon"), 12),
        "rope_parameters": _rope(metadata, size, context, rope_factors),
        "vocab_size": vocabulary,
        "hidden_act": "silu",
    }


def _check(metadata: Metadata, kind: str) -> None:
    metadata.only("general.type", "model")
    if kind not in ARCHITECTURES:
        kinds = ", ".join(ARCHITECTURES)
        raise metadata.refusal(f"a {kind!r} model; GGUF files are read for {kinds}")
    parts = metadata.get("split.count", 1)
    if parts > 1:
        raise metadata.refusal(f"split.count: it is one of {parts} parts, and one file is needed")
    experts = metadata.get(f"{kind}.expert_count", 0)
    if experts:
        raise metadata.refusal(f"{kind}.expert_count: a mixture of {experts} experts")
    metadata.only(f"{kind}.expert_used_count", 0)
    metadata.only(f"{kind}.attention.causal", True)
    metadata.only(f"{kind}.pooling_type", 0)
    for name in _WITHOUT_EFFECT:
        metadata.get(f"{kind}.{name}")


def _rope(
    metadata: Metadata, size: int, context: int, factors: np.ndarray | None
) -> dict[str, Any]:
    kind = metadata.architecture
    theta = metadata.number("rope.freq_base", 10000.0)
    scaling = metadata.get(f"{kind}.rope.scaling.type")
    factor = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 1.0))
    original = metadata.number("rope.scaling.original_context_length", context)
    for name in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        metadata.only(f"{kind}.rope.scaling.{name}", 1.0)
    metadata.only(f"{kind}.rope.scaling.yarn_log_multiplier", 0.0)
    fast = metadata.number("rope.scaling.yarn_beta_fast", 32.0)
    slow = metadata.number("rope.scaling.yarn_beta_slow", 1.0)
    if scaling not in (None, "none", "linear", "yarn"):
        raise metadata.refusal(f"{kind}.rope.scaling.type = {scaling!r} is not supported")
    if factors is not None:
        if scaling in ("linear", "yarn") and factor != 1.0:
            raise metadata.refusal(
                f"rope_freqs.weight beside {kind}.rope.scaling.type = {scaling!r}"
            )
        return _llama3(metadata, factors, size, theta)
    if scaling == "yarn":
        return {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "original_max_position_embeddings": original,
            "beta_fast": fast,
            "beta_slow": slow,
        }
    # Without a type a factor is a linear one; with `none` it changes nothing.
    if factor != 1.0 and scaling != "none":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    return {"rope_type": "default", "rope_theta": theta}


def _llama3(metadata: Metadata, factors: np.ndarray, size: int, theta: float) -> dict[str, Any]:
    """The parameters that give these factors: the file has only what they came to."""
    given = factors.astype(np.float64)
    factor = round(float(given.max()), 4)
    if given.shape != (size // 2,):
        raise metadata.refusal(f"rope_freqs.weight: {size // 2} numbers, not {given.shape}")
    if np.allclose(given, 1.0):
        return {"rope_type": "default", "rope_theta": theta}
    for original in _ORIGINAL_CONTEXTS:
        if np.allclose(_factors(size, theta, factor, original), given, rtol=_NEAR):
            return {
                "rope_type": "llama3",
                "rope_theta": theta,
                "factor": factor,
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
                "original_max_position_embeddings": original,
            }
    raise metadata.refusal("rope_freqs.weight: its factors are not those of Llama 3's scaling")


def _factors(size: int, theta: float, factor: float, original: int) -> np.ndarray:
    lengths = 2 * math.pi * theta ** (np.arange(0, size, 2) / size)
    smooth = np.clip((original / lengths - _LOW) / (_HIGH - _LOW), 0.0, 1.0)
    slowed: np.ndarray = 1 / ((1 - smooth) / factor + smooth)
    return slowed
