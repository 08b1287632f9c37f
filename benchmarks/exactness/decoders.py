"""Decoders: a tiny model of each family that transformers knows, and of each variant that changes
what is computed; and the ways in which a folder can hold its weights."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.exactness import files
from benchmarks.exactness.cases import Case, Verdict
from benchmarks.exactness.files import Expected

# Whatever a configuration calls its sizes, they are these.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 211),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "lru_width"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size"), 48),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("decoder_layers", "encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("attention_heads", "num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("n_routed_experts", "moe_num_experts", "linear_num_value_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("moe_k", "linear_num_key_heads", "mamba_expand"), 2),
    **dict.fromkeys(("head_dim", "rotary_dim", "qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("v_head_dim", "mamba_d_state", "mamba_d_head", "mamba_n_heads"), 8),
    **dict.fromkeys(("state_size", "linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input", "laurel_rank", "lm_head_rank"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 256),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_head_dim"), 16),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("mamba_dt_rank", "conv_kernel"), 4),
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    **{"num_kv_shared_layers": 0, "attention_window_size": 64, "is_decoder": True},
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 2.5, 3.0, 4.0],
    "original_max_position_embeddings": 64,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
# transformers itself refuses them, or these sizes of them.
_UNBUILT = {("gpt_neox", "longrope"), ("gpt_neox", "dynamic")}
_UNBUILT |= {("phi3", name) for name in ("linear", "dynamic", "llama3", "yarn")}
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_PARTIAL = "partial_rotary_factor"
_ALL_HEADS = {"num_key_value_heads": 4}
# Where a family's own sizes must fit each other.
_OWN_SIZES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"), _ALL_HEADS),
    **dict.fromkeys(("minicpm3", "youtu"), _ALL_HEADS),
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": {"intermediate_size": [48, 48]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba2": {"num_heads": 8},
    "roc_bert": {"pronunciation_vocab_size": 11, "shape_vocab_size": 11},
    "xlm": {"n_words": 211, "emb_dim": 32},
    "zaya": {"num_experts_per_tok": 1},
}
_VISION = {
    **{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "depth": 1},
    **{"num_attention_heads": 2, "num_heads": 2, "image_size": 28, "patch_size": 14},
}
# All that can be built here, of transformers 5.23: those that are served, and the others.
_SERVED = """
afmoe apertus arcee aria_text axk1 beam bert bert-generation bitnet cohere cohere2 cohere2_moe
ctrl cwm deepseek_v2 deepseek_v3 dots1 electra ernie ernie4_5 ernie4_5_moe exaone4 exaone_moe
flex_olmo gemma gemma3 gemma3_text gemma3n_text glm glm4 glm4_moe glm4_moe_lite gpt-sw3 gpt2
gpt_bigcode gpt_neox granite granitemoe granitemoeshared helium hunyuan_v1_dense
hunyuan_v1_moe hy_v3 hyperclovax internlm3 iquestcoder jais2 jetmoe kolibri1 laguna lfm2 llama
llama4 llama4_text mellum minicpm3 minimax_m2 minimax_m3_vl_text ministral ministral3 mistral
mixtral modernbert-decoder moshi nanochat olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe
qwen2 qwen2_moe qwen3 qwen3_moe roc_bert seed_oss smollm3 solar_open starcoder2 youtu
""".split()  # noqa: SIM905  a name a line would be pages of names
_OTHERS = """
axk2 bailing_hybrid bamba bart big_bird bigbird_pegasus biogpt blenderbot blenderbot-small
bloom camembert codegen cpmant data2vec-text deepseek_v32 deepseek_v4 diffllama doge emu3
falcon falcon_h1 falcon_mamba flint gemma2 gemma4 gemma4_text gemma4_unified
gemma4_unified_text glm_moe_dsa gpt_neo gpt_neox_japanese gpt_oss gptj granite_swa
granitemoe_swa granitemoehybrid hrm_text hy_v4 inkling2_text inkling_text jamba kimi_linear
lfm2_moe lfm3 mamba mamba2 marian mbart megatron-bert mimo_v2_flash minimax mllama mpt mvp
nemotron nemotron_h olmo_hybrid openai-gpt pegasus plbart prophetnet qwen3_5 qwen3_5_moe
qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp qwen4_exp_text recurrent_gemma rembert
roberta roberta-prelayernorm roformer rwkv stablelm trocr vaultgemma whisper xglm xlm
xlm-roberta xlm-roberta-xl xlnet xlstm xmod zaya
""".split()  # noqa: SIM905
# Variants of those that are served, and a word of the refusal.
_REFUSED = {
    "gemma3_text: bidirectional": "ahead",
    "helium: head_dim 16": "shapes",
    "bert: encoder": "ahead",
}
# Variants that are served, of a family that is not.
_EXACT = {"gemma2: no caps", "gemma2: final cap only"}
_SHORT = {
    *("llama", "gpt2", "gpt_oss", "gemma2", "qwen2_moe", "deepseek_v3", "lfm2", "qwen3_next"),
    *("mistral: window 32", "llama: llama3 rope", "phi3: longrope rope", "falcon: alibi"),
    *("files: a file beside it", "files: a tensor missing", "files: two thetas"),
}


def cases() -> list[Case]:
    families = [_case(kind, kind, {}) for kind in (*_SERVED, *_OTHERS)]
    variants = [_case(f"{kind}: {name}", kind, extra) for kind, name, extra in _variants()]
    stored = [
        Case(
            "decoders",
            f"files: {name}",
            functools.partial(_stored, change),
            expected,
            words,
            is_short=f"files: {name}" in _SHORT,
        )
        for name, (change, expected, words) in files.CHANGES.items()
    ]
    return [*families, *variants, *stored]


def _variants() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A family, what is changed, and how."""
    ropes = {"linear": _LINEAR, "dynamic": _DYNAMIC, "llama3": _LLAMA3, "yarn": _YARN}
    ropes["longrope"] = _LONGROPE
    for kind in ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gpt_neox", "olmo2"):
        for name, rope in ropes.items():
            if (kind, name) not in _UNBUILT:
                yield kind, f"{name} rope", {"rope_parameters": dict(rope)}
        yield kind, "tied", {"tie_word_embeddings": True}
        yield kind, "untied", {"tie_word_embeddings": False}
    yield from _sizes()
    yield from _single()


def _sizes() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for kind in ("llama", "qwen3", "gemma3_text", "olmo2", "starcoder2", "stablelm", "granite"):
        yield kind, "one key head", {"num_key_value_heads": 1}
        yield kind, "as many key heads", {"num_key_value_heads": 4}
    for kind in ("llama", "mistral", "qwen3", "gemma", "gemma3_text", "helium"):
        yield kind, "head_dim 16", {"head_dim": 16}
    for kind in ("mistral", "mixtral", "phi3", "starcoder2", "gemma3_text", "olmo3", "cohere2"):
        yield kind, "window 32", {"sliding_window": 32}
        yield kind, "window as the context", {"sliding_window": 256}
    for kind in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"):
        windows = {"use_sliding_window": True, "sliding_window": 32}
        yield kind, "window in one layer", {**windows, "max_window_layers": 1}
        yield kind, "window in no layer", {**windows, "max_window_layers": 2}
    for kind in ("llama", "qwen3", "granite", "seed_oss"):
        yield kind, "attention_bias", {"attention_bias": True}


def _single() -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield "llama", "mlp_bias", {"mlp_bias": True}
    yield "llama", "gelu", {"hidden_act": "gelu"}
    yield "llama", "rms_norm_eps 0.1", {"rms_norm_eps": 0.1}
    yield "llama", "partial_rotary_factor", {"rope_parameters": {**_PLAIN, _PARTIAL: 0.5}}
    yield "gemma2", "no caps", {"attn_logit_softcapping": None, "sliding_window": 256}
    yield (
        "gemma2",
        "final cap only",
        {"attn_logit_softcapping": None, "final_logit_softcapping": 2.0},
    )
    yield "gemma3_text", "bidirectional", {"use_bidirectional_attention": True}
    yield "gpt2", "scaled by layer", {"scale_attn_by_inverse_layer_idx": True}
    yield "gpt2", "not scaled", {"scale_attn_weights": False}
    yield "gpt_neox", "sequential", {"use_parallel_residual": False}
    yield "gpt_neox", "no bias", {"attention_bias": False}
    yield "phi", "qk norm", {"qk_layernorm": True}
    yield "stablelm", "parallel", {"use_parallel_residual": True}
    yield "stablelm", "qk norm", {"qk_layernorm": True}
    yield "olmo", "clipped", {"clip_qkv": 0.5}
    yield "olmoe", "clipped", {"clip_qkv": 0.5}
    yield "cohere", "qk norm", {"use_qk_norm": True}
    yield "falcon", "alibi", {"alibi": True}
    yield "falcon", "new architecture", {"new_decoder_architecture": True}
    yield "falcon", "many key heads", {"multi_query": False}
    yield "gpt_bigcode", "many key heads", {"multi_query": False}
    yield "opt", "norm after", {"do_layer_norm_before": False}
    yield "granite", "multipliers", {"embedding_multiplier": 3.0, "residual_multiplier": 0.5}
    yield "granite", "scaled", {"attention_multiplier": 0.2, "logits_scaling": 2.0}
    yield "llama4_text", "chunks", {"attention_chunk_size": 32}
    yield "llama4_text", "tuned by position", {"floor_scale": 16, "attn_scale": 0.5}
    yield "qwen2_moe", "a dense layer", {"mlp_only_layers": [0]}
    yield "qwen3_moe", "normalised", {"norm_topk_prob": True}
    yield "mixtral", "one expert", {"num_experts_per_tok": 1}
    yield "deepseek_v3", "no low rank", {"q_lora_rank": None}
    yield "bert", "encoder", {"is_decoder": False}
    yield "smollm3", "rope in no layer", {"no_rope_layers": [0, 0]}


def _case(name: str, kind: str, extra: dict[str, Any]) -> Case:
    is_served = (kind in _SERVED and name not in _REFUSED) or name in _EXACT
    expected: Expected = "exact" if is_served else "refused"
    return Case(
        "decoders",
        name,
        functools.partial(_served, kind, extra),
        expected,
        _REFUSED.get(name, ""),
        is_short=name in _SHORT,
    )


def _served(kind: str, extra: dict[str, Any], folder: Path) -> Verdict:
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.exactness.decoding import compare, save

    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config_of(kind, extra), attn_implementation="eager")
    save(model.eval(), folder)
    return compare(folder)


def _stored(change: Any, folder: Path) -> Verdict:
    from benchmarks.exactness.decoding import compare

    _served("llama", {}, folder)
    change(folder)
    return compare(folder)


def config_of(kind: str, extra: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING

    given = {**_SIZES, **_OWN_SIZES.get(kind, {})}
    known = CONFIG_MAPPING[kind]
    names = {each.name for each in dataclasses.fields(known)}
    sizes = {name: value for name, value in given.items() if name in names}
    nested = known.sub_configs.get("text_config")
    if nested is not None and "vocab_size" not in names:
        inner = {each.name for each in dataclasses.fields(nested)}
        sizes["text_config"] = {name: each for name, each in given.items() if name in inner}
    if "vision_config" in names:
        sizes["vision_config"] = _VISION
    return known(**{**sizes, **extra})
